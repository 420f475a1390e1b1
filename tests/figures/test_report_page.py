"""The page is one file: everything in it, nothing fetched, and what it is given is shown as text."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import pytest

from tasks.figures.board import board_figure
from tasks.figures.judged import COLUMNS
from tasks.figures.page import Column, Section, Table, write_page
from tests.tools.browser import launch, needs_browser

VERDICT = (
    "better than the random walk with EWMA volatility (CRPS ratio 0.9855 [0.9827, 0.9882], p<0.001, n=11,480)"
)
BAD = "<script>alert('x')</script> & \"$ink\""


class Reader(HTMLParser):
    """Collects what a page would fetch, its labels, ids and texts."""

    def __init__(self):
        super().__init__()
        self.fetched, self.labels, self.ids, self.scripts = [], [], set(), 0

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.fetched += [
            attributes[name] for name in ("src", "href") if name in attributes and attributes[name][0] != "#"
        ]
        self.labels += [attributes["aria-label"]] if "aria-label" in attributes else []
        self.ids |= {attributes["id"]} if "id" in attributes else set()
        self.scripts += tag == "script"


def written(tmp_path, *sections):
    write_page(tmp_path / "p.html", f"T {BAD}", sections)
    text = (tmp_path / "p.html").read_text()
    page = Reader()
    page.feed(text)
    return text, page


def unpacked(text, name):
    (packed,) = re.findall(rf"<script type='application/gzip' id={name}>([^<]+)</script>", text)
    return gzip.decompress(base64.b64decode(packed))


def test_the_page_is_one_file_that_fetches_nothing(tmp_path):
    figure = board_figure([{"architecture": "har", "timeframe": "1h", "crps_ratio": 0.98}])
    text, page = written(tmp_path, Section("A", figures=[("the board", figure), ("again", figure)]))
    assert page.fetched == []
    assert {"s0", "figures", "bundle", "theme"} <= page.ids
    assert page.labels.count(figure["layout"]["meta"]["alt"]) == 2
    assert b"plotly.js" in unpacked(text, "bundle")[:200]
    packed = json.loads(unpacked(text, "figures"))
    assert packed["figures"][1] == json.loads(json.dumps(figure))
    assert packed["themes"].keys() == {"light", "dark"}
    assert len(text) < 2_100_000


def test_texts_of_others_are_shown_and_not_obeyed(tmp_path):
    columns = {"a": Column(BAD, BAD), "b": Column("B", "", ".1%"), "p": Column("p", "", "p")}
    rows = [{"a": BAD, "b": 0.123, "p": 0.0001}, {"a": "x" * 50, "b": float("nan"), "p": 0.5}]
    text, page = written(
        tmp_path,
        Section(BAD, text=[BAD], items=[BAD], table=Table(columns, rows), folded=True),
    )
    assert page.scripts == 1  # its own: without figures neither plotly nor figures are in it
    assert page.fetched == []
    assert "<script>alert" not in text.replace("<script>// Draws", "")
    for cell in ("12.3%", "&lt;0.001", "0.500", "–", '<td class="text long">'):
        assert cell in text


def test_an_empty_table_says_so(tmp_path):
    text, _ = written(tmp_path, Section("A", table=Table({"a": Column("A")}, [])))
    assert "There is nothing to list." in text


@needs_browser
@pytest.mark.slow
def test_the_widest_table_shows_its_last_column_on_a_small_desk(tmp_path):
    from playwright.sync_api import sync_playwright

    texts = {"timeframe": "1h", "architecture": "robust-har", "symbol": "BTCUSDT", "verdict": VERDICT}
    row = {name: texts.get(name, 0.9855) for name in COLUMNS if name not in ("coins", "coins_below_one")}
    written(tmp_path, Section("Every model on every coin", table=Table(COLUMNS, [row | {"n": 11_480}])))
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((tmp_path / "p.html").as_uri())
        assert page.locator("th").last.inner_text() == "Verdict"
        assert page.locator(".scroll").evaluate("e => e.scrollWidth <= e.clientWidth")
        browser.close()
