"""Target and stop on the page: two lines with handles, two fields, and which of the prices is reached first."""

import re
import shutil

import pytest

from tasks.forecasting.chain import append
from tasks.storage.records import file_digest
from tests.tools.browser import axe_findings, needs_browser
from tests.tools.fingers import Fingers
from tests.tools.page_browser import expect, hold, let, open_chart, settle, until, wait_for
from tests.tools.page_service import client_of
from tests.tools.webapp_store import BTC, forecast_at, write_candles

pytestmark = [pytest.mark.slow, needs_browser]

DESK = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
SHARE = r"(under 1|over 99|\d+) %"
HANDLES = "#chart [role=slider]"


@pytest.fixture
def service(touchable, monkeypatch):
    """Return a function that asks the API about BTC."""
    monkeypatch.chdir(touchable)
    with client_of(touchable) as client:
        yield lambda question, **asked: client.get(f"/api/{question}/BTC/1h", params=asked).json()


@pytest.fixture
def sentence(service):
    """Return a function that says what the page is to say of a target and a stop."""

    def of(target, stop):
        last = service("first", target=target, stop=stop)["first"][-1]
        exact = [100 * last[name] for name in ("target_first", "stop_first", "neither")]
        return exact, last["side"]

    return of


def prices(page):
    return [
        float(page.locator(f"#{which}-price").input_value().replace(",", "")) for which in ("target", "stop")
    ]


def told(page, by="22:00"):
    """The shares of the sentence, in per cent, once it is there; `under 1 %` is 0."""
    line = page.locator("#first-told")
    until(page, "!document.querySelector('#first-told').hasAttribute('aria-busy')")
    found = re.fullmatch(
        rf"target first {SHARE}, stop first {SHARE}, neither {SHARE} by {by}", line.inner_text()
    )
    assert found, line.inner_text()
    return [int({"under 1": "0", "over 99": "100"}.get(share, share)) for share in found.groups()]


def words(share):
    return {0: "under 1", 100: "over 99"}.get(share, share)


def check(page, sentence, side="long"):
    """The page says what the service says of the prices in the fields, beside lines and in the sentence."""
    shares = told(page)
    exact, of_side = sentence(*prices(page))
    assert of_side == side
    assert shares == pytest.approx(exact, abs=1)
    assert sum(shares) in (99, 100)  # 99: one of them is under 1 %
    for which, share in zip(("target", "stop"), shares, strict=False):
        label = page.locator(f".level-label.{which}")
        assert label.text_content() == f"{which.title()} first {words(share)} %"
    return shares


def middle(page, which):
    box = page.locator(f".handle.{which}").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize("options", [DESK, PHONE])
def test_the_first_lines_are_a_stop_of_5_per_cent_and_a_target_twice_as_far(
    open_page, touchable, service, sentence, options
):
    page = open_chart(open_page, touchable, **options)
    last, stops = (service("touch")[name] for name in ("last_close", "stops"))
    low, high = (
        s["price"] for side in ("down", "up") for s in stops if (s["probability"], s["side"]) == (0.05, side)
    )
    target, stop = prices(page)
    assert stop == pytest.approx(low, abs=5)
    assert target == pytest.approx(last + 2 * (last - low), abs=10)
    assert check(page, sentence)[1] in (4, 5, 6)
    hint = page.locator("#chart-keys")
    expect(hint).to_contain_text(
        "handles there move target and stop; a candle that reaches both counts for the stop"
    )
    for which, price in (("target", target), ("stop", stop)):
        handle = page.locator(f".handle.{which}")
        assert handle.inner_text() == f"{price:,.2f}"
        assert handle.get_attribute("aria-valuetext").startswith(f"{price:,.2f} (")
        assert abs(middle(page, which)[1] - page.locator(f".level.{which}").bounding_box()["y"]) < 3

    page.get_by_role("button", name="Short", exact=True).click()
    target, stop = prices(page)
    assert stop == pytest.approx(high, abs=5)
    assert target == pytest.approx(last - 2 * (high - last), abs=10)
    assert page.get_by_role("button", name="Short", exact=True).get_attribute("aria-pressed") == "true"
    check(page, sentence, "short")


def test_a_line_is_dragged_by_the_mouse_and_the_address_keeps_it(open_page, touchable, sentence):
    page = open_chart(open_page, touchable, **DESK)
    before, shares = prices(page), check(page, sentence)
    view = page.evaluate("document.getElementById('chart')._fullLayout.xaxis.range")
    x, y = middle(page, "target")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 300, y + 60, steps=6)
    page.mouse.move(x - 300, y + 80, steps=2)
    page.mouse.up()
    after = prices(page)
    assert after[0] < before[0]
    assert after[0] % 10 == pytest.approx(0)
    assert after[1] == before[1]
    assert check(page, sentence)[0] > shares[0]
    assert abs(middle(page, "target")[1] - y - 80) < 3
    assert page.evaluate("document.getElementById('chart')._fullLayout.xaxis.range") == view
    until(page, f"location.hash.endsWith('?target={after[0]:.0f}&stop={after[1]:.0f}')")
    page.reload()
    page.wait_for_selector("#chart path.box", state="attached")
    assert prices(page) == after
    check(page, sentence)


def test_a_line_is_dragged_by_a_finger_while_the_page_stands(open_page, touchable, sentence):
    page = open_chart(open_page, touchable, **PHONE)
    page.evaluate("document.getElementById('chart').scrollIntoView({block: 'center'})")
    page.wait_for_timeout(100)
    before, shares, scrolled = prices(page), check(page, sentence), page.evaluate("window.scrollY")
    x, y = middle(page, "stop")
    Fingers(page).drag([(x, y + 14), (x - 10, y - 30)])  # beside the handle, where a finger may miss it
    assert prices(page)[0] == before[0]
    assert prices(page)[1] > before[1]
    assert check(page, sentence)[1] > shares[1]
    assert page.evaluate("window.scrollY") == scrolled
    assert page.locator(".cross.box").is_hidden()


def test_a_line_is_moved_by_keys(open_page, touchable, sentence):
    page = open_chart(open_page, touchable, **DESK)
    view = page.evaluate("document.getElementById('chart')._fullLayout.xaxis.range")
    page.locator("#chart").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Target"
    (target, stop) = prices(page)
    page.keyboard.press("ArrowUp")
    (higher, _) = prices(page)
    assert 0 < higher - target <= 150
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert prices(page) == [higher - 200, stop]
    page.keyboard.press("Tab")
    page.keyboard.press("PageDown")
    assert 900 < stop - prices(page)[1] <= 1000
    page.keyboard.press("PageUp")
    page.keyboard.press("ArrowRight")
    check(page, sentence)
    slider = page.locator(":focus")
    assert slider.get_attribute("aria-valuetext").startswith(f"{prices(page)[1]:,.2f} (−")
    assert float(slider.get_attribute("aria-valuenow")) == prices(page)[1]
    assert page.evaluate("document.getElementById('chart')._fullLayout.xaxis.range") == view
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_contain_text("ten steps at once")


def test_a_moved_line_stops_at_the_last_close(open_page, touchable, service, sentence):
    page = open_chart(open_page, touchable, **DESK)
    last = service("touch")["last_close"]
    x, y = middle(page, "target")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, middle(page, "stop")[1], steps=4)
    page.mouse.up()
    assert last < prices(page)[0] <= last + 10
    for _ in range(6):
        page.locator(".handle.stop").press("PageUp")
    assert last - 10 <= prices(page)[1] < last
    check(page, sentence)


def test_a_typed_price_moves_the_line_and_a_bad_one_gets_the_services_sentence(
    open_page, touchable, service, sentence
):
    page = open_chart(open_page, touchable, **DESK)
    last = service("touch")["last_close"]
    target, stop, line = (
        page.get_by_label("Target", exact=True).and_(page.locator("input")),
        page.locator("#stop-price"),
        page.locator("#first-told"),
    )
    before = middle(page, "target")[1]
    target.fill(f"{last * 1.01:,.0f}")
    target.press("Enter")
    assert prices(page)[0] == round(last * 1.01)
    assert middle(page, "target")[1] > before
    check(page, sentence)

    loss = prices(page)[1]
    stop.fill("abc")
    stop.press("Enter")
    expect(line).to_contain_text("Stop 'abc' is not one price: write a number without commas")
    assert stop.get_attribute("aria-invalid") is not None
    stop.fill("")
    stop.press("Enter")
    assert prices(page)[1] == loss
    check(page, sentence)
    stop.fill(f"{last * 1.02:.2f}")
    stop.press("Tab")
    expect(line).to_contain_text("do not lie on opposite sides of the last close")
    assert stop.get_attribute("aria-invalid") is None
    assert page.locator(".level-label.stop").text_content() == "Stop"
    assert page.locator(".sides [aria-pressed=true]").count() == 0
    stop.fill(f"{last}")
    stop.press("Enter")
    expect(line).to_contain_text("do not lie on opposite sides")
    target.fill(f"{last * 0.99:.2f}")
    target.press("Enter")
    stop.fill(f"{last * 1.01:.2f}")
    stop.press("Enter")
    expect(line).to_contain_text("target first")
    check(page, sentence, "short")

    target.fill("1")
    target.press("Enter")  # far outside: the chart stays, the handle waits at its edge
    expect(page.locator(".handle.target")).to_have_text("↓ 1.00")
    assert page.locator(".level.target").is_hidden()
    assert check(page, sentence, "short")[0] == 0
    page.get_by_role("button", name="Long", exact=True).click()
    expect(page.locator(".level.target")).to_be_visible()
    told(page)
    # The browser's own line of a question that was refused.
    assert all("422" in fault for fault in open_page.faults)
    assert len(open_page.faults) >= 2
    open_page.faults.clear()


def test_lines_are_of_the_newest_forecast_and_what_was_chosen_stays(open_page, touchable, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(touchable, home, ignore=shutil.ignore_patterns("mlruns", "cpb-store.json"))
    page = open_chart(open_page, home, **DESK)
    page.locator(".handle.target").press("ArrowUp")
    chosen, shares = prices(page), told(page)
    page.get_by_role("button", name="‹ Earlier").click()
    expect(page.locator(".first")).to_be_hidden()
    expect(page.locator(HANDLES).first).to_be_hidden()
    page.get_by_role("button", name="Newest").click()
    expect(page.locator(".first")).to_be_visible()
    assert (prices(page), told(page)) == (chosen, shares)

    page.locator("#stop-price").fill("9")  # and does not finish
    close = write_candles(home / "data", BTC, rows=301)
    weights = file_digest(home / "data" / "hub" / BTC.label / BTC.timeframe / "model.safetensors")
    append(
        home / "data", "spot", "forecasts", {BTC: forecast_at(BTC, 300, close, sigma=0.02, weights=weights)}
    )
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#first-told")).to_contain_text("by 23:00")
    assert page.locator("#first-told").inner_text().startswith("target first ")
    assert prices(page) == [chosen[0], 9]
    page.locator("#stop-price").blur()
    assert told(page, "23:00")[1] == 0


def test_until_the_chances_come_the_sentence_says_that_it_is_loading(open_page, touchable):
    page = open_chart(open_page, touchable, **DESK)
    page.get_by_role("button", name="‹ Earlier").click()
    expect(page.locator(".first")).to_be_hidden()
    held = hold(page, "**/api/first/**")
    page.get_by_role("button", name="Newest").click()
    line = page.locator("#first-told")
    expect(line).to_have_text("Loading …")
    expect(line).to_have_attribute("aria-busy", "true")
    wait_for(page, held).continue_()
    told(page)


def test_the_marks_and_lines_of_the_newest_forecast_do_not_come_over_an_earlier_one(open_page, touchable):
    page = open_chart(open_page, touchable, **DESK)
    page.get_by_role("button", name="‹ Earlier").click()
    expect(page.locator(".first")).to_be_hidden()
    settle(page)
    held = hold(page, "**/api/touch/**")
    page.get_by_role("button", name="Newest").click()
    wait_for(page, held)
    with page.expect_response("**/api/figures/forecast/**"):
        page.get_by_role("button", name="‹ Earlier").click()
    let(page, held[0])
    expect(page.locator(".first")).to_be_hidden()
    expect(page.locator(HANDLES).first).to_be_hidden()
    marks = (
        "document.getElementById('chart')._fullLayout.shapes.filter((s) => s.xsizemode === 'pixel').length"
    )
    assert page.evaluate(marks) == 0


def test_chances_that_cannot_be_had_are_told(open_page, touchable):
    page = open_page(touchable, "/docs")
    page.route("**/api/touch/**", lambda route: route.fulfill(status=500, body="boom"))
    page.goto(page.url.replace("/docs", "/#/series/BTCUSDT/1h/spot"))
    expect(page.locator("#first-told")).to_have_text(
        "The service failed (500); the log of cpb serve has the details."
    )
    expect(page.locator("#chart path.box").first).to_be_attached()
    open_page.faults[:] = [f for f in open_page.faults if not f.startswith("Failed to load resource")]


@pytest.mark.parametrize(
    ("coin", "note"),
    [("LTCUSDT", "which of two prices is reached first"), ("ETHUSDT", "no table of extremes")],
)
def test_a_model_of_before_has_no_lines_and_says_so(open_page, touchable, coin, note):
    page = open_chart(open_page, touchable, f"{coin}/1h/spot", **DESK)
    expect(page.locator("#first-told")).to_contain_text(note)
    assert "train it again" in page.locator("#first-told").inner_text()
    assert page.locator(HANDLES).count() == 0 or page.locator(HANDLES).first.is_hidden()
    assert page.locator("#target-price").is_hidden()
    chart = page.locator("#chart").bounding_box()
    page.mouse.move(chart["x"] + chart["width"] / 3, chart["y"] + chart["height"] / 3)
    expect(page.locator(".cross.box")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("options", [DESK, PHONE])
def test_axe_finds_nothing_serious_and_nothing_is_cut(open_page, touchable, theme, options):
    page = open_chart(open_page, touchable, color_scheme=theme, **options)
    told(page)
    assert axe_findings(page) == []
    width = options["viewport"]["width"]
    for part in page.locator(f"{HANDLES}, .first, .first input, .first button").all():
        box = part.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
        assert box["height"] >= 24


def test_the_three_shares_add_up_to_100(open_page, touchable):
    page = open_page(touchable)
    for target, stop, said in (
        (0.305, 0.445, "target first 31 %, stop first 44 %, neither 25 % by 22:00"),
        (0.3333, 0.3333, "target first 33 %, stop first 33 %, neither 34 % by 22:00"),
        (0.001, 0.0, "target first under 1 %, stop first under 1 %, neither over 99 % by 22:00"),
        (0.125, 0.875, "target first 13 %, stop first 87 %, neither under 1 % by 22:00"),
    ):
        row = {
            "target_first": target,
            "stop_first": stop,
            "neither": 1 - target - stop,
            "by": "2026-11-29T22:00:00Z",
        }
        words = page.evaluate(
            "async (row) => (await import('/static/words.js')).firstWords(row, Date.parse(row.by) - 36e6).sentence",
            row,
        )
        assert words == said
    far = page.evaluate(
        "async () => (await import('/static/words.js')).byTime('2026-11-29T22:00:00Z', Date.UTC(2026, 10, 28))"
    )
    assert far == "29 Nov, 22:00"


def test_a_crosshair_goes_when_the_scale_moves_under_it(open_page, touchable):
    page = open_chart(open_page, touchable, **DESK)
    chart = page.locator("#chart").bounding_box()
    crosshair = page.locator(".cross.box")
    far = prices(page)[0] * 1.03
    for moves in (
        lambda: [page.fill("#target-price", f"{far:.2f}"), page.press("#target-price", "Enter")],
        lambda: page.set_viewport_size({"width": 1300, "height": 900}),
    ):
        page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + chart["height"] / 3)
        page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + chart["height"] / 3 + 5)
        expect(crosshair).to_be_visible()
        moves()
        expect(crosshair).to_be_hidden()
