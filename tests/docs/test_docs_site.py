"""The built site: strict, whole, nothing from another host, searchable from its folder."""

import re
import subprocess
import sys

import pytest
from browser import launch, needs_browser
from snippets import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_no_page_takes_anything_from_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")
    assert not {(page.name, url) for page in pages for url in loaded.findall(page.read_text())}
    assert not [page.name for page in pages if "<!-- generated" in page.read_text()]


@pytest.mark.slow
def test_tables_are_made_from_the_code(site):
    def text(name):
        return (site / name).read_text()

    assert "checkpoint_gradients" in text("options.html")
    assert "seed-lstm-tuned" in text("options.html")
    assert "cpb deploy status" in text("commands.html")
    assert "/api/candles/{symbol}/{timeframe}" in text("http-api.html")
    assert "hour_of_week_ny" in text("own-columns.html")
    assert all(
        f"cpbmodels.{name}" in text("api.html") for name in ("Series", "train_fleet", "from_hub", "load")
    )


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_site_works_in_a_browser_from_its_folder(site, scheme):
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as play:
        browser = launch(play)
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
        asked, faults = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{site.as_uri()}/tutorial.html")
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) > 380) == (scheme == "light")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.set_viewport_size({"width": 1440, "height": 900})
        page.click("input.md-search__input")
        page.keyboard.type(
            "accumulate"
        )  # the site listens for keys: a value that is only set, it may not notice
        page.wait_for_selector(".md-search-result__link", timeout=90_000)
        browser.close()
    assert not faults
    assert not [url for url in asked if not url.startswith((site.as_uri(), "data:", "blob:"))]
