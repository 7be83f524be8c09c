"""Signatures of bundles: what there is, and whether it is true.

They are made and checked by the OpenSSF model-signing library, over every file of the bundle, the
manifest included. Only checking needs that library, which is an extra of this package.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from aotlm_runtime.bundle.names import SIGNATURE
from aotlm_runtime.bundle.reader import Bundle, open_bundle
from aotlm_runtime.bundle.verification import Progress
from aotlm_runtime.errors import ExtraMissingError, SignatureInvalidError

if TYPE_CHECKING:
    from model_signing import hashing, verifying

# How the format of sigstore names what verifies a signature.
_KINDS = {
    "publicKey": "by a key; not checked without it: see verify --key",
    "certificate": "by an identity, with sigstore; not checked",
    "x509CertificateChain": "by a certificate; not checked",
}


def describe_signature(bundle: Bundle) -> str:
    """Say whether a bundle is signed, and by what kind of signer; nothing is checked."""
    if not bundle.is_signed:
        return "none"
    try:
        material = json.loads(bundle.read_signature())["verificationMaterial"]
        kinds = [said for name, said in _KINDS.items() if name in material]
    except (ValueError, KeyError, TypeError, RecursionError):
        kinds = []
    return kinds[0] if kinds else "of no kind that is known; not checked"


def verify_with_key(bundle: Path, key: Path, progress: Progress = lambda n_bytes: None) -> None:
    """Check every file of a bundle, and its signature against a public key in PEM form.

    Raises:
        ExtraMissingError: the library for signatures is not installed.
        KeyInvalidError: the key cannot be used.
        SignatureInvalidError: there is no signature, it is by another key, or of other files.
        BundleError: a file is missing, changed or not listed.
    """
    try:
        from model_signing import verifying

        from aotlm_runtime.bundle.keys import check_key
    except ImportError as error:
        raise ExtraMissingError(
            f"signatures cannot be checked here, as {error.name} is not installed; install the "
            "extra: pip install 'aotlm-runtime[verify]'"
        ) from error
    check_key(key, "public")
    config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    verify_with(bundle, config, f"the key {key}", progress)


def verify_with(
    bundle: Path,
    config: "verifying.Config",
    signer: str,
    progress: Progress = lambda n_bytes: None,
) -> None:
    """Check every file of a bundle, and its signature as `config` says; `signer` is for errors.

    Raises:
        SignatureInvalidError: there is no signature, or it is not true.
        BundleError: a file is missing, changed or not listed.
    """
    if not verify_integrity(bundle, progress):
        raise SignatureInvalidError(
            f"{bundle} holds no signature ({SIGNATURE}); sign it with inv sign, or verify its "
            "integrity only, without a key"
        )
    config.set_hashing_config(hashing_config())
    with as_folder(bundle) as folder:
        try:
            config.verify(folder, folder / SIGNATURE)
        except OSError:  # of the network or the disk
            raise
        except Exception as error:  # the library has no error of its own, and a file may be any
            raise SignatureInvalidError(f"{bundle} {_reason(error, signer)}") from error


def verify_integrity(bundle: Path, progress: Progress = lambda n_bytes: None) -> bool:
    """Compare every file with the manifest, and say whether the bundle is signed.

    Whole files are compared beside their blocks: the provenance names the digests of those.

    Raises:
        BundleError: a file is missing, changed or not listed.
    """
    with open_bundle(bundle) as opened:
        opened.verify(progress, with_whole_files=True)
        return opened.is_signed


def hashing_config() -> "hashing.Config":
    """Return what of a folder is signed: all but the signature."""
    from model_signing import hashing

    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


@contextmanager
def as_folder(bundle: Path) -> Iterator[Path]:
    """Yield the bundle as a folder; an archive is unpacked beside itself, as it may be large.

    Where that is not possible, the temporary folder takes it.
    """
    if bundle.is_dir():
        yield bundle
        return
    place = bundle.parent if os.access(bundle.parent, os.W_OK) else None
    with TemporaryDirectory(dir=place) as scratch, open_bundle(bundle) as opened:
        folder = Path(scratch, "bundle")
        opened.unpack(folder)
        yield folder


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, without a full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(" .") if lines else type(error).__name__


def _reason(error: Exception, signer: str) -> str:
    from cryptography.exceptions import InvalidSignature

    text = first_line(error)
    if isinstance(error, InvalidSignature) or text.startswith("Key mismatch"):
        return f"is not signed by {signer}; verify it with its signer's key, or do not use it"
    if text.startswith("Signature mismatch"):
        return f"was changed after it was signed ({text}); do not use it, and get it again"
    return f"has a signature that is not valid for {signer} ({text}); get the bundle again"
