"""A real browser on served homes: one of each for a module's tests, and every fault of a page is a failure."""

import time
from contextlib import ExitStack, contextmanager

from tests.tools.browser import launch
from tests.tools.page_service import serve
from webapp.app import create_app

WAIT_S = 60
"""Longest wait for what a page is to show; only failures take it."""


def expect(locator):
    """Return playwright's expectation of a locator, which waits."""
    from playwright.sync_api import expect as of_playwright

    of_playwright.set_options(timeout=1000 * WAIT_S)
    return of_playwright(locator)


def until(page, condition):
    """Wait until an expression holds; the page's policy forbids `eval`, which `wait_for_function` needs."""
    deadline = time.monotonic() + WAIT_S
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def open_chart(open_page, home, series="BTCUSDT/1h/spot", **options):
    """Open the page of a series and wait until its chart stands; `options` as for `Pages`."""
    page = open_page(home, f"/#/series/{series}", **options)
    page.wait_for_selector("#chart path.box", state="attached")
    settle(page)
    return page


def settle(page):
    """Wait until nothing of the shown view is on its way: its parts are busy from the beginning until they stand."""
    expect(page.locator("[aria-busy]")).to_have_count(0)


def hold(page, *patterns):
    """Keep back the answers to some requests; returns them as they are made."""
    held = []

    def keep(route):
        held.append(route)

    for pattern in patterns:
        page.route(pattern, keep)
    return held


def wait_for(page, held, count=1):
    """Wait until so many requests are held; returns the newest."""
    deadline = time.monotonic() + WAIT_S
    while len(held) < count:
        assert time.monotonic() < deadline, held
        page.wait_for_timeout(20)
    return held[-1]


def let(page, route):
    """Answer a held request, and give the page time for what would follow."""
    with page.expect_response(route.request.url):
        route.continue_()
    page.wait_for_timeout(300)


class Pages:
    """Opens pages of homes that are served once; `faults` gathers errors on the console and foreign requests."""

    def __init__(self, browser, chdir):
        self.browser, self.chdir = browser, chdir
        self.faults, self._ports = [], {}
        self._served, self._open = ExitStack(), ExitStack()

    def __call__(self, folder, path="/", **options):
        """Open a path of a home's page; `options` are the browser context's: viewport, color_scheme …"""
        self.chdir(folder)  # MLflow's store is found from the working directory
        if folder not in self._ports:
            self._ports[folder] = self._served.enter_context(serve(create_app(folder / "data")))
        page = self._open.enter_context(self.browser.new_context(**options)).new_page()
        page.set_default_timeout(1000 * WAIT_S)
        page.on("console", lambda m: self.faults.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: self.faults.append(str(e)))
        page.on("request", lambda r: self._look_at(r.url))
        page.goto(f"http://127.0.0.1:{self._ports[folder]}{path}")
        return page

    def _look_at(self, url):
        if not url.startswith(("http://127.0.0.1:", "data:", "blob:")):
            self.faults.append(f"foreign: {url}")

    def close_pages(self):
        """Close what a test has opened."""
        self._open.close()

    def close(self):
        """Stop serving."""
        self._served.close()


@contextmanager
def browsing(chdir):
    """Start the browser; yields a `Pages`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        pages = Pages(browser, chdir)
        yield pages
        pages.close()
        browser.close()
