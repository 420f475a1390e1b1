"""`/api/touch`, and the chances of a touch in the chart."""

import re

import pytest

from tests.tools.browser import needs_browser
from tests.tools.page_browser import until
from tests.tools.page_service import client_of


@pytest.fixture
def touch(touchable, monkeypatch):
    """Return a function that asks for chances of BTC, or of another coin."""
    monkeypatch.chdir(touchable)
    with client_of(touchable) as client:
        yield lambda price=(), coin="BTC": client.get(f"/api/touch/{coin}/1h", params={"price": price})


def test_each_price_has_a_chance_by_each_step_and_each_chance_a_price(touch):
    newest = touch().json()
    last = newest["last_close"]
    answer = touch([f"{0.99 * last},{1.02 * last}", str(1.01 * last)]).json()

    assert (newest["touch"], newest["note"], newest["model_version"]) == ([], None, "cpb-BTCUSDT-1h/1")
    assert [chance["side"] for chance in answer["touch"][::10]] == ["down", "up", "up"]
    by = [chance["by"] for chance in answer["touch"][:10]]
    assert by == sorted({stop["by"] for stop in answer["stops"]} | set(by))
    assert newest["issued_at"] < by[0]
    chances = [chance["probability"] for chance in answer["touch"][:10]]
    assert 0 < chances[0] < chances[-1] < 1
    assert chances == sorted(chances)
    assert [(s["probability"], s["side"]) for s in answer["stops"]] == [
        (chance, side) for chance in (0.25, 0.1, 0.05) for side in ("up", "down")
    ]
    at_stops = touch([stop["price"] for stop in answer["stops"]]).json()["touch"][9::10]
    assert [c["probability"] for c in at_stops] == pytest.approx([s["probability"] for s in answer["stops"]])


def test_a_model_without_a_table_and_a_series_without_a_forecast_say_so(touch):
    answer = touch("98000", "ETH").json()
    assert (answer["touch"], answer["stops"]) == ([], [])
    assert "no table of extremes" in answer["note"]
    assert touch("98000", "XRP").status_code == 404


@pytest.mark.parametrize(
    "price", ["abc", "-5", "0", "nan", "inf", "1e400", "", "98000,", ["1", "x"], ",".join(["1"] * 1001)]
)
def test_an_impossible_price_is_refused_with_a_sentence(touch, price):
    answer = touch(price)
    assert answer.status_code == 422
    assert re.match(r"'.*' is no list of prices: ", answer.json()["detail"])


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_chart_marks_prices_and_tells_the_chance_at_the_crosshair(
    open_page, touchable, touch, width, theme
):
    page = open_page(
        touchable, "/#/series/BTCUSDT/1h/spot", viewport={"width": width, "height": 900}, color_scheme=theme
    )
    page.wait_for_selector("#chart path.box", state="attached")
    chart, told = page.locator("#chart"), page.locator(".cross.box .chance")
    marked = page.evaluate(
        "document.getElementById('chart').layout.shapes.filter((s) => s.xref === 'paper').map((s) => s.y0)"
    )
    assert marked == [stop["price"] for stop in touch().json()["stops"]]
    assert {"reached: 5 %", "10 %", "25 %"} <= set(
        page.locator("#chart .annotation-text").all_text_contents()
    )
    assert "with a chance of 5 %" in chart.get_attribute("aria-label")

    def chance_at_the_crosshair():
        told.wait_for()
        price = page.locator(".cross.tag").first.inner_text().replace(",", "")
        chance = touch(price).json()["touch"][-1]["probability"]
        assert re.fullmatch(r"reached by 22:00: (under 1|\d+) %", told.inner_text())
        assert told.inner_text().endswith(f": {100 * chance:.0f} %" if chance >= 0.005 else "under 1 %")
        return float(price), chance

    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 3)
    chance_at_the_crosshair()
    page.mouse.move(0, 0)
    told.wait_for(state="hidden")
    for key in (",", "ArrowUp", "ArrowUp"):
        chart.press(key)
    higher, less = chance_at_the_crosshair()
    assert "reached by" in page.locator("#readout").text_content()
    chart.press("ArrowDown")
    told.wait_for(state="hidden")
    lower, more = chance_at_the_crosshair()
    assert (lower < higher, more > less) == (True, True)

    page.get_by_role("button", name="‹ Earlier").click()
    until(page, "!document.getElementById('chart').layout.shapes.some((s) => s.xref === 'paper')")
