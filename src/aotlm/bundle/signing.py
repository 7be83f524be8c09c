"""Signatures of bundles, by the OpenSSF model-signing library.

The signature covers every file of the bundle, the manifest included, and lies in the bundle as the
one file that the manifest does not list. `model_signing verify` of any installation checks it too.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from model_signing import hashing, signing, verifying
from sigstore.oidc import detect_credential

from aotlm.bundle.archive import write_archive
from aotlm.errors import AotlmError, UsageError
from aotlm.support.atomic import new_file
from aotlm_runtime.bundle.manifest import read_manifest
from aotlm_runtime.bundle.names import MANIFEST, SIGNATURE
from aotlm_runtime.bundle.reader import open_bundle

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
        AotlmError: the key cannot be used, or the bundle is not whole.
    """

    with _key_errors(key, "private key"):
        config = signing.Config().use_elliptic_key_signer(private_key=key)
    _sign(bundle, config)


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


def verify_integrity(bundle: Path) -> bool:
    """Compare every file with the manifest, and say whether the bundle is signed.

    Whole files are compared beside their blocks: the provenance names the digests of those.

    Raises:
        BundleError: a file is missing, changed or not listed.
    """
    with open_bundle(bundle) as opened:
        opened.verify(with_whole_files=True)
        return opened.is_signed


def verify_with_key(bundle: Path, key: Path) -> None:
    """Check a bundle's signature against a public key in PEM form.

    Raises:
        AotlmError: there is no signature, it is by another key, or it is of other files.
    """

    with _key_errors(key, "public key"):
        config = verifying.Config().use_elliptic_key_verifier(public_key=key)
    _verify(bundle, config, f"the key {key}")


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
        _verify(bundle, config, identity)


def _sign(bundle: Path, config: signing.Config) -> None:
    verify_integrity(bundle)
    config.set_hashing_config(_hashing())
    with TemporaryDirectory() as scratch:
        signature = Path(scratch, SIGNATURE)
        if bundle.is_dir():
            config.sign(bundle, signature)
            with new_file(bundle / SIGNATURE) as made:
                shutil.copyfile(signature, made)
            return
        with _folder(bundle) as folder:
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


def _verify(bundle: Path, config: verifying.Config, signer: str) -> None:
    if not verify_integrity(bundle):
        raise AotlmError(
            f"{bundle} holds no signature ({SIGNATURE}); sign it with inv sign, or verify its "
            "integrity only, without a key"
        )
    config.set_hashing_config(_hashing())
    with _folder(bundle) as folder:
        try:
            config.verify(folder, folder / SIGNATURE)
        except OSError:  # of the network or the disk
            raise
        except (
            Exception
        ) as error:  # the library has no error of its own, and a file may be anything
            raise AotlmError(f"{bundle} {_reason(error, signer)}") from error


def _reason(error: Exception, signer: str) -> str:
    text = _first_line(error)
    if isinstance(error, InvalidSignature) or text.startswith("Key mismatch"):
        return f"is not signed by {signer}; verify it with its signer's key, or do not use it"
    if text.startswith("Signature mismatch"):
        return f"was changed after it was signed ({text}); do not use it, and get it again"
    return f"has a signature that is not valid for {signer} ({text}); get the bundle again"


def _hashing() -> hashing.Config:
    return hashing.Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)


@contextmanager
def _folder(bundle: Path) -> Iterator[Path]:
    """Yield the bundle as a folder; an archive is unpacked beside itself, as it may be large."""
    if bundle.is_dir():
        yield bundle
        return
    with TemporaryDirectory(dir=bundle.parent) as scratch, open_bundle(bundle) as opened:
        folder = Path(scratch, "bundle")
        opened.unpack(folder)
        yield folder


@contextmanager
def _key_errors(key: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AotlmError(
            f"cannot read the key {key}: {error.strerror}; name a {kind} in PEM form"
        ) from None
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        raise AotlmError(
            f"{key} is no {kind} that can be used ({_first_line(error)}); name one in PEM form, "
            "not encrypted, on the curve P-256, P-384 or P-521"
        ) from None


@contextmanager
def _sigstore_errors(done: str) -> Iterator[None]:
    try:
        yield
    except AotlmError:
        raise
    except Exception as error:  # sigstore's services and the network fail in many ways
        raise AotlmError(
            f"the bundle was not {done}, as sigstore failed ({_first_line(error)}); check the "
            "network and run it again"
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(" .") if lines else type(error).__name__
