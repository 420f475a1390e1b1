import re
import shutil
import socket
import threading
import time

import pytest
import uvicorn

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


def serve(home):
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(home), log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    return server, thread, f"http://127.0.0.1:{listener.getsockname()[1]}"


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
    ends, faults = [], []

    def go(folder, fragment="", **options):
        monkeypatch.chdir(folder)
        server, thread, url = serve(folder / "data")
        page = browser.new_context(**options).new_page()
        page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: faults.append(str(e)))
        page.on(
            "request", lambda r: faults.append(f"foreign: {r.url}") if not r.url.startswith(url) else None
        )
        ends.append((page, server, thread))
        page.goto(url + fragment)
        return page

    yield go
    for page, server, thread in ends:
        page.context.close()
        server.should_exit = True
        thread.join(10)
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
    assert page.locator("#rates .rate").count() == 3
    assert "80 % of closes between" in page.locator("#readout").inner_text()


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
def test_nothing_sticks_out_sideways(open_page, filled, width):
    page = open_page(filled, "/#PEPEUSDT/15m", viewport={"width": width, "height": 800})
    page.wait_for_selector("#rows tbody tr")

    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_before_the_first_forecast_it_says_what_to_do(open_page, tmp_path):
    page = open_page(tmp_path)

    page.wait_for_selector("#message:not([hidden])")
    assert "cpb demo" in page.locator("#message").inner_text()
    assert page.locator("#forecast").is_hidden()
