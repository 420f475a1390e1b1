"""`/api/touch`, `/api/first`, `/api/above`, and the chances of a touch in the chart."""

import re

import pytest

from tests.tools.browser import needs_browser
from tests.tools.page_browser import expect, open_chart, until
from tests.tools.page_service import client_of


@pytest.fixture
def ask(touchable, monkeypatch):
    """Return a function that asks a question about prices of BTC, or of another coin."""
    monkeypatch.chdir(touchable)
    with client_of(touchable) as client:
        yield lambda question, coin="BTC", **asked: client.get(f"/api/{question}/{coin}/1h", params=asked)


@pytest.fixture
def touch(ask):
    """Return a function that asks for chances of BTC, or of another coin."""
    return lambda price=(), coin="BTC": ask("touch", coin, price=price)


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
    assert re.match(r"price '.*' is no list of prices: ", answer.json()["detail"])


def test_of_a_target_and_a_stop_each_step_says_which_is_reached_first(ask, touch):
    newest = touch().json()
    last = newest["last_close"]
    answer = ask("first", target=1.02 * last, stop=0.99 * last).json()
    assert {name: answer[name] for name in newest if name not in ("touch", "stops")} == {
        name: newest[name] for name in newest if name not in ("touch", "stops")
    }
    assert answer.keys() - newest.keys() == {"first"}
    first = answer["first"]
    assert [len(first), first[0]["side"]] == [10, "long"]
    assert [first[0]["target"], first[0]["stop"]] == [1.02 * last, 0.99 * last]
    for chance in first:
        assert chance["target_first"] + chance["stop_first"] + chance["neither"] == pytest.approx(1)
    for name in ("target_first", "stop_first", "by"):
        assert [chance[name] for chance in first] == sorted(chance[name] for chance in first)
    assert 0 < first[-1]["target_first"] < first[-1]["stop_first"] < 1
    touched = touch(1.02 * last).json()["touch"][-1]["probability"]
    assert first[-1]["target_first"] <= touched
    short = ask("first", target=0.99 * last, stop=1.02 * last).json()["first"]
    assert short[-1]["side"] == "short"
    assert short[-1]["target_first"] > first[-1]["target_first"]


def test_above_is_the_chance_that_each_close_lies_above_a_price(ask, touch):
    last = touch().json()["last_close"]
    answer = ask("above", price=[f"{0.99 * last},{1.02 * last}", str(1.01 * last)]).json()
    assert answer.keys() >= {"issued_at", "model_version", "last_close", "note", "market"}
    assert (answer["note"], len(answer["above"])) == (None, 30)
    low, far, near = (chance["probability"] for chance in answer["above"][9::10])
    assert 0 < far < near < 0.5 < low < 1
    assert [c["by"] for c in answer["above"][:10]] == [c["by"] for c in touch(last).json()["touch"]]


@pytest.mark.parametrize(("target", "stop"), [(1.02, 1.01), (0.98, 0.99), (1, 0.99), (1.01, 1), (1, 1)])
def test_a_target_and_a_stop_on_one_side_or_at_the_close_are_422_with_a_sentence(ask, touch, target, stop):
    last = touch().json()["last_close"]
    answer = ask("first", target=target * last, stop=stop * last)
    assert answer.status_code == 422
    assert "do not lie on opposite sides of the last close" in answer.json()["detail"]
    assert "give one price above it and one below" in answer.json()["detail"]


@pytest.mark.parametrize("price", ["abc", "-5", "0", "nan", "inf", "1e400", "", "98,500", ["1", "x"]])
def test_an_impossible_target_and_a_missing_one_are_422_with_a_sentence(ask, price):
    answer = ask("first", target=price, stop=1)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("target ")
    assert ask("first", stop=1).json()["detail"] == "target is missing; /docs says what it is"
    missing = ask("above")
    assert (missing.status_code, missing.json()["detail"]) == (
        422,
        "price is missing; /docs says what it is",
    )


def test_without_a_table_first_has_a_note_and_above_its_chances(ask):
    answer = ask("first", "ETH", target=1e9, stop=1e-9).json()
    assert answer["first"] == []
    assert "no table of extremes" in answer["note"]
    above = ask("above", "ETH", price=98000).json()
    assert (len(above["above"]), above["note"]) == (10, None)
    assert ask("first", "XRP", target=1, stop=2).status_code == 404


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (390, "dark")])
def test_the_chart_marks_prices_and_tells_the_chance_at_the_crosshair(
    open_page, touchable, touch, width, theme
):
    page = open_chart(open_page, touchable, viewport={"width": width, "height": 900}, color_scheme=theme)
    chart, told = page.locator("#chart"), page.locator(".cross.box .chance").first
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
    before = page.locator(".cross.tag").first.inner_text()
    chart.press("ArrowDown")
    expect(page.locator(".cross.tag").first).not_to_have_text(before)
    lower, more = chance_at_the_crosshair()
    assert (lower < higher, more > less) == (True, True)

    page.get_by_role("button", name="‹ Earlier").click()
    until(page, "!document.getElementById('chart').layout.shapes.some((s) => s.xref === 'paper')")


@pytest.mark.parametrize("price", ["abc", "103,000", "103 000", "-5", "0", "nan", "inf", "98000,99000"])
@pytest.mark.parametrize("which", ["target", "stop"])
def test_a_target_or_stop_that_is_not_one_price_is_refused_with_a_sentence(ask, which, price):
    answer = ask("first", **({"target": 1, "stop": 1} | {which: price}))
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(
        f"{which} '{price}' is not one price: write a number without commas"
    )
