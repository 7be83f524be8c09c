"""A headless Chromium of this machine, driven through selenium."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium import webdriver

# Set by CI, where a missing browser is a failure.
REQUIRED = "AOTLM_REQUIRE_CHROMIUM"

_FLAGS = (
    "--headless",
    "--no-sandbox",  # its sandbox refuses to run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def browsing() -> Iterator[webdriver.Chrome]:
    """Start a browser without any history; skip the test where there is none."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        reason = "chromium and chromedriver are not installed (packages chromium, chromium-driver)"
        if os.environ.get(REQUIRED):
            pytest.fail(reason)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
        try:
            yield chrome
        finally:
            chrome.quit()
