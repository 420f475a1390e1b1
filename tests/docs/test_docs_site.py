"""The built site: strict, whole, and nothing from another host."""

import pkgutil
import re
import subprocess
import sys
from importlib import import_module

import pytest

import flows
import schemas
import tasks
from schemas.errors import CpbError
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


@pytest.mark.slow
def test_the_site_has_the_tables_and_the_docstrings(site):
    text = (site / "reference.html").read_text()
    assert "checkpoint_gradients" in text
    assert "hour_of_week_ny" in (site / "extending.html").read_text()
    assert all(f"cpbmodels.{name}" in text for name in ("Series", "train_fleet", "from_hub", "load"))


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/_site")
    return import_module("tables")


def test_the_reference_has_what_the_code_says(tables):
    text = tables.REFERENCE.read_text()
    assert text == tables.with_tables(text), "write it anew with: make reference"
    assert all(f"<!-- generated: {name} -->" in text for name in tables.TABLES)
    assert "seed-lstm-tuned" in text
    assert "### cpb deploy status" in text
    assert "### `/api/candles/{symbol}/{timeframe}`" in text
    assert "| `lost-store` | 1 |" in text
    assert "`walk` at 15m: location_share 0.5" in text


@pytest.fixture
def error_codes(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/_site")
    return import_module("error_codes").error_codes()


def test_the_table_of_errors_has_every_kind_of_error_with_its_exit_code(error_codes):
    for package in (flows, schemas, tasks):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    kinds = [CpbError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert len(kinds) > 8
    for kind in kinds:
        if kind.default_code in error_codes:  # a class whose errors all have codes of their own is not a row
            assert kind.exit_code in error_codes[kind.default_code][0], kind
    assert {"busy", "damaged", "judge-died", "timeout", "usage"} <= error_codes.keys()


def test_the_table_of_errors_has_every_code_that_a_test_expects(error_codes):
    texts = [
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path.name != "test_docs_site.py"
    ]
    expected = {code for text in texts for code in re.findall(r'\.code == "([a-z-]+)"', text)}
    assert len(expected) > 30
    assert expected <= error_codes.keys()


def test_each_code_of_an_error_has_a_cell_that_reads_well(tables):
    rows = tables.errors().splitlines()[2:]
    assert not [row for row in rows if "……" in row or "|  |" in row]
