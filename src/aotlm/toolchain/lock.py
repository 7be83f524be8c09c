"""Writes a lock anew: the pinned packages, what they need, and every hash."""

import subprocess
import sys
import tempfile
from pathlib import Path

from aotlm.errors import AotlmError
from aotlm.support.atomic import new_file
from aotlm.toolchain.pins import PINS, ROOT, LockFile, read_pins

# No index, path or option of this machine may enter the lock: hashes decide what is accepted.
_OPTIONS = [
    *("--quiet", "--generate-hashes", "--strip-extras", "--allow-unsafe", "--no-header"),
    *("--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links", "--no-emit-options"),
]


def write_lock(file: LockFile, root: Path = ROOT) -> Path:
    """Resolve the pins of one lock of the checkout `root`; return the lock's path.

    Packages that no pin names keep the version that the lock has, while it fits.

    Raises:
        AotlmError: no set of versions satisfies the pins.
    """
    lock = root / file.path
    wheels = file.chosen(read_pins(root / PINS))
    with tempfile.TemporaryDirectory() as name, new_file(lock) as made:
        scratch = Path(name)
        pins = "".join(f"{wheel}=={version}\n" for wheel, version in wheels.items())
        (scratch / "pins.in").write_text(pins, encoding="utf-8")
        if lock.exists():
            (scratch / lock.name).write_bytes(lock.read_bytes())
        command = [sys.executable, "-m", "piptools", "compile", *_OPTIONS]
        command += ["--output-file", lock.name, "pins.in"]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise AotlmError(
                f"no set of packages satisfies {PINS}: {reason.strip()}; "
                "change its versions and run this again"
            )
        text = (scratch / lock.name).read_text(encoding="utf-8")
        made.write_text(text.replace("-r pins.in", "pins.toml"), encoding="utf-8")
    return lock
