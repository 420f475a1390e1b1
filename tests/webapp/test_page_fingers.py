"""The chart under a finger on a phone, and what stands beside the fan."""

import re

import pytest

from tests.tools.browser import axe_findings, needs_browser
from tests.tools.fingers import Fingers
from tests.tools.page_browser import open_chart, until

pytestmark = [pytest.mark.slow, needs_browser]

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
RANGE = (
    "document.getElementById('chart')._fullLayout.xaxis.range"
    ".map((t) => Date.parse(t.replace(' ', 'T').replace(/Z?$/, 'Z')))"
)
MEDIAN = "document.getElementById('chart').data.find((t) => t.name === 'median').x.map(Date.parse)"
BOX = ".cross.box"


@pytest.fixture
def phone(open_page, touchable):
    """A page on a phone whose chart is on the screen; its fingers, and the plot's left, top, width and height."""
    page = open_chart(open_page, touchable, **PHONE)
    page.evaluate("document.getElementById('chart').scrollIntoView({block: 'center'})")
    page.wait_for_timeout(100)
    left, top, width, height = page.evaluate(
        "(({ xaxis: x, yaxis: y }, b) => [b.left + x._offset, b.top + y._offset, x._length, y._length])"
        "(document.getElementById('chart')._fullLayout, document.getElementById('chart').getBoundingClientRect())"
    )
    return page, Fingers(page), (left, top, width, height)


def scrolled(page):
    return page.evaluate("window.scrollY")


def test_a_tap_and_a_drag_show_crosshair_values_and_chance(phone):
    page, fingers, (left, top, width, height) = phone
    before, view = scrolled(page), page.evaluate(RANGE)
    fingers.tap(left + width / 4, top + height * 0.7)
    page.locator(f"{BOX} .chance").first.wait_for()
    price, when = page.locator(".cross.tag").all_inner_texts()
    box = page.locator(BOX)
    first, *chances = box.inner_text().split("\n")
    assert re.fullmatch(rf"{re.escape(price)} [+−]\d\.\d\d %", first)
    for words, what in zip(chances, ("reached by", "closes above at"), strict=True):
        assert re.fullmatch(rf"{what} 22:00: (under 1|\d+) %", words)
    assert page.locator("#readout").inner_text().startswith(f"{when}: open ")
    above = box.bounding_box()
    assert above["y"] + above["height"] < top + height * 0.7 - 30  # a finger does not cover it

    fingers.drag(
        [(left + width / 4, top + height * 0.7), (left + width * 0.8, top + height * 0.8)], lift=False
    )
    until(page, f"document.querySelector('{BOX} .chance')")
    lower, later = page.locator(".cross.tag").all_inner_texts()
    assert float(lower.replace(",", "")) < float(price.replace(",", ""))
    assert later != when
    assert "80 % of closes between" in page.locator("#readout").inner_text()
    fingers.drag([(left + width * 0.8, top + height * 0.2), (left + 9, top + 9), (left - 30, top + 60)])
    assert (scrolled(page), page.evaluate(RANGE)) == (before, view)
    assert page.locator(BOX).is_visible()  # it stays when the finger has gone
    box = page.locator(BOX).bounding_box()
    assert box["x"] >= left - 1
    assert box["x"] + box["width"] <= left + width + 1
    page.locator(".finding").tap()
    page.locator(BOX).wait_for(state="hidden")


def test_a_vertical_swipe_on_the_chart_scrolls_the_page(phone):
    page, fingers, (left, top, width, height) = phone
    before, view = scrolled(page), page.evaluate(RANGE)
    fingers.drag([(left + width / 2, top + height * 0.8), (left + width / 2, top + height * 0.2)])
    until(page, f"window.scrollY > {before} + 60")
    assert page.locator(BOX).is_hidden()
    assert page.evaluate(RANGE) == view


def test_two_fingers_zoom_and_pan(phone):
    page, fingers, (left, top, width, height) = phone
    start, end = page.evaluate(RANGE)
    middle, y = left + width / 2, top + height / 2
    fingers.drag([(middle - 30, y), (middle - 60, y)], [(middle + 30, y), (middle + 60, y)])
    until(page, f"Math.abs(({RANGE})[1] - ({RANGE})[0] - {(end - start) / 2}) < {(end - start) / 100}")
    now = page.evaluate(RANGE)
    assert sum(now) == pytest.approx(start + end, abs=(end - start) / 50)  # the middle stayed
    assert page.locator(BOX).is_hidden()

    fingers.drag([(middle - 30, y), (middle + 30, y)], [(middle + 30, y), (middle + 90, y)])
    by = 60 / width * (now[1] - now[0])
    until(page, f"Math.abs(({RANGE})[0] - {now[0] - by}) < {by / 10}")
    fingers.tap(middle, y)
    fingers.tap(middle, y)
    until(page, f"Math.abs(({RANGE})[0] - {start}) < 1000")


def test_the_phone_says_how_the_chart_is_used(phone):
    page, *_ = phone
    hint = page.locator("#chart-keys")
    assert "tap or a drag reads prices and chances" in hint.inner_text()
    assert "wheel" not in hint.inner_text()


@pytest.mark.parametrize("width", [1440, 390])
def test_the_fan_has_a_quarter_of_the_width_and_labels_stand_beside_it(open_page, touchable, width):
    page = open_chart(open_page, touchable, viewport={"width": width, "height": 900})
    start, end = page.evaluate(RANGE)
    fan = page.evaluate(MEDIAN)
    assert (fan[-1] - fan[0]) / (end - start) == pytest.approx(0.25, abs=0.001)
    assert fan[-1] < end

    labels = page.locator("#chart .annotation-text")
    assert sorted(labels.all_text_contents()) == [
        "10 %",
        "10 %",
        "25 %",
        "25 %",
        "reached: 5 %",
        "reached: 5 %",
    ]
    band = page.locator("#chart .scatterlayer .js-fill").first.bounding_box()
    assert band["height"] > 20
    for i in range(6):
        label = labels.nth(i).bounding_box()
        right = label["x"] > band["x"] + band["width"]
        clear = label["y"] > band["y"] + band["height"] or label["y"] + label["height"] < band["y"]
        assert right or clear, labels.nth(i).text_content()


def test_the_chance_stands_beside_the_mouse(open_page, touchable):
    page = open_chart(open_page, touchable, viewport={"width": 1440, "height": 900})
    chart = page.locator("#chart").bounding_box()
    for share in (0.3, 0.85):
        x, y = chart["x"] + share * chart["width"], chart["y"] + chart["height"] / 2
        page.mouse.move(x, y)
        page.locator(f"{BOX} .chance").first.wait_for()
        box = page.locator(BOX).bounding_box()
        apart = max(box["x"] - x, x - box["x"] - box["width"])
        assert 0 < apart < 40
        assert abs(box["y"] + box["height"] - y) < 40
        page.mouse.move(0, 0)
        page.locator(BOX).wait_for(state="hidden")


def test_axe_finds_nothing_serious_with_a_crosshair(phone):
    page, fingers, (left, top, width, height) = phone
    fingers.tap(left + width / 4, top + height / 2)
    page.locator(f"{BOX} .chance").first.wait_for()
    assert axe_findings(page) == []
