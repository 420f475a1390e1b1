import re
import shutil
from contextlib import ExitStack

import pytest
from serving import serve
from webapp_store import SIM_BTC, small_home

from webapp.app import create_app

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which(CHROMIUM) is None, reason="no chromium on this machine"),
]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, monkeypatch):
    """Return a function that serves a folder and opens its page; faults on the console fail the test."""
    faults = []

    def is_foreign(url):
        return not url.startswith(("http://127.0.0.1:", "data:"))

    with ExitStack() as open_things:

        def go(folder, path="/", **options):
            monkeypatch.chdir(folder)
            port = open_things.enter_context(serve(create_app(folder / "data")))
            page = open_things.enter_context(browser.new_context(**options)).new_page()
            page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
            page.on("pageerror", lambda e: faults.append(str(e)))
            page.on("request", lambda r: faults.append(f"foreign: {r.url}") if is_foreign(r.url) else None)
            page.goto(f"http://127.0.0.1:{port}{path}")
            return page

        go.faults = faults
        yield go
    assert faults == []


def test_a_forecast_is_drawn_with_its_verdict_and_hit_rates(open_page, filled):
    page = open_page(filled, "/#ETHUSDT/1h")

    page.wait_for_selector("#chart polygon.b80")
    assert page.locator("#chart polygon.band").count() == 3
    assert page.locator("#chart circle.dot").count() == 7  # the candles closed since
    assert page.locator("#title").inner_text().startswith("ETHUSDT · 1h · 2,")
    page.wait_for_selector("#rows tbody tr")
    timeframes = page.locator("#rows .group").count()
    assert page.locator("#rows .better").all_inner_texts() == ["0.9810 ▼"] * timeframes
    assert "better than the random walk" in page.locator("#verdict").inner_text()
    assert page.locator("#rates .rate").count() == 1
    assert page.locator("#ratio b").inner_text() == "too few to tell"
    assert "replayed forecasts" in page.locator("#ledger-note").inner_text()
    assert "80 % of closes between" in page.locator("#readout").inner_text()


def test_the_live_ratio_is_shown_with_its_interval_and_replays_apart(open_page, recorded):
    page = open_page(recorded, "/#BTCUSDT/1h")

    page.wait_for_selector("#record tbody tr")
    assert re.fullmatch(r"0\.\d{3}", page.locator("#ratio b").inner_text())
    assert "better than the random walk, after 59 complete days" in page.locator("#ratio").inner_text()
    assert page.locator("#rates .rate small:first-of-type").all_inner_texts() == [
        "CRPS ratio to the random walk", "50 % range", "80 % range", "90 % range",
    ]  # fmt: skip
    names = page.locator("#record tbody td:first-child").all_inner_texts()
    assert names == [
        "all 1h champions", "this series' champions", "cpb-BTCUSDT-1h/2 (champion)",
        "all 1h champions, replays", "this series' champions, replays", "cpb-BTCUSDT-1h/1 (champion), replays",
    ]  # fmt: skip
    ratios = page.locator("#record tbody td:nth-child(2)").all_inner_texts()
    assert [text == "too few to tell" for text in ratios] == [False] * 3 + [True] * 3


def test_picking_another_coin_redraws(open_page, filled):
    from playwright.sync_api import expect

    page = open_page(filled)
    page.wait_for_selector("#chart svg")

    page.select_option("#coin", "PEPEUSDT")

    expect(page.locator("#title")).to_contain_text("PEPEUSDT")
    assert re.search(r"0\.0000\d{5}", page.locator("#title").inner_text())
    assert page.locator("#timeframes button[aria-pressed=true]").inner_text() == "15m"


def test_pointing_at_a_candle_tells_its_numbers(open_page, filled):
    page = open_page(filled, "/#BTCUSDT/1h")
    page.wait_for_selector("#chart svg")

    box = page.locator("#chart svg").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 100)

    assert "open " in page.locator("#readout").inner_text()


@pytest.mark.parametrize("width", [320, 390, 1100])
def test_nothing_sticks_out_sideways(open_page, filled, recorded, width):
    page = open_page(filled, "/#PEPEUSDT/15m", viewport={"width": width, "height": 800})
    page.wait_for_selector("#rows tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth") <= width

    page = open_page(recorded, "/#BTCUSDT/1h", viewport={"width": width, "height": 800})
    page.wait_for_selector("#record tbody tr")

    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_before_the_first_forecast_it_says_what_to_do(open_page, tmp_path):
    page = open_page(tmp_path)

    page.wait_for_selector("#message:not([hidden])")
    assert "cpb demo" in page.locator("#message").inner_text()
    assert page.locator("#forecast").is_hidden()


def test_markets_are_never_mixed_on_the_page(open_page, mixed):
    from playwright.sync_api import expect

    page = open_page(mixed)
    page.wait_for_selector("#chart svg")
    assert page.locator("#market").input_value() == "spot"
    assert page.locator("#coin option").all_inner_texts() == ["BTCUSDT", "ETHUSDT", "PEPEUSDT"]
    assert page.locator("#simulated").is_hidden()
    real = page.locator("#title").inner_text()
    asked = []
    page.on("request", lambda r: asked.append(r.url))

    page.select_option("#market", "sim")

    expect(page.locator("#title")).to_contain_text("BTCUSDT (simulated market)")
    assert page.locator("#title").inner_text() != real
    assert page.locator("#simulated").is_visible()
    expect(page.locator("#verdict")).to_contain_text("a demonstration only")
    expect(page.locator("#board-title")).to_contain_text("(simulated market)")
    assert page.locator("#coin option").all_inner_texts() == ["BTCUSDT"]
    assert asked
    assert all("market=sim" in url for url in asked if "/api/" in url)

    page.select_option("#market", "um")

    expect(page.locator("#title")).to_contain_text("BTCUSDT (USDT futures)")
    expect(page.locator("#board-title")).to_have_text("Against the random walk")
    assert page.locator("#simulated").is_hidden()
    assert "demonstration" not in page.locator("#verdict").inner_text()


def test_where_all_is_simulated_the_page_says_so(open_page, tmp_path):
    page = open_page(small_home(tmp_path, SIM_BTC))

    page.wait_for_selector("#chart svg")
    assert page.locator("#simulated").is_visible()
    assert "(simulated market)" in page.locator("#title").inner_text()
    assert page.locator("#market").is_hidden()


def test_the_description_of_the_api_is_shown_and_can_be_tried(open_page, filled):
    from playwright.sync_api import expect

    page = open_page(filled, "/docs")

    page.wait_for_selector(".operation")
    assert page.locator(".operation h2").all_inner_texts() == [
        "GET /healthz", "GET /api/symbols", "GET /api/forecast/{symbol}/{timeframe}",
        "GET /api/candles/{symbol}/{timeframe}", "GET /api/leaderboard", "GET /api/ledger/{symbol}/{timeframe}",
    ]  # fmt: skip
    candles = page.locator(".operation").nth(3)
    assert "from 1 to 5000" in candles.inner_text()
    candles.locator("input[name=symbol]").fill("btc")
    candles.locator("input[name=timeframe]").fill("1h")
    candles.locator("input[name=limit]").fill("2")
    candles.locator("button").click()
    expect(candles.locator("pre")).to_contain_text("close_time")
    assert "200" in candles.locator("pre").inner_text()


def test_the_policy_lets_no_inline_script_run(open_page, filled):
    page = open_page(filled)
    page.wait_for_selector("#chart svg")

    ran = page.evaluate(
        """() => { const s = document.createElement('script'); s.textContent = 'window.ran = true';
                   document.body.append(s); return window.ran === true; }"""
    )

    assert ran is False
    (blocked,) = open_page.faults
    assert "Content Security Policy" in blocked
    open_page.faults.clear()
