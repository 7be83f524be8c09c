"""Which codec stores a weight: by what the model uses it for. `--dtype` names a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ROLES: Final = ("embedding", "linear", "head", "vector")


@dataclass(frozen=True)
class Policy:
    """The codec of each role, in the order of ROLES, and the dtype of the state.

    "head" makes the logits; a table that is also the head's weight has the head's role. "vector"
    is everything that no kernel packs: norms, biases, rotary frequencies.
    """

    name: str
    embedding: str
    linear: str
    head: str
    vector: str
    state: str

    def codec(self, role: str) -> str:
        """Return the name of the codec of a role."""
        return {
            "embedding": self.embedding,
            "linear": self.linear,
            "head": self.head,
            "vector": self.vector,
        }[role]


def _plain(name: str) -> Policy:
    """Return the policy that stores every matrix and the state in one float type."""
    return Policy(name, embedding=name, linear=name, head=name, vector="f32", state=name)


POLICIES: Final[Mapping[str, Policy]] = {name: _plain(name) for name in ("f16", "bf16", "f32")}
