"""Everybody can use the page: axe finds nothing serious, and nothing is cut on a phone."""

import pytest

from tests.tools.browser import axe_findings, needs_browser
from tests.tools.page_browser import settle

pytestmark = [pytest.mark.slow, needs_browser]

VIEWS = {
    "#/": ".series tbody tr",
    "#/series/BTCUSDT/1h/spot": "#chart path.box",
    "#/models": "#compare tbody tr",
    "#/runs": "#newest-runs tbody tr",
}


def show(page, view):
    page.evaluate(f"location.hash = '{view}'")
    page.wait_for_selector(VIEWS[view], state="attached")
    settle(page)


def show_cards(page):
    show(page, "#/")
    page.get_by_role("button", name="cards", exact=True).click()
    page.wait_for_selector(".tile")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_serious(open_page, mixed, theme, width):
    page = open_page(mixed, color_scheme=theme, viewport={"width": width, "height": 900})
    findings = []
    for view in VIEWS:
        show(page, view)
        if view == "#/runs":
            page.keyboard.press("?")
        findings += [(view, *finding) for finding in axe_findings(page)]
    page.keyboard.press("Escape")
    show_cards(page)
    findings += [("cards", *finding) for finding in axe_findings(page)]
    page.goto(page.url.split("#")[0] + "docs")
    page.wait_for_selector(".operation")
    findings += [("/docs", *finding) for finding in axe_findings(page)]

    assert findings == []


@pytest.mark.parametrize("width", [320, 390, 1440])
def test_nothing_sticks_out_sideways(open_page, mixed, width):
    page = open_page(mixed, viewport={"width": width, "height": 800})
    for view in (*VIEWS, "cards"):
        show_cards(page) if view == "cards" else show(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        outside = page.evaluate(
            """w => [...document.querySelectorAll('main *')]
                 .filter(e => !e.closest('.scroll, svg, .quiet') && e.checkVisibility())
                 .filter(e => e.getBoundingClientRect().right > w + 1).map(e => e.className || e.tagName)""",
            width,
        )
        assert outside == [], view


def test_on_a_phone_tables_are_cards_that_sort(open_page, mixed):
    page = open_page(mixed, "/#/models", viewport={"width": 390, "height": 800}, has_touch=True)
    page.wait_for_selector("#leaderboard tbody tr")

    assert page.locator("#leaderboard thead").is_hidden()
    page.get_by_label("Sort by").select_option("architecture")
    assert page.locator("#leaderboard tbody th").all_inner_texts() == ["gru", "gru", "har", "har"]
    assert (
        page.locator("#leaderboard td").first.evaluate("e => getComputedStyle(e, '::before').content")
        == '"candles"'
    )


def test_no_table_is_cut_on_a_desk(open_page, mixed):
    page = open_page(mixed, viewport={"width": 1440, "height": 800})
    for view in VIEWS:
        show(page, view)
        cut = page.locator(".scroll").evaluate_all(
            "all => all.filter(e => e.scrollWidth > e.clientWidth).map(e => e.ariaLabel)"
        )
        assert cut == [], view
