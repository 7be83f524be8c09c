"""Signatures: one that is true, and every way in which one is not."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from msgspec.structs import replace

from aotlm.bundle.package import describe_file, package
from aotlm.bundle.signing import sign, verify
from aotlm.errors import AotlmError, UsageError
from aotlm_runtime.bundle.manifest import encode, read_manifest
from aotlm_runtime.bundle.names import MANIFEST, SIGNATURE
from aotlm_runtime.bundle.reader import open_bundle
from aotlm_runtime.bundle.signature import describe_signature
from aotlm_runtime.cli.main import main as run_bundle
from aotlm_runtime.errors import (
    BundleNotFoundError,
    FileChangedError,
    FileUnlistedError,
    KeyInvalidError,
)

ROOT = Path(__file__).parents[2]
ISSUER = "https://token.actions.githubusercontent.com"
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def write_keys(folder: Path, key: Key, password: bytes | None = None) -> tuple[Path, Path]:
    """Write a key pair as PEM: the private, then the public key's path."""
    hidden = forms.BestAvailableEncryption(password) if password else forms.NoEncryption()
    folder.mkdir()
    private, public = folder / "private.pem", folder / "public.pem"
    private.write_bytes(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, hidden))
    public.write_bytes(
        key.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_keys(
        tmp_path_factory.mktemp("keys") / "ours", ec.generate_private_key(ec.SECP256R1())
    )


@pytest.fixture(scope="module")
def packaged(stages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = Path(shutil.copytree(stages, tmp_path_factory.mktemp("packaged") / stages.name))
    package(out)
    return out


@pytest.fixture(params=["folder", "tar", "tar.zst"])
def bundle(request: pytest.FixtureRequest, packaged: Path, tmp_path: Path) -> Path:
    """An unsigned bundle in each of its forms."""
    if request.param == "folder":
        return Path(shutil.copytree(packaged / "bundle", tmp_path / "b"))
    return package(packaged, tmp_path / f"b.{request.param}", request.param.endswith("zst"))


@pytest.fixture
def signed(packaged: Path, tmp_path: Path, keys: tuple[Path, Path]) -> Path:
    folder = Path(shutil.copytree(packaged / "bundle", tmp_path / "signed"))
    sign(folder, keys[0], sigstore=False)
    return folder


def _verify(bundle: Path, key: Path | None) -> str:
    return verify(bundle, key, None, ISSUER)


def test_a_signed_bundle_is_whole_and_verifies_in_every_form(
    bundle: Path, keys: tuple[Path, Path]
) -> None:
    assert _verify(bundle, None) == f"{bundle} is whole (integrity only; it is not signed)"
    before = sorted(path.name for path in bundle.parent.iterdir())
    sign(bundle, keys[0], sigstore=False)
    assert _verify(bundle, keys[1]) == f"{bundle} is whole and signed by the key {keys[1]}"
    assert "integrity only; its signature was not checked" in _verify(bundle, None)
    assert sorted(path.name for path in bundle.parent.iterdir()) == before
    with open_bundle(bundle) as opened:
        assert opened.is_signed
        assert SIGNATURE not in {file.path for file in opened.manifest.files}
    if bundle.suffix == ".zst":
        assert bundle.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"  # still a Zstandard frame
    # and once more, over the old signature
    sign(bundle, keys[0], sigstore=False)
    _verify(bundle, keys[1])


def test_the_librarys_own_program_verifies_it(signed: Path, keys: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(signed)]
    command += ["--signature", str(signed / SIGNATURE), "--public_key", str(keys[1])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_key_is_refused(bundle: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    sign(bundle, keys[0], sigstore=False)
    _, other = write_keys(tmp_path / "others", ec.generate_private_key(ec.SECP384R1()))
    with pytest.raises(AotlmError, match=r"is not signed by the key .*public\.pem; verify it"):
        _verify(bundle, other)


def test_a_missing_signature_is_refused(bundle: Path, keys: tuple[Path, Path]) -> None:
    with pytest.raises(AotlmError, match=r"holds no signature \(model\.sig\); sign it with"):
        _verify(bundle, keys[1])


@pytest.mark.parametrize("key", [False, True])
def test_an_edited_file_is_named(signed: Path, keys: tuple[Path, Path], key: bool) -> None:
    weights = signed / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    with pytest.raises(
        FileChangedError, match=r"'weights.safetensors' in .* was edited or damaged"
    ):
        _verify(signed, keys[1] if key else None)
    with pytest.raises(FileChangedError):
        sign(signed, keys[0], sigstore=False)


def test_files_changed_together_with_the_manifest_are_found_by_the_signature(
    signed: Path, keys: tuple[Path, Path]
) -> None:
    manifest = signed / MANIFEST
    manifest.write_text(manifest.read_text().replace('"licence": null', '"licence": "mine"', 1))
    assert "integrity only" in _verify(signed, None)
    with pytest.raises(AotlmError, match=r"was changed after it was signed \(.*manifest\.json"):
        _verify(signed, keys[1])


def divide(folder: Path, size_bytes: int = 4096) -> Path:
    """Give the files of a bundle digests of small blocks; return the manifest's path."""
    path = folder / MANIFEST
    manifest = read_manifest(path)
    files = [describe_file(folder, file.path, size_bytes) for file in manifest.files]
    changed = replace(manifest, block_size_bytes=size_bytes, files=files)
    path.write_bytes(encode(changed))
    return path


def test_the_signature_covers_the_digests_of_blocks(
    packaged: Path, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    bundle = Path(shutil.copytree(packaged / "bundle", tmp_path / "b"))
    divide(bundle)
    sign(bundle, keys[0], sigstore=False)
    _verify(bundle, keys[1])
    divide(bundle, 8192)
    assert "integrity only" in _verify(bundle, None)
    with pytest.raises(AotlmError, match=r"was changed after it was signed \(.*manifest\.json"):
        _verify(bundle, keys[1])


def test_a_digest_of_a_whole_file_that_its_blocks_contradict_is_found(
    packaged: Path, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    bundle = Path(shutil.copytree(packaged / "bundle", tmp_path / "b"))
    manifest = divide(bundle)
    weights = next(f for f in read_manifest(manifest).files if f.path == "weights.safetensors")
    assert len(weights.block_blake3) == 2
    manifest.write_text(manifest.read_text().replace(weights.sha256, "0" * 64))
    with pytest.raises(FileChangedError, match=f"manifest says {'0' * 64}"):
        _verify(bundle, None)
    with pytest.raises(FileChangedError, match=f"manifest says {'0' * 64}"):
        sign(bundle, keys[0], sigstore=False)


def test_the_signature_is_the_only_file_that_may_be_unlisted(
    signed: Path, keys: tuple[Path, Path]
) -> None:
    for name in ("model.sig.old", "lib/model.sig", ".gitignore"):
        (signed / name).write_text("x")
        with pytest.raises(FileUnlistedError, match=f"'{name}', which its manifest does not list"):
            _verify(signed, keys[1])
        (signed / name).unlink()


@pytest.mark.parametrize("text", ["", "{}", "[]", "no json", '{"verificationMaterial": {}}'])
def test_a_broken_signature_is_one_sentence(
    signed: Path, keys: tuple[Path, Path], text: str
) -> None:
    (signed / SIGNATURE).write_text(text)
    with pytest.raises(AotlmError, match="has a signature that is not valid for the key"):
        _verify(signed, keys[1])


def test_keys_that_cannot_be_used_are_one_sentence(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    before = (signed / SIGNATURE).read_bytes()
    curve = ec.generate_private_key(ec.SECP256R1())
    hidden, _ = write_keys(tmp_path / "hidden", curve, b"password")
    private, public = write_keys(tmp_path / "rsa", rsa.generate_private_key(65537, 2048))
    for key in (keys[1], hidden, private):
        with pytest.raises(AotlmError, match=r"is no private key that can be used .*; name one"):
            sign(signed, key, sigstore=False)
    for key in (keys[0], public):
        with pytest.raises(AotlmError, match=r"is no public key that can be used .*; name one"):
            _verify(signed, key)
    for wrong in (lambda key: sign(signed, key, sigstore=False), lambda key: _verify(signed, key)):
        with pytest.raises(AotlmError, match=r"cannot read the key .*nowhere: No such file"):
            wrong(tmp_path / "nowhere")
    assert (signed / SIGNATURE).read_bytes() == before


SSH = forms.PublicFormat.OpenSSH
KINDS: dict[str, tuple[Callable[[], Key], str]] = {
    "rsa": (lambda: rsa.generate_private_key(65537, 2048), "RSA"),
    "ed25519": (ed25519.Ed25519PrivateKey.generate, "Ed25519"),
    "curve": (lambda: ec.generate_private_key(ec.SECP256K1()), "secp256k1"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_another_kind_are_named(
    signed: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make, name = KINDS[kind]
    private, public = write_keys(tmp_path / kind, make())
    ours = "on the curve P-256, P-384 or P-521"
    with pytest.raises(
        KeyInvalidError, match=rf"\(it is a private key of the kind {name}\).*{ours}"
    ):
        sign(signed, private, sigstore=False)
    with pytest.raises(
        KeyInvalidError, match=rf"\(it is a public key of the kind {name}\).*{ours}"
    ):
        _verify(signed, public)
    assert run_bundle(["verify", str(signed), "--key", str(public)]) == 1
    said = capsys.readouterr().err
    assert f"error: {public} is no public key that can be used (it is a public key of" in said


def test_what_is_no_key_for_this_is_named(
    signed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    curve = ec.generate_private_key(ec.SECP384R1())
    hidden, public = write_keys(tmp_path / "hidden", curve, b"password")
    garbage = tmp_path / "garbage.pem"
    garbage.write_bytes(bytes(range(256)))
    ssh = tmp_path / "id.pub"
    ssh.write_bytes(curve.public_key().public_bytes(forms.Encoding.OpenSSH, SSH))
    found = {
        keys[0]: "a private key of the kind P-256",
        hidden: "a private key behind a password",
        garbage: "no key in PEM form",
        ssh: "no key in PEM form",
    }
    for key, what in found.items():
        with pytest.raises(KeyInvalidError, match=rf"is no public key .*\(it is {what}\)"):
            _verify(signed, key)
    with pytest.raises(KeyInvalidError, match=r"\(it is a public key of the kind P-384\)"):
        sign(signed, public, sigstore=False)
    with pytest.raises(KeyInvalidError, match=r"\(it is a private key behind a password\)"):
        sign(signed, hidden, sigstore=False)
    for key in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(KeyInvalidError, match="cannot read the key"):
            _verify(signed, key)


def test_whoever_receives_a_bundle_can_check_it(
    bundle: Path, keys: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> tuple[int, str]:
        code = run_bundle([words[0], str(bundle), *words[1:]])
        out, err = capsys.readouterr()
        return code, out + err

    _, other = write_keys(tmp_path / "others", ec.generate_private_key(ec.SECP256R1()))
    with_key = ("verify", "--key", str(keys[1]))
    assert said("verify")[1].endswith("all as its manifest says; it is not signed\n")
    assert re.search(r"^signature +none$", said("inspect")[1], re.MULTILINE)
    code, text = said(*with_key)
    assert code == 1
    assert "holds no signature (model.sig)" in text
    sign(bundle, keys[0], sigstore=False)
    assert said("verify")[1].endswith("; its signature was not checked: give --key\n")
    assert re.search(
        r"^signature +by a key; not checked without it", said("inspect")[1], re.MULTILINE
    )
    assert said(*with_key)[1].endswith(f"as its manifest says; signed by the key {keys[1]}\n")
    code, text = said("verify", "--key", str(other))
    assert code == 1
    assert text.startswith(f"error: {bundle} is not signed by the key {other}; verify it with")


def test_without_the_extra_checking_says_what_to_install(
    signed: Path, keys: tuple[Path, Path]
) -> None:
    script = (
        "import sys\n"
        "sys.modules['model_signing'] = None\n"
        "from aotlm_runtime.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", script, "verify", str(signed)]
    done = subprocess.run([*command, "--key", str(keys[1])], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: signatures cannot be checked here, as model_signing is not installed; install the "
        "extra: pip install 'aotlm-runtime[verify]'\n"
    )
    assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"verificationMaterial": {"certificate": {}}}', "by an identity, with sigstore"),
        ('{"verificationMaterial": {"x509CertificateChain": {}}}', "by a certificate"),
        ('{"verificationMaterial": {"publicKey": {}}}', "by a key"),
        ('{"verificationMaterial": {}}', "of no kind that is known"),
        ('{"verificationMaterial": 3}', "of no kind that is known"),
        ("[]", "of no kind that is known"),
        ("[" * 100_000, "of no kind that is known"),
        ("\xff", "of no kind that is known"),
    ],
)
def test_the_kind_of_a_signature_is_told_without_checking_it(
    signed: Path, text: str, kind: str
) -> None:
    (signed / SIGNATURE).write_text(text, "latin-1")
    with open_bundle(signed) as opened:
        assert describe_signature(opened).startswith(f"{kind}; not checked")


def test_who_signs_must_be_said(signed: Path, keys: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="--key=FILE or --sigstore"):
        sign(signed, None, sigstore=False)
    with pytest.raises(UsageError, match="--key=FILE or --sigstore"):
        sign(signed, keys[0], sigstore=True)
    with pytest.raises(UsageError, match="not both"):
        verify(signed, keys[1], "somebody", ISSUER)


def test_without_an_identity_sigstore_is_one_sentence(
    signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("GITHUB_", "ACTIONS_"))]:
        monkeypatch.delenv(name)
    with pytest.raises(AotlmError, match="no identity is at hand; run this in a workflow"):
        sign(signed, None, sigstore=True)


def test_the_commands_exit_with_1_and_one_sentence(signed: Path, keys: tuple[Path, Path]) -> None:
    (signed / SIGNATURE).unlink()
    command = [sys.executable, "-m", "invoke", "verify", f"--bundle={signed}"]
    done = subprocess.run([*command, f"--key={keys[1]}"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {signed} holds no signature")
    assert done.stderr.count("\n") == 1
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "integrity only" in done.stdout


def test_a_missing_bundle_is_one_sentence(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    with pytest.raises(BundleNotFoundError, match="no bundle at"):
        _verify(tmp_path / "nowhere", keys[1])
