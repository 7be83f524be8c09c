"""Keys of signatures: PEM files on a curve that the model-signing library takes.

Whoever imports this needs the package `cryptography`, which comes with `model-signing`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from aotlm_runtime.errors import KeyInvalidError

Kind = Literal["private", "public"]

_CURVES = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}


def check_key(path: Path, wanted: Kind) -> None:
    """Check that a file holds a key that can sign, or verify, a bundle.

    Raises:
        KeyInvalidError: it cannot be read, or holds something else; that is named.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KeyInvalidError(
            f"cannot read the key {path}: {error.strerror}; name a {wanted} key in PEM form"
        ) from None
    found = _describe(data, wanted)
    if found is not None:
        raise KeyInvalidError(
            f"{path} is no {wanted} key that can be used (it is {found}); name one in PEM form, "
            "not encrypted, on the curve P-256, P-384 or P-521"
        )


def _describe(data: bytes, wanted: Kind) -> str | None:
    """Return what a file holds; None if that is the kind of key that is wanted."""
    loaders: dict[Kind, Callable[[bytes], Any]] = {
        "public": load_pem_public_key,
        "private": lambda data: load_pem_private_key(data, None),
    }
    for kind, load in loaders.items():
        try:
            key = load(data)
        except TypeError:
            return "a private key behind a password"
        except (ValueError, UnsupportedAlgorithm):
            continue
        kind_of_key = _kind(key)
        if kind_of_key in _CURVES.values() and kind == wanted:
            return None
        return f"a {kind} key of the kind {kind_of_key}"
    return "no key in PEM form"


def _kind(key: Any) -> str:
    """Return what a key is: its curve, or such as RSA, Ed25519, ML-DSA."""
    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return _CURVES.get(key.curve.name, key.curve.name)
    return type(key).__name__.removesuffix("PrivateKey").removesuffix("PublicKey")
