"""A policy gives every role a codec."""

import pytest

from aotlm.weights.codecs import CODECS
from aotlm.weights.policy import POLICIES, ROLES


@pytest.mark.parametrize("name", POLICIES)
def test_every_role_has_a_codec_of_the_table(name: str) -> None:
    assert {POLICIES[name].codec(role) for role in ROLES} <= set(CODECS)


def test_vectors_are_f32_whatever_the_dtype() -> None:
    assert {policy.codec("vector") for policy in POLICIES.values()} == {"f32"}


def test_an_unknown_role_is_a_defect() -> None:
    with pytest.raises(KeyError):
        POLICIES["f16"].codec("router")
