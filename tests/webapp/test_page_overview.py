"""The overview in a real browser: a table that sorts, cards, pins, and the sentence about what is stale."""

import re
import shutil

import pytest

from schemas.identity import SeriesId
from tasks.forecasting.chain import append
from tests.tools.browser import needs_browser
from tests.tools.page_browser import expect, until
from tests.tools.page_service import serve
from tests.tools.webapp_store import BTC, fill, forecast_at, write_candles
from webapp.app import create_app

pytestmark = [pytest.mark.slow, needs_browser]

ROWS = ".series tbody tr"
LINES = "e => { const all = document.createRange(); all.selectNodeContents(e); return all.getClientRects().length }"


def names(page):
    return [link.get_attribute("aria-label") for link in page.locator(f"{ROWS} th a").all()]


def cell(page, label, row=0):
    return page.locator(ROWS).nth(row).locator(f'[data-label="{label}"]').inner_text()


def test_a_row_says_price_range_stops_width_last_day_and_verdict(open_page, touchable, filled):
    page = open_page(touchable)
    expect(page.locator(ROWS)).to_have_count(3)
    assert re.fullmatch(r"[\d,.]+\n9 Jun,? 12:00", cell(page, "price"))
    low, high = re.fullmatch(
        r"([\d.,]+) to ([\d.,]+)\n−[\d.]+ % to \+[\d.]+ %", cell(page, "80 % range")
    ).groups()
    assert low < high
    assert re.fullmatch(r"9 Jun,? 22:00\n10 h ahead", cell(page, "at (UTC)"))
    assert re.fullmatch(r"[\d.,]+\n−[\d.]+ %", cell(page, "5 % down"))
    assert re.fullmatch(r"[\d.,]+\n\+[\d.]+ %", cell(page, "5 % up"))
    assert cell(page, "5 % up", row=1) == "–"  # its model has no table of extremes
    assert cell(page, "width, 30 days") == "too few\n3 of 7 days"
    inside, due = map(int, re.match(r"(\d+) of (\d+)\n\d+ % replayed", cell(page, "came true")).groups())
    assert 0 < inside <= due
    told = page.locator(".headline .note").inner_text()
    assert re.fullmatch(
        r"3 of 3 series; in the last stored day \d+ of \d+ closes inside their 80 % range \(\d+ %, replayed\)",
        told,
    )
    page = open_page(filled)
    expect(page.locator(ROWS)).to_have_count(3)
    assert cell(page, "verdict") == "✓ better\n0.9810"
    # ETH has newer candles than its forecast has seen: per cent are of that forecast's close.
    assert re.search(r"\nof [\d,.]+ at 9 Jun,? 05:00$", cell(page, "80 % range", row=1))
    assert "\nof " not in cell(page, "80 % range")


def test_headings_sort_by_click_and_key_and_pinned_series_stay_first(open_page, filled):
    page = open_page(filled)
    expect(page.locator(ROWS)).to_have_count(3)
    sorts = page.locator(".series .sort")
    assert page.locator(".series th[aria-sort]").inner_text() == "coin ▲"
    for i in range(sorts.count()):
        sorts.nth(i).click()
        assert page.locator(".series th[aria-sort]").count() == 1
    price = page.locator(".sort[data-key=price]")
    price.press("Enter")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("price ▼")
    assert names(page) == ["BTCUSDT 1h", "ETHUSDT 1h", "PEPEUSDT 15m"]
    assert page.locator(":focus").get_attribute("data-key") == "price"
    price.press("Enter")
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("price ▲")
    assert names(page) == ["PEPEUSDT 15m", "ETHUSDT 1h", "BTCUSDT 1h"]
    page.get_by_role("button", name="Pin ETHUSDT 1h").click()
    assert names(page)[0] == "ETHUSDT 1h"
    expect(page.locator(":focus")).to_have_attribute("aria-pressed", "true")
    page.reload()
    expect(page.locator(ROWS)).to_have_count(3)
    assert names(page) == ["ETHUSDT 1h", "PEPEUSDT 15m", "BTCUSDT 1h"]
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("price ▲")  # the address has it


def test_cards_are_the_other_view_and_remembered(open_page, filled):
    page = open_page(filled)
    expect(page.locator(ROWS)).to_have_count(3)
    page.get_by_role("button", name="cards", exact=True).click()
    expect(page.locator(".tile")).to_have_count(3)
    assert page.locator(":focus").inner_text() == "cards"
    page.reload()
    expect(page.locator(".tile")).to_have_count(3)
    assert page.locator(".tile h2").all_inner_texts() == ["BTCUSDT 1h", "ETHUSDT 1h", "PEPEUSDT 15m"]
    tile = page.locator(".tile").nth(1)
    text = tile.inner_text()
    big = float(tile.locator(".quote b").inner_text().replace(",", ""))
    low, high = (
        float(p.replace(",", "")) for p in re.search(r"80 % range\s+([\d.,]+) to ([\d.,]+)", text).groups()
    )
    down, up = (float(p) for p in re.search(r"−([\d.]+) % to \+([\d.]+) %", text).groups())
    assert 100 * (1 - low / big) == pytest.approx(down, abs=0.01)
    assert 100 * (high / big - 1) == pytest.approx(up, abs=0.01)
    assert re.search(r"newest close [\d,.]+ at 9 Jun,? 12:00", text)
    assert re.search(r"at\s+9 Jun,? 15:00, 10 h ahead", text)
    assert re.search(r"CRPS ratio\s+0\.9810\s+✓ better", text)
    assert re.search(r"origin\s+9 Jun 2025, 05:00 UTC\s+stored\s+\d+ \w+ ago, replayed", text)
    for words in ("CRPS ratio", "10 h ahead"):  # on one line each
        place = page.locator(".tile").get_by_text(words, exact=True).first
        assert place.evaluate(LINES) == 1
    page.get_by_role("button", name="Pin PEPEUSDT 15m").click()
    expect(page.locator(".tile h2").first).to_have_text("PEPEUSDT 15m")
    assert "series" not in page.url  # the pin is no part of the link that covers a card


def test_commands_are_shown_as_they_must_be_typed_where_the_page_was_started(open_page, monkeypatch, filled):
    monkeypatch.chdir(filled)
    with serve(create_app(filled / "data", '"my env/bin/cpb"')) as port:
        page = open_page(filled)
        page.goto(f"http://127.0.0.1:{port}/")
        assert page.locator(".card.problem code").inner_text().startswith('"my env/bin/cpb" forecast --')


def test_what_is_stale_is_one_sentence_with_a_command_to_copy(open_page, filled):
    page = open_page(filled, permissions=["clipboard-read", "clipboard-write"])
    advice = page.locator(".card.problem")
    command = advice.locator("code").inner_text()
    assert command.startswith("cpb forecast")
    advice.get_by_role("button", name="Copy").click()
    expect(page.locator("#status")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == command
    assert "`" not in page.locator("main").inner_text() + (
        page.locator(f"{ROWS} .chip.bad").first.get_attribute("title") or ""
    )


@pytest.fixture(scope="module")
def forty(touchable, tmp_path_factory):
    """A home with forecasts of forty series."""
    home = tmp_path_factory.mktemp("forty") / "home"
    shutil.copytree(touchable, home)
    for i in range(37):
        fill(
            home / "data",
            SeriesId("spot", f"C{i:02d}USDT", "1h"),
            price=10.0 ** (i % 6 - 1),
            rows=100,
            seed=i,
        )
    return home


@pytest.mark.parametrize(("width", "tallest"), [(1440, 2700), (390, 4 * 900)])
def test_forty_series_take_three_screens_and_no_sideways_scrolling(open_page, forty, width, tallest):
    page = open_page(forty, viewport={"width": width, "height": 900})
    expect(page.locator(ROWS)).to_have_count(40)
    assert page.evaluate("document.documentElement.scrollHeight") <= tallest
    assert page.locator(".series .scroll").evaluate("e => e.scrollWidth <= e.clientWidth")


def test_a_width_beside_its_usual_one_is_called_calm_or_wild(open_page, tmp_path):
    close = write_candles(tmp_path / "data", BTC, rows=300)
    for last_row in range(60, 299, 8):
        append(tmp_path / "data", "spot", "forecasts", {BTC: forecast_at(BTC, last_row, close)})
    append(tmp_path / "data", "spot", "forecasts", {BTC: forecast_at(BTC, 298, close, sigma=0.008)})
    page = open_page(tmp_path)
    expect(page.locator(ROWS)).to_have_count(1)
    assert re.fullmatch(r"× 2\.0\d\nwild", cell(page, "width, 30 days"))
    append(tmp_path / "data", "spot", "forecasts", {BTC: forecast_at(BTC, 299, close, sigma=0.002)})
    page.reload()
    expect(page.locator(ROWS)).to_have_count(1)
    until(page, "document.body.innerText.includes('calm')")
