"""The browser that tests drive, and whether this machine has one; `.ci/run` installs it, so that CI skips nothing."""

import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


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
