"""`python -m aotlm_runtime` is `aotlm-run`."""

from aotlm_runtime.cli.main import run

run()
