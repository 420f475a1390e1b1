import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schemas.chances import SCORED
from tasks.forecasting.chain import append
from tasks.tracking.runs import finish, start_parent
from tasks.training.shard_retention import ShardsInUse
from tests.tools.browser import needs_browser
from tests.tools.page_browser import WAIT_S, expect, hold, let, open_chart, settle, until, wait_for
from tests.tools.webapp_store import BTC, ETH, fill, forecast_at, small_home, write_candles

ROOT = Path(__file__).resolve().parents[2]
ROWS = ".series tbody tr"

pytestmark = [pytest.mark.slow, needs_browser]


def come_back(page):
    """What a browser does when its tab is shown again: the page then looks at once for what has changed."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def late(route):
    """Keep back an answer for a moment."""
    time.sleep(0.3)
    route.continue_()


def coins(page):
    return [link.get_attribute("aria-label") for link in page.locator(f"{ROWS} th a").all()]


def test_the_overview_is_searched_from_the_keyboard_and_the_address_keeps_the_search(open_page, filled):
    page = open_page(filled)
    expect(page.locator(ROWS)).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("eth")
    expect(page.locator(ROWS)).to_have_count(1)
    assert page.url.endswith("#/?q=eth")
    page.reload()
    expect(page.locator(ROWS)).to_have_count(1)
    page.get_by_label("Coin", exact=True).fill("btx")
    expect(page.locator(".series")).to_contain_text("The coin BTX is unknown")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator(ROWS)).to_have_count(3)


def test_the_overview_is_filtered_by_candles_verdict_and_staleness_and_sorted(open_page, filled):
    page = open_page(filled)
    expect(page.locator(ROWS)).to_have_count(3)
    page.get_by_label("Candles", exact=True).select_option("15m")
    assert coins(page) == ["PEPEUSDT 15m"]
    page.get_by_label("Candles", exact=True).select_option("")
    page.get_by_label("Verdict", exact=True).select_option("worse")
    expect(page.locator(ROWS)).to_have_count(0)
    page.get_by_label("Verdict", exact=True).select_option("better")
    expect(page.locator(ROWS)).to_have_count(3)
    page.get_by_label("only stale", exact=True).check()
    assert page.locator(f"{ROWS} .chip.bad", has_text="stale").count() == page.locator(ROWS).count()
    page.get_by_label("only stale", exact=True).uncheck()
    for order in page.get_by_label("Sort by", exact=True).locator("option").all():
        page.get_by_label("Sort by", exact=True).select_option(order.get_attribute("value"))
        expect(page.locator(ROWS)).to_have_count(3)
    page.get_by_label("Sort by", exact=True).select_option("range")
    assert coins(page)[-1] == "PEPEUSDT 15m"


def test_enter_in_the_search_or_on_a_row_opens_its_series(open_page, filled):
    page = open_page(filled)
    expect(page.locator(ROWS)).to_have_count(3)
    page.get_by_label("Coin", exact=True).fill("pepe")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chart path.box", state="attached")
    assert "#/series/PEPEUSDT/15m" in page.url
    assert "in 24 h" in page.locator(".headline").first.inner_text()
    assert re.search(
        r"Forecast from the close of .* UTC by version 1; stored .* ago, replayed",
        page.locator(".note:visible").first.inner_text(),
    )
    page.go_back()

    page.locator(f"{ROWS} a").first.press("Enter")
    page.wait_for_selector("#chart path.box", state="attached")
    assert "#/series/" in page.url


def test_candles_that_stand_still_are_told_in_the_overview_and_on_the_page(open_page, tmp_path):
    fill(tmp_path / "data", BTC, standing=9)
    fill(tmp_path / "data", ETH)
    page = open_page(tmp_path)
    expect(page.locator(ROWS)).to_have_count(2)
    chip = page.locator(f"{ROWS} .chip", has_text="stands still")
    expect(chip).to_have_count(1)
    assert chip.get_attribute("title").startswith("the last 9 candles before the forecast stand still")
    for coin, count in (("BTC", 1), ("ETH", 0)):
        page = open_chart(open_page, tmp_path, f"{coin}USDT/1h/spot")
        expect(page.locator(".chip", has_text="stands still")).to_have_count(count)
        expect(page.locator("p.note", has_text="The last 9 candles before the forecast")).to_have_count(count)


def traces(page):
    return page.evaluate("document.getElementById('chart').data.map(t => t.name)")


def view(page):
    return page.evaluate(
        "document.getElementById('chart')._fullLayout.xaxis.range"
        ".map(t => Date.parse(t.replace(' ', 'T').replace(/Z?$/, 'Z')))"
    )


def settled(page, before):
    """Wait until the chart shows another span than before; returns it."""
    deadline = time.monotonic() + WAIT_S
    while (now := view(page)) == pytest.approx(before, abs=1000):
        assert time.monotonic() < deadline, "the view stays"
        page.wait_for_timeout(50)
    page.wait_for_timeout(100)
    return now


def test_a_forecast_is_drawn_with_its_verdict_and_record(open_page, filled):
    page = open_chart(open_page, filled, "ETHUSDT/1h/spot")

    names = traces(page)
    assert {"candles", "volume", "90 %", "80 %", "50 %", "median", "actual close"} <= set(names)
    assert page.locator("#title").inner_text().startswith("ETHUSDT · 1h")
    finding = page.locator(".finding").inner_text()
    assert "better than the random walk" in finding
    assert "not in which direction" in finding
    assert page.locator("#chart").get_attribute("aria-label")
    assert page.locator(".rate b").all_inner_texts() == ["too few to tell"]
    assert "direction" not in page.locator(".rates").inner_text()
    assert page.locator("#record table caption").all_inner_texts()[0].startswith("Replays")
    numbers = page.locator("details tbody tr")
    assert numbers.count() == 10
    page.locator("summary").click()
    expect(numbers.first).to_be_hidden()


def test_the_chart_pans_and_zooms_by_keys_and_buttons(open_page, filled):
    page = open_chart(open_page, filled)
    first = now = view(page)
    chart = page.locator("#chart")

    for key, later in (("ArrowLeft", False), ("ArrowRight", True), ("Home", False), ("End", True)):
        chart.press(key)
        before, now = now, settled(page, now)
        assert (now[0] > before[0]) is later
    for key, wider in (("+", False), ("-", True)):
        chart.press(key)
        before, now = now, settled(page, now)
        assert (now[1] - now[0] > before[1] - before[0]) is wider
    for name, back in (("pan left", "pan right"), ("zoom in", "zoom out")):
        page.get_by_role("button", name=name, exact=True).click()
        now = settled(page, now)
        page.get_by_role("button", name=back, exact=True).click()
        now = settled(page, now)
    chart.press("ArrowLeft")
    now = settled(page, now)
    page.get_by_role("button", name="Reset view").click()
    assert settled(page, now) == pytest.approx(first, abs=1000)


def test_the_chart_pans_and_zooms_by_the_mouse_and_reads_prices_at_it(open_page, filled):
    page = open_chart(open_page, filled)
    first = view(page)
    box = page.locator("#chart").bounding_box()
    x, y = box["x"] + 200, box["y"] + 150
    page.mouse.move(x, y)
    expect(page.locator("#readout")).to_contain_text("open ")
    expect(page.locator(".cross.tag").first).to_be_visible()
    price, when = page.locator(".cross.tag").all_inner_texts()
    assert re.fullmatch(r"1\d\d,\d{3}\.\d\d", price)
    assert re.fullmatch(r"\d+ \w+,? \d\d:\d\d", when)
    page.mouse.down()
    page.mouse.move(x + 120, y, steps=4)
    page.mouse.up()
    dragged = settled(page, first)
    assert dragged[0] < first[0]
    page.mouse.wheel(0, -300)
    zoomed = settled(page, dragged)
    assert zoomed[1] - zoomed[0] < dragged[1] - dragged[0]
    page.mouse.dblclick(x, y)
    assert settled(page, zoomed) == pytest.approx(first, abs=1000)


def test_keys_read_the_candles_of_the_chart_aloud(open_page, filled):
    page = open_chart(open_page, filled)
    chart = page.locator("#chart")
    chart.press(".")
    told = page.locator("#readout").inner_text()
    chart.press(",")
    assert page.locator("#readout").inner_text() != told
    assert page.locator("#readout").get_attribute("aria-live") == "polite"


def test_more_candles_come_at_the_left_edge(open_page, recorded):
    page = open_chart(open_page, recorded)
    count = "document.getElementById('chart').data.find(t => t.type === 'candlestick').x.length"
    assert page.evaluate(count) == 500

    page.locator("#chart").press("Home")

    until(page, f"{count} === 1464")
    assert view(page)[0] == page.evaluate("Date.parse(document.getElementById('chart').data[0].x[964])")


def test_the_slider_lays_earlier_forecasts_over_what_came_true(open_page, filled):
    page = open_chart(open_page, filled)
    assert "actual close" not in traces(page)
    told = page.locator(".past output")
    assert re.match(r"16 of 16: issued .*, version 1, champion, replayed", told.inner_text())
    newest = page.locator("details caption").inner_text()
    cuts = page.locator("#title .chip", has_text="an earlier forecast")

    page.get_by_role("button", name="Earlier").click()
    expect(cuts).to_be_visible()
    until(page, "document.getElementById('chart').data.some(t => t.name === 'actual close')")
    assert page.locator("details caption").inner_text() != newest
    page.keyboard.press("[")
    expect(told).to_contain_text("14 of 16")
    page.keyboard.press("]")
    page.get_by_role("button", name="Later").click()
    expect(cuts).to_have_count(0)
    page.locator("#past").press("Home")
    expect(told).to_contain_text("1 of 16")
    page.locator("#past").press("ArrowRight")
    expect(told).to_contain_text("2 of 16")
    page.keyboard.press("n")
    expect(told).to_contain_text("16 of 16")
    expect(page.locator("details caption")).to_have_text(newest)
    page.locator("#past").fill("7")
    page.get_by_role("button", name="Newest").click()
    expect(page.get_by_role("button", name="Newest")).to_be_disabled()


def test_an_earlier_forecast_has_the_first_views_width_or_that_of_a_zoom(open_page, filled):
    page = open_chart(open_page, filled)
    first = view(page)
    page.keyboard.press("[")
    expect(page.locator(".past output")).to_contain_text("15 of 16")
    earlier = settled(page, first)
    assert earlier[1] - earlier[0] == pytest.approx(first[1] - first[0], abs=1000)
    page.get_by_role("button", name="zoom in").click()
    zoomed = settled(page, earlier)
    page.keyboard.press("[")
    expect(page.locator(".past output")).to_contain_text("14 of 16")
    now = settled(page, zoomed)
    assert now[1] - now[0] == pytest.approx(zoomed[1] - zoomed[0], abs=1000)
    issued = page.evaluate(
        "Date.parse(document.getElementById('chart').data.find((t) => t.name === 'median').x[0])"
    )
    assert now[0] < issued < now[1]


def test_live_and_replayed_forecasts_stand_apart_and_each_version_alone(open_page, recorded):
    page = open_chart(open_page, recorded)

    assert re.fullmatch(r"0\.\d{3}", page.locator("#ratio b").inner_text())
    assert "better than the random walk, 59 complete days" in page.locator("#ratio").inner_text()
    live, replays = page.locator("#record table").all()
    assert live.locator("tbody th").all_inner_texts() == [
        "all 1h champions",
        "this series, all versions",
        "version 2 (champion) alone",
    ]
    assert replays.locator("tbody th").all_inner_texts()[-1] == "version 1 (champion) alone"
    assert "too few to tell" not in live.inner_text()
    assert replays.locator("tbody td:nth-child(2)").all_inner_texts() == ["too few to tell"] * 3
    assert "are of version 2, which forecasts now" in page.locator("#record .note").first.inner_text()
    assert page.locator("#record .plot svg").count() >= 1


def test_coins_candle_lengths_and_old_links_lead_to_series(open_page, filled):
    page = open_page(filled, "/#ETHUSDT/1h")
    expect(page.locator("#title")).to_contain_text("ETHUSDT · 1h")
    assert "#/series/ETHUSDT/1h" in page.url

    page.get_by_label("Coin", exact=True).select_option("PEPEUSDT")
    expect(page.locator("#title")).to_contain_text("PEPEUSDT · 15m")
    assert re.search(r"0\.0000\d{5}", page.locator(".last").inner_text())
    assert page.locator(".segments [aria-current]").inner_text() == "15m"
    page.get_by_role("link", name="‹ Overview").click()
    expect(page.locator(ROWS)).to_have_count(3)
    page.evaluate("location.hash = '#/series/NOTUSDT/1h/spot'")
    expect(page.locator(".problem")).to_contain_text("The coin NOTUSDT is unknown")
    expect(page.locator(".problem")).to_contain_text("only BTCUSDT, ETHUSDT, PEPEUSDT")
    page.evaluate("location.hash = '#/series/BTCUSDT/4h/spot'")
    expect(page.locator(".problem")).to_contain_text("BTCUSDT 4h is not stored, only 1h")
    page.evaluate("location.hash = '#/series/%zz/1h/spot'")
    expect(page.locator(".problem")).to_contain_text("The coin %ZZ is unknown")
    page.evaluate("location.hash = '#/series'")
    expect(page.locator(".problem")).to_contain_text("names no series")
    assert page.locator("h1").count() == 1


def test_the_leaderboard_is_sorted_by_any_column_and_filtered(open_page, mixed):
    page = open_page(mixed, "/#/models")
    page.wait_for_selector("#leaderboard tbody tr")
    page.wait_for_selector("#leaderboard .plot svg")
    heads = page.locator("#leaderboard .sort")

    for i in range(heads.count()):
        heads.nth(i).click()
        assert page.locator("#leaderboard th[aria-sort]").count() == 1
    ratio = page.locator(".sort[data-key=ratio]")
    ratio.press("Enter")
    column = page.locator("#leaderboard tbody td:nth-child(3)")
    assert column.all_inner_texts() == sorted(column.all_inner_texts())
    ratio.press("Enter")
    assert column.all_inner_texts() == sorted(column.all_inner_texts(), reverse=True)
    assert page.locator(":focus").get_attribute("data-key") == "ratio"
    page.get_by_label("Candles", exact=True).select_option("1h")
    assert set(page.locator("#leaderboard tbody td:nth-child(2)").all_inner_texts()) == {"1h"}


def test_the_board_has_the_scores_of_chances(open_page, mixed):
    page = open_page(mixed, "/#/models")
    page.wait_for_selector("#leaderboard tbody tr")
    for name, what in SCORED.items():
        assert what in page.locator("#leaderboard th", has=page.locator(f"[data-key={name}]")).get_attribute(
            "title"
        )
    row = page.locator("#leaderboard tbody tr").filter(has_text="har").first
    shown = [row.locator(f"[data-label={name}]").inner_text() for name in SCORED]
    assert shown == ["0.9610", "0.9710", "–"]
    page.get_by_label("Candles", exact=True).select_option("1h")
    first = page.locator("#compare tbody tr").filter(has_text="first ratio").locator("td")
    expect(first).to_have_text(["✓ 0.9710", "1.0030"])
    expect(page.locator("#compare tbody")).not_to_contain_text("above ratio")


def test_two_models_stand_side_by_side_on_a_coin(open_page, mixed):
    page = open_page(mixed, "/#/models")
    page.wait_for_selector("#leaderboard tbody tr")
    page.wait_for_selector("#leaderboard .plot svg")
    page.get_by_label("Candles", exact=True).select_option("1h")
    expect(page.locator("#leaderboard .finding")).to_contain_text(
        "Of the champions, the models that serve now: 3 of 3"
    )
    page.wait_for_selector("#compare .plot svg")
    page.wait_for_selector("#compare thead th")  # the table follows the figure
    assert page.locator("#compare thead th").all_inner_texts()[1:] == ["har", "gru"]
    page.get_by_label("First model", exact=True).select_option("gru")
    expect(page.locator("#compare thead th").nth(1)).to_have_text("gru")
    assert page.locator("#compare thead th").nth(2).inner_text() == "har"
    page.get_by_label("Second model", exact=True).select_option("har")
    page.get_by_label("On", exact=True).select_option("ETHUSDT")
    expect(page.locator("#compare caption")).to_contain_text("on ETHUSDT 1h")
    assert page.locator("#compare tbody tr").first.locator("td").all_inner_texts() == ["1.0130", "✓ 0.9810"]
    inside = page.locator("#compare tbody tr").filter(has_text="inside 80 %").locator("td")
    assert inside.all_inner_texts() == ["79.7 %", "79.7 %"]
    settle(page)
    heights = page.locator("#leaderboard .plot").evaluate_all("all => all.map(e => e.clientHeight)")
    assert max(heights) < 256  # no empty space below a figure of few rows


def test_the_leaderboard_of_the_simulator_says_so(open_page, mixed):
    page = open_page(mixed, "/#/models")
    page.wait_for_selector("#leaderboard tbody tr")
    page.get_by_label("Market", exact=True).select_option("sim")
    expect(page.locator("#leaderboard tbody tr")).to_have_count(1)
    assert "simulated" in page.locator("#leaderboard tbody").inner_text()
    assert page.locator("#leaderboard .notice").is_visible()


def test_runs_are_listed_and_simulated_ones_named(open_page, mixed):
    page = open_page(mixed, "/#/runs")
    rows = page.locator("#newest-runs tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="simulated")).to_have_count(1)
    assert "No training is active" in page.locator("#active-trainings").inner_text()
    assert page.locator("#newest-runs .note code").inner_text() == "cpb ui"


def test_a_run_of_an_own_table_names_its_market_and_a_backtest_is_no_idle_machine(
    open_page, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    finish(start_parent("flow-own", {"market": "own"}).run_id)
    page = open_page(tmp_path, "/docs")
    with ShardsInUse(tmp_path / "data"):  # as a backtest does, which keeps no run in MLflow
        page.route("**/api/changes", late)  # what ends meanwhile is seen all the same
        page.goto(page.url.replace("/docs", "/#/runs"))
        expect(page.locator("#newest-runs tbody tr .chip")).to_have_text("own candles")
        expect(page.locator("#active-trainings")).to_contain_text("such as a backtest")
    come_back(page)
    expect(page.locator("#active-trainings")).to_contain_text("No training is active on this machine.")


def test_a_real_training_is_seen_at_work_and_its_progress_grows_by_itself(open_page, tmp_path):
    options = (
        "--arch gru --preset smoke --max-epochs 100000 --set patience=100000 --source sim --since 2025-01"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "train", "BTC", "1h", *options.split(), "--as-of", "2025-06-06"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CPB_HOME": str(tmp_path / "data")},
    )
    try:
        shown = open_page(tmp_path, "/#/runs").locator(".training")

        def epoch():
            return int(re.search(r"epoch (\d+) of at most 100000", shown.inner_text())[1])

        expect(shown).to_contain_text("of at most 100000")
        assert "gru · BTCUSDT · 1h · smoke" in shown.inner_text()
        assert shown.locator(".chip.sim").count() == 1
        first = epoch()
        for _ in range(WAIT_S):  # it asks every ten seconds
            if epoch() > first:
                break
            shown.page.wait_for_timeout(1000)
        assert epoch() > first
    finally:
        trainer.terminate()
        trainer.wait(60)
    come_back(shown.page)
    expect(shown.page.locator("#active-trainings")).not_to_contain_text("of at most")


def test_markets_are_never_mixed_on_the_page(open_page, mixed):
    page = open_page(mixed)
    expect(page.locator(ROWS)).to_have_count(3)
    assert page.locator(".chip.sim").count() == 0

    page.get_by_label("Market", exact=True).select_option("sim")

    expect(page.locator(ROWS)).to_have_count(1)
    assert page.locator(f"{ROWS} .chip.sim").count() == 1
    assert "generated these prices" in page.locator(".notice").inner_text()
    expect(page.locator(".problem")).to_have_count(0)  # simulated prices are never stale
    page.locator(f"{ROWS} a").click()
    expect(page.locator("#title")).to_contain_text("BTCUSDT (simulated market) · 1h")
    expect(page.locator(".finding")).to_contain_text("a demonstration only")
    assert "`" not in page.locator("main").inner_text()
    expect(page.locator(".note code").first).to_have_text(
        "cpb forecast --coins BTCUSDT --timeframes 1h --source sim"
    )
    page.wait_for_selector("#chart path.box", state="attached")
    with page.expect_download() as download:
        page.get_by_label("CSV of this forecast", exact=True).click()
    assert "simulated" in download.value.suggested_filename

    page.get_by_label("Market", exact=True).select_option("um")
    expect(page.locator(ROWS)).to_have_count(1)
    assert page.locator(".chip.sim").count() == 0


def test_whatever_is_shown_can_be_taken_along(open_page, filled):
    page = open_chart(open_page, filled)
    links = [a.get_attribute("href") for a in page.locator(".downloads a").all()]
    for view_ in ("#/", "#/models", "#/runs"):
        page.evaluate(f"location.hash = '{view_}'")
        page.wait_for_selector(f".view-{ {'#/': 'overview'}.get(view_, view_[2:]) } .downloads a")
        links += [a.get_attribute("href") for a in page.locator(".downloads a").all()]

    assert len(links) >= 12
    for href in links:
        answer = page.request.get(href)
        assert answer.status == 200, href
        kind = "text/csv" if "format=csv" in href else "application/json"
        assert answer.headers["content-type"].startswith(kind), href


def test_what_is_new_appears_and_the_view_stays(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_chart(open_page, home)
    told = page.locator(".past output")
    expect(told).to_contain_text("16 of 16")
    first = view(page)
    page.locator("#chart").press("ArrowLeft")
    moved = settled(page, first)

    close = write_candles(home / "data", BTC, rows=301, price=100.0)
    append(home / "data", "spot", "forecasts", {BTC: forecast_at(BTC, 300, close)})
    come_back(page)

    expect(told).to_contain_text("17 of 17")
    expect(page.locator("#status")).to_contain_text("Updated")
    assert view(page) == pytest.approx(moved, abs=1000)
    page.get_by_role("button", name="Earlier").click()
    expect(told).to_contain_text("16 of 17")
    write_candles(home / "data", BTC, rows=302, price=100.0)
    append(home / "data", "spot", "forecasts", {BTC: forecast_at(BTC, 299, close, version=2)})
    come_back(page)
    expect(told).to_contain_text("of 17")
    page.keyboard.press("1")
    expect(page.locator(ROWS)).to_have_count(1)


def test_a_hidden_tab_asks_nothing_and_a_gone_service_is_named(open_page, filled):
    page = open_page(filled)
    page.wait_for_selector(ROWS)
    asked = []
    page.on("request", lambda r: asked.append(r.url) if r.url.endswith("/api/changes") else None)

    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.away}); window.away = true")
    come_back(page)
    page.wait_for_timeout(300)
    assert asked == []
    page.evaluate("window.away = false")
    page.route("**/api/changes", lambda route: route.abort())
    with page.expect_request("**/api/changes"):
        come_back(page)
    expect(page.locator("#fault")).to_contain_text("is cpb serve still running?")
    page.unroute("**/api/changes")
    with page.expect_response("**/api/changes"):
        come_back(page)
    expect(page.locator("#fault")).to_have_count(0)
    open_page.faults[:] = [f for f in open_page.faults if "ERR_FAILED" not in f]


def test_a_page_opened_in_a_hidden_tab_is_of_now_when_it_is_shown(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_page(home, "/docs")
    page.add_init_script(
        "window.away = true; Object.defineProperty(document, 'hidden', {get: () => window.away})"
    )
    page.goto(page.url.replace("/docs", "/"))
    expect(page.locator(ROWS)).to_have_count(1)
    fill(home / "data", ETH)
    page.evaluate("window.away = false")
    come_back(page)
    expect(page.locator(ROWS)).to_have_count(2)


def test_what_could_not_be_loaded_after_a_change_is_asked_for_again(open_page, tmp_path):
    home = small_home(tmp_path, BTC)
    page = open_page(home)
    expect(page.locator(ROWS)).to_have_count(1)
    page.route("**/api/overview*", lambda route: route.abort())
    fill(home / "data", ETH)
    come_back(page)
    expect(page.locator("#fault")).to_be_visible()
    page.unroute("**/api/overview*")
    come_back(page)
    expect(page.locator(ROWS)).to_have_count(2)
    open_page.faults[:] = [f for f in open_page.faults if "ERR_FAILED" not in f]


def test_a_market_that_was_picked_stays_though_the_answer_of_the_one_before_comes_later(open_page, mixed):
    page = open_page(mixed)
    expect(page.locator(ROWS)).to_have_count(3)
    held = hold(page, "**/api/overview?market=spot")
    page.route(
        "**/api/changes",
        lambda route: route.fulfill(
            json=dict.fromkeys(["candles", "forecasts", "ledger", "board", "runs"], "x")
        ),
    )
    come_back(page)
    wait_for(page, held)
    page.get_by_label("Market", exact=True).select_option("sim")
    expect(page.locator(ROWS)).to_have_count(1)
    let(page, held[0])
    expect(page.locator(".notice").first).to_contain_text("Simulated market.")
    expect(page.locator(ROWS)).to_have_count(1)


def test_the_page_asks_every_ten_seconds(open_page, filled):
    page = open_page(filled, "/docs")
    page.clock.install()
    page.goto(page.url.replace("/docs", "/"))
    page.wait_for_selector(ROWS)

    with page.expect_request("**/api/changes"):
        page.clock.fast_forward(10_500)


def test_the_theme_is_chosen_remembered_and_drawn(open_page, filled):
    page = open_chart(open_page, filled, color_scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    ink = "document.getElementById('chart')._fullLayout.font.color"
    dark = page.evaluate(ink)

    page.get_by_label("Theme", exact=True).select_option("light")
    until(page, f"{ink} !== {dark!r}")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(page.get_by_label("Theme", exact=True)).to_have_value("light")
    page.wait_for_selector("#chart path.box", state="attached")
    page.keyboard.press("t")
    expect(page.get_by_label("Theme", exact=True)).to_have_value("dark")
    page.keyboard.press("t")
    expect(page.get_by_label("Theme", exact=True)).to_have_value("auto")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_keys_are_listed_and_can_be_switched_off(open_page, filled):
    page = open_page(filled)
    page.wait_for_selector(ROWS)
    for key, hash_ in (("2", "#/models"), ("3", "#/runs"), ("1", "#/")):
        page.keyboard.press(key)
        until(page, f"location.hash === '{hash_}'")
        until(page, "document.activeElement.id === 'view'")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "none"
    for name in ("Models", "Runs", "Overview"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("link", name=name, exact=True)).to_have_attribute("aria-current", "page")

    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("the forecast before")
    page.get_by_label("single-key shortcuts", exact=True).uncheck()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("2")
    assert page.url.endswith("#/")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    page.get_by_label("single-key shortcuts", exact=True).check()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()

    page.reload()
    page.wait_for_selector(ROWS)
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.locator(":focus").get_attribute("id") == "view"
    assert page.url.split("#")[-1] in ("/", page.url)


def test_before_the_first_forecast_it_says_what_to_do(open_page, tmp_path):
    page = open_page(tmp_path)
    expect(page.locator(".notice")).to_contain_text("cpb demo")
    for view_ in ("models", "runs"):
        page.evaluate(f"location.hash = '#/{view_}'")
        page.wait_for_selector(f".view-{view_}")
        assert page.locator("code").first.inner_text().startswith("cpb ")


def test_the_description_of_the_api_is_shown_and_can_be_tried(open_page, filled):
    page = open_page(filled, "/docs")

    page.wait_for_selector(".operation")
    paths = page.locator(".operation h2").all_inner_texts()
    assert {
        "GET /healthz",
        "GET /api/overview",
        "GET /api/changes",
        "GET /api/candles/{symbol}/{timeframe}",
    } <= set(paths)
    candles = page.locator(".operation").nth(paths.index("GET /api/candles/{symbol}/{timeframe}"))
    assert "from 1 to 5000" in candles.inner_text()
    page.set_viewport_size({"width": 390, "height": 800})
    # cards on a phone
    assert candles.locator(".scroll").first.evaluate("e => e.scrollWidth <= e.clientWidth")
    candles.locator("input[name=symbol]").fill("btc")
    candles.locator("input[name=timeframe]").fill("1h")
    candles.locator("input[name=limit]").fill("2")
    candles.locator("button").click()
    expect(candles.locator("pre")).to_contain_text("close_time")
    assert "200" in candles.locator("pre").inner_text()
