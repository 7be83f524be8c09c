"""Stages run on this machine, also where Docker answers, unless a test names the engine."""

import os

os.environ["AOTLM_ENGINE"] = "local"
