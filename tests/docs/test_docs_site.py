"""The built site: strict, whole, and nothing from another host."""

import re
import subprocess
import sys

import pytest

from tests.tools.doc_blocks import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_no_page_takes_anything_from_another_host_nor_its_search_from_a_server(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert (site / "search/search_index.js").is_file()  # a script: from a folder no page may fetch JSON
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)")
    assert not {(page.name, url) for page in pages for url in loaded.findall(page.read_text())}
    assert not [page.name for page in pages if "<!-- generated" in page.read_text()]


@pytest.mark.slow
def test_tables_are_made_from_the_code(site):
    def text(name):
        return (site / name).read_text()

    assert "checkpoint_gradients" in text("reference.html")
    assert "seed-lstm-tuned" in text("reference.html")
    assert "cpb deploy status" in text("reference.html")
    assert "/api/candles/{symbol}/{timeframe}" in text("reference.html")
    assert "hour_of_week_ny" in text("extending.html")
    assert all(
        f"cpbmodels.{name}" in text("reference.html")
        for name in ("Series", "train_fleet", "from_hub", "load")
    )
