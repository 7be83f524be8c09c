"""A decoder as capture would bring it: norms, rotary and the MLP spelled out in arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.dims import Dim, T
from aotlm.graph.ir import Graph, Node, build
from aotlm.graph.state import kv_cache
from tests.unit.graphs import Model


@dataclass(frozen=True)
class Sizes:
    """Sizes of a small decoder, none a multiple of 64."""

    hidden: int = 24
    intermediate: int = 40
    heads: int = 4
    groups: int = 2
    width: int = 8
    vocabulary: int = 70
    tokens: Dim = T


class _Decoder:
    def __init__(self, model: Model, sizes: Sizes) -> None:
        self.model, self.sizes = model, sizes

    def product(self, x: Node, name: str, n: int) -> Node:
        """x · wᵀ as torch traces it: rows flattened, the weight transposed."""
        m, columns = self.model, int(str(x.shape[-1]))
        w = m.permute(m.parameter(f"{name}.weight", n, columns), 1, 0)
        flat = m.view(x, x.shape[1], columns)
        return m.view(m.make(ops.MATMUL, flat, w), *x.shape[:-1], n)

    def norm(self, x: Node, name: str) -> Node:
        m = self.model
        mean = m.make(ops.MEAN, m.make(ops.POW, x, 2.0))
        inverse = m.make(ops.RSQRT, m.make(ops.ADD, mean, 1e-5))
        weight = m.parameter(f"{name}.weight", int(str(x.shape[-1])))
        return m.make(ops.MUL, weight, m.make(ops.MUL, x, inverse))

    def angles(self, positions: Node) -> tuple[Node, Node]:
        m, s = self.model, self.sizes
        at = m.make(ops.ADD, positions, m.make(ops.ARANGE, start=0, end=s.tokens))
        at = m.view(m.make(ops.CAST, at, dtype="f32"), 1, s.tokens, 1)
        half = m.make(ops.MUL, at, m.parameter("rotary.inv_freq", s.width // 2))
        whole = m.concat(half, half)
        return m.make(ops.COS, whole), m.make(ops.SIN, whole)

    def rotated(self, x: Node, cos: Node, sin: Node) -> Node:
        m, r = self.model, self.sizes.width
        cos, sin = (m.view(table, 1, *table.shape) for table in (cos, sin))
        turned = m.concat(m.make(ops.NEG, m.columns(x, r // 2, r)), m.columns(x, 0, r // 2))
        return m.make(ops.ADD, m.make(ops.MUL, x, cos), m.make(ops.MUL, turned, sin))

    def heads(self, x: Node, name: str, n: int) -> Node:
        y = self.product(x, name, n * self.sizes.width)
        y = self.model.view(y, 1, self.sizes.tokens, n, self.sizes.width)
        return self.model.permute(y, 0, 2, 1, 3)

    def attention(
        self, x: Node, layer: int, window: int | None, tables: tuple[Node, Node], rest: list[Node]
    ) -> Node:
        m, s, name = self.model, self.sizes, f"model.layers.{layer}.self_attn"
        q, k, v = (
            self.heads(x, f"{name}.{part}_proj", n)
            for part, n in (("q", s.heads), ("k", s.groups), ("v", s.groups))
        )
        q, k = (self.rotated(part, *tables) for part in (q, k))
        out = m.make(
            ops.ATTENTION, q, k, v, *rest, layer=layer, scale=s.width**-0.5, window=window,
            softcap=None,
        )  # fmt: skip
        out = m.view(out, 1, s.tokens, s.heads * s.width)
        return self.product(out, f"{name}.o_proj", s.hidden)

    def mlp(self, x: Node, name: str) -> Node:
        m, s = self.model, self.sizes
        gate = self.product(x, f"{name}.gate_proj", s.intermediate)
        up = self.product(x, f"{name}.up_proj", s.intermediate)
        return self.product(
            m.make(ops.MUL, m.make(ops.SILU, gate), up), f"{name}.down_proj", s.hidden
        )


def decoder(
    model: Model,
    n_layers: int = 2,
    windows: Sequence[int | None] = (None,),
    sizes: Sizes | None = None,
) -> Graph:
    """Return a llama-like Graph; layer i has windows[i % len(windows)]. Tied embeddings."""
    s = sizes or Sizes()
    d, m = _Decoder(model, s), model
    tokens = m.input("tokens", 1, s.tokens, dtype="i64")
    positions = m.input("positions", 1, dtype="i64")
    inputs = [tokens, positions]
    with m.at("model.embed_tokens"):
        table = m.parameter("model.embed_tokens.weight", s.vocabulary, s.hidden)
        x = m.make(ops.EMBEDDING, table, tokens)
    with m.at("model.rotary_emb"):
        tables = d.angles(positions)
    for layer in range(n_layers):
        caches = kv_cache(layer, s.groups, s.width, s.width)
        inputs += caches
        name = f"model.layers.{layer}"
        with m.at(name):
            normed = d.norm(x, f"{name}.input_layernorm")
            window = windows[layer % len(windows)]
            x = m.make(ops.ADD, x, d.attention(normed, layer, window, tables, [positions, *caches]))
            normed = d.norm(x, f"{name}.post_attention_layernorm")
            x = m.make(ops.ADD, x, d.mlp(normed, f"{name}.mlp"))
    with m.at("model.norm"):
        x = d.norm(x, "model.norm")
    with m.at("lm_head"):
        flat = m.view(x, s.tokens, s.hidden)
        logits = m.make(ops.MATMUL, flat, m.permute(table, 1, 0))
        logits = m.view(logits, 1, s.tokens, s.vocabulary)
    return build(inputs, [logits])
