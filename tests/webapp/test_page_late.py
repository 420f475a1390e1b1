"""Answers that come late on the page: what was chosen meanwhile stays, and no change is missed."""

import re

import pytest

from tasks.forecasting.chain import append
from tests.tools.browser import needs_browser
from tests.tools.page_browser import expect, hold, let, open_chart, settle, until, wait_for
from tests.tools.webapp_store import BTC, ETH, PEPE, START, fill, forecast_at, small_home, write_candles

pytestmark = [pytest.mark.slow, needs_browser]

ROWS = ".series tbody tr"
MEDIAN = "document.getElementById('chart').data.find((t) => t.name === 'median').x.map(Date.parse)"
BEFORE = "**/api/forecasts/**until=**"
"""The question for forecasts before those on the slider."""
RANGE = (
    "document.getElementById('chart')._fullLayout.xaxis.range"
    ".map((t) => Date.parse(t.replace(' ', 'T').replace(/Z?$/, 'Z')))"
)


def come_back(page):
    """What a browser does when its tab is shown again: the page then looks at once for what has changed."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def hold_answer(page, pattern):
    """Keep back the first answer, as it is at the time of its request; returns a list with its route and answer."""
    held = []

    def keep(route):
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    page.route(pattern, keep)
    return held


def refused(open_page):
    """Forget the browser's own words about requests that a test lets fail."""
    open_page.faults[:] = [f for f in open_page.faults if not f.startswith("Failed to load resource")]


def grow(home, rows=301):
    """One more candle and its forecast; returns the instant of the forecast, in milliseconds."""
    close = write_candles(home / "data", BTC, rows=rows, price=100.0)
    append(home / "data", "spot", "forecasts", {BTC: forecast_at(BTC, rows - 1, close)})
    return 1000 * (START.timestamp() + 3600 * rows)


def test_of_two_markets_that_are_picked_the_second_is_shown(open_page, mixed):
    page = open_page(mixed)
    expect(page.locator(ROWS)).to_have_count(3)
    held = hold(page, "**/api/overview?market=sim", "**/api/overview?market=um")
    market = page.get_by_label("Market", exact=True)
    market.select_option("sim")
    wait_for(page, held)
    market.select_option("um")
    second = wait_for(page, held, 2)
    let(page, held[0])
    expect(page.locator(".series")).to_have_attribute("aria-busy", "true")
    expect(page.locator(".series caption")).to_have_text("Series of Binance spot")
    let(page, second)
    expect(page.locator(ROWS)).to_have_count(1)
    expect(page.locator(".series[aria-busy]")).to_have_count(0)
    expect(market).to_have_value("um")
    assert page.url.endswith("#/?market=um")


def test_a_market_that_cannot_be_had_is_told_and_the_one_before_stays(open_page, mixed):
    for view, rows, asked in (("#/", ROWS, "overview"), ("#/models", "#leaderboard tbody tr", "leaderboard")):
        page = open_page(mixed, f"/{view}")
        page.wait_for_selector(rows)
        shown = page.locator(rows).count()
        page.route(f"**/api/{asked}?market=sim", lambda route: route.abort())
        page.get_by_label("Market", exact=True).select_option("sim")
        expect(page.locator("main .problem[role=alert]")).to_contain_text("The service does not answer")
        expect(page.get_by_label("Market", exact=True)).to_have_value("spot")
        expect(page.locator(rows)).to_have_count(shown)
        settle(page)
    refused(open_page)


def test_a_view_that_was_left_writes_nothing_into_the_address_of_the_next(open_page, mixed):
    page = open_page(mixed)
    expect(page.locator(ROWS)).to_have_count(3)
    held = hold(page, "**/api/overview?market=sim")
    page.get_by_label("Market", exact=True).select_option("sim")
    wait_for(page, held)
    page.evaluate("location.hash = '#/runs'")
    page.wait_for_selector("#newest-runs tbody tr")
    let(page, held[0])
    assert page.url.endswith("#/runs")


def test_the_focus_stays_in_search_and_choices_when_the_rows_change(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_page(home)
    expect(page.locator(ROWS)).to_have_count(1)
    page.locator("#search").focus()
    page.keyboard.type("u")
    fill(home / "data", ETH)
    come_back(page)
    expect(page.locator(ROWS)).to_have_count(2)
    page.keyboard.type("sdt")
    expect(page.locator("#search")).to_have_value("usdt")

    page.get_by_label("Verdict", exact=True).focus()
    grow(home)
    come_back(page)
    expect(page.locator(ROWS).first).to_contain_text(re.compile("9 Jun,? 13:00"))
    expect(page.get_by_label("Verdict", exact=True)).to_be_focused()
    fill(home / "data", PEPE)  # with candles of another length
    come_back(page)
    expect(page.get_by_label("Candles", exact=True).locator("option")).to_have_count(3)
    expect(page.get_by_label("Verdict", exact=True)).to_be_focused()


def test_a_change_while_a_view_is_on_its_way_is_not_missed(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_page(home, "/#/runs")
    page.wait_for_selector(".view-runs")
    held = hold_answer(page, "**/api/overview*")
    page.evaluate("location.hash = '#/'")
    route, answer = wait_for(page, held)
    fill(home / "data", ETH)
    with page.expect_response("**/api/changes"):
        come_back(page)
    page.wait_for_timeout(300)
    route.fulfill(response=answer)
    expect(page.locator(ROWS)).to_have_count(2)


def test_of_two_leaderboards_the_late_one_is_not_drawn_as_the_other(open_page, mixed):
    page = open_page(mixed, "/#/models")
    page.wait_for_selector("#leaderboard tbody tr")
    held = hold(page, "**/api/leaderboard?market=sim", "**/api/leaderboard?market=um")
    market = page.get_by_label("Market", exact=True)
    market.select_option("um")
    wait_for(page, held)
    market.select_option("sim")
    wait_for(page, held, 2)
    let(page, held[0])
    expect(page.locator("#leaderboard caption")).to_have_text("Architectures against the random walk")
    let(page, held[1])
    expect(page.locator("#leaderboard tbody tr")).to_have_count(1)
    expect(page.locator("h1")).to_contain_text("simulated")
    market.select_option("spot")
    expect(page.locator("#leaderboard tbody tr")).to_have_count(4)
    expect(page.locator("h1")).to_have_text("Models")


def test_two_models_are_compared_on_the_coin_that_was_chosen_last(open_page, mixed):
    page = open_page(mixed, "/docs")
    held = hold(page, "**/api/models/BTCUSDT/**")
    page.goto(page.url.replace("/docs", "/#/models?timeframe=1h"))
    wait_for(page, held)
    page.get_by_label("On", exact=True).select_option("ETHUSDT")
    expect(page.locator("#compare caption")).to_contain_text("on ETHUSDT 1h")
    table = page.locator("#compare table").inner_text()
    let(page, held[0])
    assert page.locator("#compare table").inner_text() == table
    href = page.locator("#compare .downloads a").get_attribute("href")
    assert "/api/models/ETHUSDT/1h" in href


def test_whoever_chooses_by_keys_goes_on_choosing(open_page, mixed):
    page = open_page(mixed, "/#/models?timeframe=1h")
    expect(page.locator("#compare caption")).to_contain_text("on BTCUSDT 1h")
    for label, key, back in (
        ("Candles", "ArrowUp", "ArrowDown"),
        *((label, "ArrowDown", "ArrowUp") for label in ("Market", "First model", "On")),
    ):
        settle(page)
        choice = page.get_by_label(label, exact=True)
        choice.focus()
        before = choice.input_value()
        page.keyboard.press(key)
        expect(choice).not_to_have_value(before)
        settle(page)
        expect(choice).to_be_focused()
        page.keyboard.press(back)
        expect(choice).to_have_value(before)


def test_a_figure_that_fails_late_does_not_take_the_newer_one_away(open_page, mixed):
    page = open_page(mixed, "/docs")
    held = hold(page, "**/api/figures/board?market=spot&timeframe=1h*")
    page.goto(page.url.replace("/docs", "/#/models?timeframe=1h"))
    wait_for(page, held)
    page.get_by_label("Candles", exact=True).select_option("15m")
    figure = page.locator("#leaderboard figure").first
    expect(figure.locator(".plot svg").first).to_be_visible()
    with page.expect_event("requestfailed"):
        held[0].abort()
    page.wait_for_timeout(300)
    expect(figure.locator(".plot svg").first).to_be_visible()
    refused(open_page)


def test_a_theme_that_is_chosen_while_a_view_loads_is_not_its_last(open_page, mixed):
    page = open_page(mixed, "/docs", color_scheme="light")
    held = hold(page, "**/api/leaderboard*")
    page.goto(page.url.replace("/docs", "/#/models"))
    wait_for(page, held)
    theme = page.get_by_label("Theme", exact=True)
    theme.select_option("dark")
    held[0].continue_()
    page.wait_for_selector("#leaderboard .plot svg")
    ink = "document.querySelector('#leaderboard .js-plotly-plot')._fullLayout.font.color"
    dark = page.evaluate(ink)
    theme.select_option("light")
    until(page, f"{ink} !== {dark!r}")


def test_a_chart_whose_theme_changes_while_it_loads_says_so_until_it_stands(open_page, filled):
    page = open_page(filled, "/docs", color_scheme="light")
    held = hold(page, "**/api/figures/forecast/**")
    page.goto(page.url.replace("/docs", "/#/series/BTCUSDT/1h/spot"))
    wait_for(page, held)
    page.get_by_label("Theme", exact=True).select_option("dark")
    newest = wait_for(page, held, 2)
    let(page, held[0])
    expect(page.locator("#chart .loading")).to_be_visible()
    expect(page.locator("#chart")).to_have_attribute("aria-busy", "true")
    newest.continue_()
    page.wait_for_selector("#chart path.box", state="attached")
    expect(page.locator("#chart .loading")).to_have_count(0)
    settle(page)


def test_a_chart_whose_other_theme_cannot_be_had_says_so(open_page, filled):
    page = open_chart(open_page, filled, color_scheme="light")
    page.route("**/api/figures/forecast/**", lambda route: route.abort())
    page.get_by_label("Theme", exact=True).select_option("dark")
    expect(page.locator("#readout")).to_contain_text("The service does not answer")
    refused(open_page)


def test_older_candles_that_could_not_be_had_are_asked_for_again(open_page, recorded):
    page = open_chart(open_page, recorded)
    page.route("**/api/figures/forecast/**", lambda route: route.abort())
    page.locator("#chart").press("Home")
    expect(page.locator("#readout")).to_contain_text("The service does not answer")
    page.unroute("**/api/figures/forecast/**")
    page.locator("#chart").press("ArrowLeft")
    until(
        page,
        "document.getElementById('chart').data.find(t => t.type === 'candlestick').x.length === 1464",
    )
    refused(open_page)


def test_an_earlier_forecast_that_was_picked_is_shown_though_the_list_is_asked_for_again(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_chart(open_page, home)
    held = hold(page, "**/api/forecast/**issued_at=**")
    page.get_by_role("button", name="‹ Earlier").click()
    wait_for(page, held)
    with page.expect_response("**/api/ledger/**"):  # the end of a look
        grow(home)
        come_back(page)
    expect(page.locator(".past output")).to_contain_text("15 of 17")
    held[0].continue_()
    expect(page.locator("#title .chip", has_text="an earlier forecast")).to_be_visible()


def test_the_newest_forecast_that_comes_while_the_one_before_is_chosen_is_drawn(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_chart(open_page, home)
    page.get_by_role("button", name="‹ Earlier").click()
    expect(page.locator("#title .chip", has_text="an earlier forecast")).to_be_visible()
    settle(page)
    held = hold(page, "**/api/forecast/**")
    page.get_by_role("button", name="Newest").click()
    wait_for(page, held)
    newest = grow(home)
    come_back(page)
    wait_for(page, held, 2).continue_()
    let(page, held[0])
    expect(page.locator("#title .chip", has_text="an earlier forecast")).to_have_count(0)
    until(page, f"{MEDIAN}[0] === {newest}")


def test_a_chart_that_is_renewed_before_it_first_stands_does_not_load_for_ever(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_page(home, "/docs")
    held = hold(page, "**/api/touch/**")
    page.goto(page.url.replace("/docs", "/#/series/BTCUSDT/1h/spot"))
    wait_for(page, held)
    newest = grow(home)
    come_back(page)
    wait_for(page, held, 2).continue_()
    held[0].continue_()
    page.wait_for_selector("#chart path.box", state="attached")
    until(page, f"{MEDIAN}[0] === {newest}")
    expect(page.locator("#chart .loading")).to_have_count(0)
    settle(page)


def test_a_chart_that_is_dragged_is_renewed_once_it_is_let_go(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_chart(open_page, home, viewport={"width": 1440, "height": 900})
    first = page.evaluate(RANGE)
    box = page.locator("#chart").bounding_box()
    x, y = box["x"] + 400, box["y"] + 150
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=4)
    until(page, f"{RANGE}[0] < {first[0]}")
    dragged = page.evaluate(RANGE)
    newest = grow(home)
    with page.expect_response("**/api/figures/forecast/**"):
        come_back(page)
    page.wait_for_timeout(300)
    assert page.evaluate(RANGE) == dragged
    page.mouse.move(x + 120, y, steps=4)
    page.mouse.up()
    until(page, f"{MEDIAN}[0] === {newest}")
    expect(page.locator("#status")).to_contain_text("Updated")
    far = 2 * (dragged[0] - first[0])
    assert page.evaluate(RANGE)[0] - first[0] == pytest.approx(far, rel=0.05)


def test_a_forecast_that_was_left_before_it_came_leaves_the_parts_loading(open_page, filled):
    page = open_page(filled, "/docs")
    held = hold(page, "**/api/forecast/**")
    page.goto(page.url.replace("/docs", "/#/series/BTCUSDT/1h/spot"))
    wait_for(page, held)
    page.get_by_role("button", name="‹ Earlier").click()
    earlier = wait_for(page, held, 2)
    let(page, held[0])
    expect(page.locator("#chart .loading")).to_be_visible()
    expect(page.locator("#chart")).to_have_attribute("aria-busy", "true")
    earlier.continue_()
    page.wait_for_selector("#chart path.box", state="attached")
    settle(page)
    expect(page.locator(".loading:visible")).to_have_count(0)


def test_an_old_record_does_not_come_over_the_newer_one(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_page(home, "/docs")
    held = hold_answer(page, "**/api/ledger/**")
    page.goto(page.url.replace("/docs", "/#/series/BTCUSDT/1h/spot"))
    route, answer = wait_for(page, held)
    fill(home / "data", BTC, rows=304, price=100.0)
    come_back(page)
    note = page.locator("#record .note").first
    expect(note).to_contain_text("by all versions that have served this series")
    told = note.inner_text()
    route.fulfill(response=answer)
    page.wait_for_timeout(300)
    assert note.inner_text() == told


def test_forecasts_before_the_oldest_are_had_once_and_what_was_chosen_meanwhile_stays(open_page, filled):
    page = open_page(filled, "/docs")

    def some(route):
        found = route.fetch().json()
        route.fulfill(json={**found, "forecasts": found["forecasts"][-10:]})

    page.route("**/api/forecasts/**", some)
    page.goto(page.url.replace("/docs", "/#/series/BTCUSDT/1h/spot"))
    told = page.locator(".past output")
    expect(told).to_contain_text("10 of 10")
    held = hold(page, BEFORE)
    page.locator("#past").press("Home")
    expect(told).to_contain_text("1 of 10")
    page.keyboard.press("[")
    page.keyboard.press("[")
    wait_for(page, held)
    page.keyboard.press("n")
    expect(told).to_contain_text("10 of 10")
    for route in held:
        let(page, route)
    expect(told).to_contain_text("16 of 16")
    expect(page.get_by_role("button", name="Newest")).to_be_disabled()


def test_a_price_that_is_asked_for_twice_is_told_once(open_page, touchable):
    page = open_chart(open_page, touchable)
    held = hold(page, re.compile("/api/touch/.*price="))
    for i, key in enumerate(".,."):
        page.locator("#chart").press(key)
        wait_for(page, held, i + 1)
    for route in held:
        let(page, route)
    assert page.locator("#readout").inner_text().count("reached by") == 1


def test_an_answer_of_the_api_that_comes_late_does_not_cover_the_next(open_page, filled):
    page = open_page(filled, "/docs")
    page.wait_for_selector(".operation")
    paths = page.locator(".operation h2").all_inner_texts()
    candles = page.locator(".operation").nth(paths.index("GET /api/candles/{symbol}/{timeframe}"))
    held = hold(page, "**/api/candles/btc/**")
    candles.locator("input[name=timeframe]").fill("1h")
    for coin in ("btc", "eth"):
        candles.locator("input[name=symbol]").fill(coin)
        candles.locator("button").click()
    expect(candles.locator("pre")).to_contain_text("ETHUSDT")
    let(page, wait_for(page, held))
    expect(candles.locator("pre")).to_contain_text("GET /api/candles/eth/1h")
