"""`aotlm-run`, which is also `python -m aotlm_runtime`."""

import sys
from typing import NoReturn


def run() -> NoReturn:
    """Run the command line and leave with its exit code; Ctrl-C may come while that loads."""
    try:
        from aotlm_runtime.cli.main import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # as shells say it: 128 and SIGINT


if __name__ == "__main__":
    run()
