"""The browser that tests drive, and whether this machine has it; `.ci/run` installs it, so that CI skips nothing."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

needs_browser = pytest.mark.skipif(shutil.which(CHROMIUM) is None, reason="no chromium on this machine")


def launch(playwright):
    """Start it."""
    return playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)


def axe_findings(page):
    """Return what axe calls serious or critical on the page as it stands: (rule, first places)."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        (one["id"], [node["target"] for node in one["nodes"]][:3])
        for one in Axe().run(page).response["violations"]
        if one["impact"] in ("serious", "critical")
    ]
