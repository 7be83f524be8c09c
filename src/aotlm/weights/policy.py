"""Which codec stores a weight: by what the model uses it for. `--dtype` names a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from aotlm.weights.blocks import BlockCodec
from aotlm.weights.codecs import CODECS
from aotlm.weights.weight import Weight

ROLES: Final = ("embedding", "linear", "head", "vector")
STORED: Final = "stored"  # the policy that keeps what the checkpoint has

# Checkpoint tensors, and the codec that holds each as it is stored.
StoredCodecs = Mapping[str, str]
NOTHING_STORED: Final[StoredCodecs] = MappingProxyType({})


@dataclass(frozen=True)
class Policy:
    """The codec of each role, in the order of ROLES, and the dtype of the state.

    "head" makes the logits; a table that is also the head's weight has the head's role. "vector"
    is everything that no kernel packs: norms, biases, rotary frequencies. With `keeps_stored`, a
    matrix has the codec that holds what the checkpoint stores, and `rest` where there is none.
    """

    name: str
    embedding: str
    linear: str
    head: str
    vector: str
    state: str
    rest: str = "f32"
    keeps_stored: bool = False

    @property
    def is_quantised(self) -> bool:
        """Say whether matrices may be blocks of integers."""
        return self.keeps_stored or any(
            isinstance(CODECS[self.codec(role)], BlockCodec) for role in ROLES
        )

    def codec(self, role: str) -> str:
        """Return the name of the codec of a role."""
        return {
            "embedding": self.embedding,
            "linear": self.linear,
            "head": self.head,
            "vector": self.vector,
        }[role]

    def choose(self, weight: Weight, role: str, stored: StoredCodecs) -> str:
        """Return the name of the codec of a weight with that role."""
        if role == "vector":
            return self.vector
        name = self.codec(role)
        if self.keeps_stored:
            found = {stored.get(source.tensor, self.rest) for source in weight.sources}
            name = found.pop() if len(found) == 1 else self.rest
            if any(source.transposed for source in weight.sources):
                return self.rest
        return name


def _plain(name: str) -> Policy:
    """Return the policy that stores every matrix and the state in one float type."""
    return Policy(name, embedding=name, linear=name, head=name, vector="f32", state=name)


# The embedding and the head matter most, and are read by rows or once a token.
_INT8: Final = Policy("int8", "q8_0", "q8_0", "q8_0", vector="f32", state="f16")
_INT4: Final = Policy("int4", "q8_0", "q4_1", "q8_0", vector="f32", state="f16")
_STORED: Final = Policy(STORED, "f32", "f32", "f32", vector="f32", state="f16", keeps_stored=True)

POLICIES: Final[Mapping[str, Policy]] = {
    policy.name: policy for policy in (*map(_plain, ("f16", "bf16", "f32")), _INT8, _INT4, _STORED)
}
