"""How each kernel is cut: the one table of tiles, blocks and prefetch distances.

A schedule is chosen by the kernel, the dtype of its weights and the target's vectors. Its numbers
change no bit of a result, as every output's sum has its order from the kernel; `split_kv` alone is
part of an order, and so the same everywhere. Names are BLIS's: MR × NR is a register tile, MC and
KC are the blocks of rows and of k around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from aotlm.emit.kernels import DECODE_BLOCK
from aotlm.targets import Target
from aotlm.weights.blocks import BlockCodec
from aotlm.weights.codecs import CODECS
from aotlm.weights.weight import GATE_GROUP


@dataclass(frozen=True)
class PackedSchedule:
    """A linear of M > 1 rows over packed rows and widened weights; see `packed`."""

    mr: int  # rows of a register tile, at most
    nr: int  # columns of one: a gate's group, so that a tile is gate or up
    kc: int  # columns of k of a block
    mc: int  # rows of a work item: a multiple of mr
    k_group: int  # columns of packed rows that lie together, and that an iteration takes
    prefetch_lines: int  # of weights that an iteration asks for, at most

    @property
    def n_tiles(self) -> int:
        """Return the largest tiles of a work item."""
        return self.mc // self.mr

    @property
    def n_groups(self) -> int:
        """Return the groups of columns of a block."""
        return self.kc // self.k_group


@dataclass(frozen=True)
class LinearSchedule:
    """A linear over weights as they come from memory, in tiles as wide as a panel; see `linear`.

    `packed` takes M > 1, where it is given.
    """

    mr: tuple[int, ...]  # rows of a register tile, largest first; the last one is 1
    mc: int  # rows of a work item: a multiple of the largest tile's
    unroll_k: int  # columns of k that an iteration takes
    prefetch_bytes: int  # how far ahead an iteration asks for weights; 0: not at all
    dot: bool  # whether products are `vdpbf16ps`
    packed: PackedSchedule | None


@dataclass(frozen=True)
class IntegerSchedule:
    """A linear over blocks of small integers; see `integer_linear`. A single row takes a panel."""

    lanes: int  # outputs of a vector
    vnni: bool  # whether products are `vpdpbusd`
    mr: tuple[int, ...]  # rows of a register tile, largest first; the last one is 1
    nr: int  # outputs of one
    mc: int  # rows of a work item: a multiple of the largest tile's
    prefetch_bytes: int  # how far ahead blocks are asked for


@dataclass(frozen=True)
class AttentionSchedule:
    """Both attention kernels; see `tile`."""

    mr: tuple[int, ...]  # query rows of a tile, largest first; the last one is 1
    accumulators: int  # f32 of a tile that stay in registers
    unroll: int  # of loops over a head's elements and over positions: a divisor of 64
    split_kv: int  # positions of a work item of decode
    combine_nr: int  # columns of an accumulator when decode combines its work items


# 6 × 16 keeps 12 of 16 registers of 256 bits as accumulators. A block of widened weights, 128 × 16
# f32, is 8 KiB and stays in L1 while tiles of x, 3 KiB each, pass by. With 32 tiles in a work item,
# widening costs a 90th of the arithmetic.
_PACKED: Final = PackedSchedule(
    mr=6, nr=GATE_GROUP, kc=128, mc=32 * 6, k_group=8, prefetch_lines=2
)  # fmt: skip

# One row is memory's: nothing to keep but a panel's sums.
_ROW: Final = LinearSchedule(
    mr=(1,), mc=1, unroll_k=2, prefetch_bytes=0, dot=False, packed=_PACKED
)  # fmt: skip
# Widening fills a core's window of instructions with so few lines that loads alone don't keep
# memory busy. Measured on Zen 3: 1.05 times the speed in f16 and 1.08 in bf16, with neither 576 nor
# 1600 bytes as good. f32 is not widened, and loses a tenth.
_WIDENED_ROW: Final = replace(_ROW, prefetch_bytes=1088)
# 6 × 64 keeps 24 of 32 registers of 512 bits as accumulators. 48 rows are whole tiles of 6 and 12.
_TILES: Final = LinearSchedule(
    mr=(6, 4, 2, 1), mc=48, unroll_k=2, prefetch_bytes=0, dot=False, packed=None
)  # fmt: skip
# The dot product has its pairs widened in no register and takes 12 × 32.
_DOT_TILES: Final = replace(_TILES, mr=(12, *_TILES.mr), dot=True)

# By the target's vectors and the dtype of the weights.
LINEAR: Final[Mapping[str, Mapping[str, LinearSchedule]]] = {
    "avx2": {"f32": _ROW, "f16": _WIDENED_ROW, "bf16": _WIDENED_ROW},
    "avx512": {"f32": _TILES, "f16": _TILES, "bf16": _TILES},
    "avx512_bf16": {"f32": _TILES, "f16": _TILES, "bf16": _DOT_TILES},
}

# 96 f32 are 12 of 16 registers of 256 bits: 6 × 16. A tile of 1 or 2 rows of 16 columns would have
# 2 or 4 sums in flight where an fma takes 4 cycles at 2 a cycle, so fewer rows take more columns.
# 256 f32 are 16 of 32 registers of 512 bits: 8 × 32.
_SIX_ROWS: Final = AttentionSchedule(
    mr=(6, 4, 2, 1), accumulators=96, unroll=4, split_kv=DECODE_BLOCK, combine_nr=16
)  # fmt: skip
_EIGHT_ROWS: Final = replace(_SIX_ROWS, mr=(8, 4, 2, 1), accumulators=256)

ATTENTION: Final[Mapping[str, AttentionSchedule]] = {
    "avx2": _SIX_ROWS,
    "avx512": _EIGHT_ROWS,
    "avx512_bf16": _EIGHT_ROWS,
}


# By lanes of 32 bits and `vpdpbusd`: sums and dot products of a tile stay in registers.
INTEGER: Final[Mapping[tuple[int, bool], IntegerSchedule]] = {
    (8, False): IntegerSchedule(8, False, (6, 4, 2, 1), nr=16, mc=48, prefetch_bytes=4096),
    (8, True): IntegerSchedule(8, True, (6, 4, 2, 1), nr=16, mc=48, prefetch_bytes=4096),
    (16, False): IntegerSchedule(16, False, (4, 2, 1), nr=32, mc=48, prefetch_bytes=4096),
    (16, True): IntegerSchedule(16, True, (6, 4, 2, 1), nr=32, mc=48, prefetch_bytes=4096),
}


def linear_schedule(target: Target, weight: str) -> LinearSchedule | IntegerSchedule:
    """Return the schedule of a linear whose weights are stored as `weight`."""
    if isinstance(CODECS[weight], BlockCodec):
        return INTEGER[target.vector_bits // 32, target.vnni]
    return LINEAR[target.vectors][weight]


def attention_schedule(target: Target) -> AttentionSchedule:
    """Return the schedule of attention; the caches' dtype does not matter."""
    return ATTENTION[target.vectors]
