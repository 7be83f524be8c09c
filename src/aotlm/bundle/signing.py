"""Signatures of bundles, by the OpenSSF model-signing library.

The signature covers every file of the bundle, the manifest included, and lies in the bundle as the
one file that the manifest does not list. `model_signing verify` of any installation checks it too.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from model_signing import signing, verifying
from sigstore.oidc import detect_credential

from aotlm.bundle.archive import write_archive
from aotlm.errors import AotlmError, UsageError
from aotlm.support.atomic import new_file
from aotlm_runtime.bundle.keys import check_key
from aotlm_runtime.bundle.manifest import read_manifest
from aotlm_runtime.bundle.names import MANIFEST, SIGNATURE
from aotlm_runtime.bundle.signature import (
    as_folder,
    first_line,
    hashing_config,
    verify_integrity,
    verify_with,
    verify_with_key,
)

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def sign(bundle: Path, key: Path | None, sigstore: bool) -> None:
    """Sign with a private key or, for `sigstore`, with this process's own identity.

    Raises:
        UsageError: neither was asked for, or both.
    """
    if (key is None) != sigstore:
        raise UsageError("say who signs: give --key=FILE or --sigstore")
    if key:
        sign_with_key(bundle, key)
    else:
        sign_with_identity(bundle)


def verify(bundle: Path, key: Path | None, identity: str | None, identity_provider: str) -> str:
    """Check a bundle as far as the arguments allow; return in one line what was found true."""
    if key and identity:
        raise UsageError("say who signed: give --key=FILE or --identity=NAME, not both")
    if key:
        verify_with_key(bundle, key)
        return f"{bundle} is whole and signed by the key {key}"
    if identity:
        verify_with_identity(bundle, identity, identity_provider)
        return f"{bundle} is whole and signed by {identity}"
    is_signed = verify_integrity(bundle)
    rest = "its signature was not checked: give --key" if is_signed else "it is not signed"
    return f"{bundle} is whole (integrity only; {rest})"


def sign_with_key(bundle: Path, key: Path) -> None:
    """Put a signature by a private key (PEM, elliptic curve) into a folder or an archive.

    Raises:
        KeyInvalidError: the key cannot be used.
        BundleError: the bundle is not whole.
    """
    check_key(key, "private")
    _sign(bundle, signing.Config().use_elliptic_key_signer(private_key=key))


def sign_with_identity(bundle: Path) -> None:
    """Put a sigstore signature by this process's own identity (in Actions, the workflow's).

    Raises:
        AotlmError: there is no such identity, sigstore cannot be reached, or the bundle is broken.
    """
    with _sigstore_errors("signed"):
        if detect_credential() is None:
            raise AotlmError(
                f"{bundle} was not signed: no identity is at hand; run this in a workflow with the "
                "permission id-token: write, or sign with --key"
            )
        config = signing.Config().use_sigstore_signer(use_ambient_credentials=True)
        _sign(bundle, config)


def verify_with_identity(bundle: Path, identity: str, identity_provider: str) -> None:
    """Check a sigstore signature: who signed, according to which identity provider.

    Raises:
        AotlmError: there is no signature, it is by another identity, or sigstore's keys cannot be
            fetched.
    """
    with _sigstore_errors("verified"):
        config = verifying.Config().use_sigstore_verifier(
            identity=identity, oidc_issuer=identity_provider
        )
        verify_with(bundle, config, identity)


def _sign(bundle: Path, config: signing.Config) -> None:
    verify_integrity(bundle)
    config.set_hashing_config(hashing_config())
    with TemporaryDirectory() as scratch:
        signature = Path(scratch, SIGNATURE)
        if bundle.is_dir():
            config.sign(bundle, signature)
            with new_file(bundle / SIGNATURE) as made:
                shutil.copyfile(signature, made)
            return
        with as_folder(bundle) as folder:
            config.sign(folder, signature)
            shutil.copyfile(signature, folder / SIGNATURE)
            _archive_again(folder, bundle)


def _archive_again(folder: Path, archive: Path) -> None:
    """Write the archive anew, in the form that it had, from its files and the signature."""
    manifest = read_manifest(folder / MANIFEST)
    paths = [MANIFEST, SIGNATURE, *(file.path for file in manifest.files)]
    with archive.open("rb") as file:
        is_packed = file.read(len(_ZSTD_MAGIC)) == _ZSTD_MAGIC
    write_archive(folder, paths, manifest.weights, archive, compress=is_packed)


@contextmanager
def _sigstore_errors(done: str) -> Iterator[None]:
    try:
        yield
    except AotlmError:
        raise
    except Exception as error:  # sigstore's services and the network fail in many ways
        raise AotlmError(
            f"the bundle was not {done}, as sigstore failed ({first_line(error)}); check the "
            "network and run it again"
        ) from error
