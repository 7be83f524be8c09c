"""Stages run on this machine, also where Docker answers, unless a test names the engine."""

import os
import signal

os.environ["AOTLM_ENGINE"] = "local"

# A shell starts what it puts in the background without SIGINT, and children inherit that; tests
# that press Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
