"""What the page says while it waits, and when the service does not answer: its own sentences, never the browser's."""

import time

import pytest

from tests.tools.browser import needs_browser
from tests.tools.page_browser import WAIT_S, expect, hold, open_chart, settle, wait_for

pytestmark = [pytest.mark.slow, needs_browser]

AWAY = "The service does not answer; is cpb serve still running?"
RAW = ("fetch", "JSON.", "Unexpected token", "undefined", "module", "NetworkError", "TypeError")
RUNS = ".view-runs tbody tr"


@pytest.fixture
def broken(open_page):
    """`open_page`; the browser's own words on the console about failed requests are no fault here."""
    yield open_page
    open_page.faults[:] = [f for f in open_page.faults if not f.startswith("Failed to load resource")]


def let_through(page, held, last):
    """Answer what is held, and what is asked then, until a part of the page is no longer loading."""
    deadline = time.monotonic() + WAIT_S
    while page.locator(f"{last} .loading:visible").count():
        assert time.monotonic() < deadline, f"{last} is loading"
        while held:
            held.pop().continue_()
        page.wait_for_timeout(50)
    while held:
        held.pop().continue_()


def text_of(page):
    return page.locator("body").inner_text()


def test_a_view_whose_module_is_not_fetched_says_so_and_comes_back(broken, filled):
    page = broken(filled)
    page.wait_for_selector(".series tbody tr")
    page.route("**/*", lambda route: route.abort())
    page.keyboard.press("3")
    expect(page.locator("main .problem")).to_have_text(AWAY)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#fault")).to_have_text(f"{AWAY} This page asks again every 10 seconds.")
    assert not [words for words in RAW if words in text_of(page)]
    page.unroute("**/*")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator(RUNS)).to_have_count(1)
    expect(page.locator("#fault")).to_have_count(0)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (500, "boom", "The service failed (500); the log of cpb serve has the details."),
        (200, "<html>", "What answers at this address is not cpb serve: its answer is not JSON."),
        (500, '{"detail": "the service failed"}', "The service failed."),
        (503, "{}", "/api/runs answered 503."),
    ],
)
def test_an_answer_that_is_no_answer_is_a_sentence(broken, filled, status, body, told):
    page = broken(filled)
    page.wait_for_selector(".series tbody tr")
    page.route("**/api/runs", lambda route: route.fulfill(status=status, body=body))
    page.keyboard.press("3")
    expect(page.locator("main .problem")).to_have_text(told)


@pytest.mark.parametrize(("path", "module"), [("/", "keys"), ("/docs", "table")])
def test_where_a_part_of_the_page_itself_cannot_be_had_it_does_not_load_for_ever(
    broken, filled, path, module
):
    page = broken(filled, "/docs")
    page.route(f"**/{module}.js", lambda route: route.abort())
    page.wait_for_selector(".operation")
    page.goto(page.url.replace("/docs", path))
    expect(page.locator("main .problem")).to_have_text(f"{AWAY} Reload this page afterwards.")


def test_a_series_whose_forecast_cannot_be_had_does_not_wait_for_it(broken, filled):
    page = broken(filled, "/docs")
    page.route("**/api/forecast/**", lambda route: route.fulfill(status=500, body="boom"))
    page.goto(page.url.replace("/docs", "/#/series/BTCUSDT/1h/spot"))
    failed = page.get_by_text("The service failed (500); the log of cpb serve has the details.")
    expect(failed).to_be_visible()
    expect(page.locator("#decisions tbody tr").first).to_be_visible()
    settle(page)
    assert "Loading" not in text_of(page)


def test_an_answer_that_never_comes_is_given_up(broken, filled):
    page = broken(filled)
    page.wait_for_selector(".series tbody tr")
    # The limit in no time: the page's own is a minute.
    page.evaluate("AbortSignal.timeout = () => AbortSignal.abort(new DOMException('late', 'TimeoutError'))")
    page.keyboard.press("3")
    expect(page.locator("main .problem")).to_have_text(AWAY)


def test_each_part_of_a_series_that_cannot_be_had_says_so_and_the_others_stay(broken, filled):
    page = broken(filled, "/docs")
    for part in ("ledger", "decisions", "figures/forecast"):
        page.route(f"**/api/{part}/**", lambda route: route.fulfill(status=500, body="boom"))
    page.goto(page.url.replace("/docs", "/#/series/BTCUSDT/1h/spot"))
    failed = "The service failed (500); the log of cpb serve has the details."
    for place in ("#record .note", "#decisions .note", "#readout"):
        expect(page.locator(place).first).to_have_text(failed)
    expect(page.locator("#title")).to_contain_text("BTCUSDT · 1h")
    assert page.locator("details tbody tr").count() == 10
    settle(page)
    assert "Loading" not in text_of(page)


def test_every_blank_of_a_series_says_that_it_is_loading_until_it_is_filled(open_page, filled):
    page = open_page(filled, "/docs")
    held = hold(page, "**/api/ledger/**", "**/api/figures/forecast/**")
    page.goto(page.url.replace("/docs", "/#/series/BTCUSDT/1h/spot"))
    expect(page.locator("#chart [role=status]")).to_have_text("Loading …")
    expect(page.locator("#chart")).to_have_attribute("aria-busy", "true")
    for place in ("#record .note", "#decisions .note"):
        expect(page.locator(place).locator("[role=status]").first).to_have_text("Loading …")
    let_through(page, held, "#decisions")
    page.wait_for_selector("#chart path.box", state="attached")
    expect(page.locator(".loading:visible")).to_have_count(0)
    expect(page.locator("[aria-busy]")).to_have_count(0)


def test_every_blank_of_the_models_says_that_it_is_loading_until_it_is_filled(open_page, mixed):
    page = open_page(mixed, "/docs")
    held = hold(page, "**/api/figures/**")
    page.goto(page.url.replace("/docs", "/#/models"))
    page.wait_for_selector("#leaderboard tbody tr")
    for place in ("#leaderboard figure", "#compare figure"):
        expect(page.locator(place).first.locator("[role=status]").first).to_have_text("Loading …")
        expect(page.locator(place).first).to_have_attribute("aria-busy", "true")
    expect(page.locator("#compare > div").filter(has_text="Loading …").first).to_be_visible()
    let_through(page, held, "#compare")
    page.wait_for_selector("#compare tbody tr")
    expect(page.locator(".loading:visible")).to_have_count(0)
    expect(page.locator("[aria-busy]")).to_have_count(0)


def test_a_view_that_takes_its_time_says_that_it_is_loading(open_page, filled):
    page = open_page(filled)
    page.wait_for_selector(".series tbody tr")
    held = hold(page, "**/api/runs")
    page.keyboard.press("3")
    expect(page.locator("main[aria-busy] [role=status]")).to_have_text("Loading …")
    wait_for(page, held).continue_()
    expect(page.locator(RUNS)).to_have_count(1)
    expect(page.locator("main[aria-busy]")).to_have_count(0)


def test_the_banner_of_a_gone_service_is_as_wide_as_the_column(broken, filled):
    for width in (1700, 390):
        page = broken(filled, viewport={"width": width, "height": 900})
        page.wait_for_selector(".series tbody tr")
        page.route("**/api/changes", lambda route: route.abort())
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(page.locator("#fault")).to_be_visible()
        banner, column = (page.locator(place).bounding_box() for place in ("#fault", ".toolbar"))
        assert banner["x"] == pytest.approx(column["x"], abs=1)
        assert banner["width"] == pytest.approx(column["width"], abs=1)


def test_the_focus_of_the_chart_leaves_the_readout_free(open_page, filled):
    page = open_chart(open_page, filled)
    page.locator("#chart").press("ArrowLeft")
    chart, readout = (page.locator(place).bounding_box() for place in ("#chart", "#readout"))
    width, offset = page.locator("#chart").evaluate(
        "e => [getComputedStyle(e).outlineWidth, getComputedStyle(e).outlineOffset].map(parseFloat)"
    )
    assert width > 0
    assert chart["y"] + chart["height"] + width + offset <= readout["y"]
