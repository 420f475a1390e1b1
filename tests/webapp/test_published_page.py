"""The page as files: the same page on a host of static files, below any path, with nothing to ask."""

import csv
import io
import json
import re
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from flows.page import publish_page
from schemas.errors import CpbError
from tests.tools.browser import axe_findings, launch, needs_browser
from tests.tools.page_browser import WAIT_S, expect, settle, until
from tests.tools.page_service import client_of
from tests.tools.static_site import hosting
from tests.tools.webapp_store import BTC, ETH, LTC, track
from webapp.published import page_files

pytestmark = [pytest.mark.slow, needs_browser]

DESK = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
NEWEST = datetime(2025, 6, 9, 12, tzinfo=UTC)
"""The close that the newest forecast of BTC was made from; its last candle closes ten hours later."""


@pytest.fixture(scope="module")
def home(touchable, tmp_path_factory):
    """Three champions: of BTC; of ETH, without a table of extremes; of LTC, with one of before; a board of them."""
    folder = tmp_path_factory.mktemp("published") / "home"
    shutil.copytree(touchable, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(folder)
        hub = folder / "data" / "hub"
        hub.rename(folder / "hub")  # a home whose models no store knows takes none
        track(folder, [BTC, ETH, LTC])
        (folder / "hub").rename(hub)
        yield folder


@pytest.fixture(scope="module")
def site(home, tmp_path_factory):
    """The folder of the page, below two names of a host."""
    root = tmp_path_factory.mktemp("host")
    assert publish_page("spot", out=root / "below" / "page", nightly=True).failures == ()
    return root


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def open_site(site, chromium):
    """Return a function that opens an address of the page at an instant; whatever it asks lies below the page."""
    faults, contexts = [], []
    with hosting(site) as host:
        start = f"{host}/below/page/"

        def opened(path="", now=NEWEST + timedelta(minutes=5), **options):
            contexts.append(chromium.new_context(**options))
            page = contexts[-1].new_page()
            page.set_default_timeout(1000 * WAIT_S)
            page.clock.install(time=now)
            page.on("console", lambda m: faults.append(m.text) if m.type == "error" else None)
            page.on("pageerror", lambda e: faults.append(str(e)))
            page.on(
                "request",
                lambda r: None if r.url.startswith((start, "data:", "blob:")) else faults.append(r.url),
            )
            page.on("response", lambda r: faults.append(f"{r.status} {r.url}") if r.status >= 400 else None)
            page.goto(f"{start}{path}")
            return page

        yield opened
        for context in contexts:
            context.close()
    assert faults == []


@pytest.fixture
def service(home, monkeypatch):
    """Return a function that asks the service over the same home."""
    monkeypatch.chdir(home)
    with client_of(home) as client:
        yield lambda question, coin="BTC", **asked: client.get(f"/api/{question}/{coin}/1h", params=asked)


def read(page, question, coin="BTCUSDT", **asked):
    """What the page itself answers to a question; of a refusal, its status and sentence."""
    return page.evaluate(
        """async ([part, coin, asked]) => {
          const { get, ofSeries } = await import(new URL("static/api.js", document.baseURI));
          try { return await get(ofSeries(part, { symbol: coin, timeframe: "1h", market: "spot" }, asked)); }
          catch (error) { return { status: error.status, detail: error.message }; }
        }""",
        [question, coin, asked],
    )


def test_the_same_answers_as_the_service_of_prices_on_every_side(open_site, service):
    page = open_site("#/series/BTCUSDT/1h/spot")
    page.wait_for_selector("#chart path.box", state="attached")
    last = service("forecast").json()["last_close"]
    asked = [("touch", {})]
    moves = (1e-6, 0.5, 0.99, 1, 1.003, 1.3, 1e4)
    asked += [(part, {"price": last * move}) for part in ("touch", "above") for move in moves]
    asked += [
        ("first", {"target": last * target, "stop": last * stop})
        for target, stop in ((1.01, 0.99), (0.98, 1.02), (1.5, 0.999), (1e3, 1e-3), (0.9999, 1.0001))
    ]
    # refused: both on one side, at the close, no price
    asked += [
        ("first", {"target": last * target, "stop": last * stop})
        for target, stop in ((1, 0.9), (1, 1), (1.1, 1.2))
    ]
    texts = (("98,000", "1"), ("1", "x"), ("1", "it's"), ("nan", "1"))
    asked += [("first", {"target": target, "stop": stop}) for target, stop in texts]
    for question, prices in asked:
        for coin in ("BTCUSDT", "ETHUSDT", "LTCUSDT"):
            mine, answer = read(page, question, coin, **prices), service(question, coin, **prices)
            its = answer.json()
            if answer.status_code != 200:
                assert mine == {"status": answer.status_code, **its}
                continue
            assert {name: value for name, value in mine.items() if not isinstance(value, list)} == {
                name: value
                for name, value in its.items()
                if not isinstance(value, list) and name != "simulated"
            }
            ((name, listed),) = ((name, value) for name, value in its.items() if name == question)
            assert len(mine[name]) == len(listed) > 0 or its["note"] or not prices
            for lists in ("stops", question):
                for one, other in zip(mine.get(lists, []), its.get(lists, []), strict=True):
                    _same(one, other)


def _same(mine, its):
    assert mine.keys() == its.keys()
    for name, value in its.items():
        assert mine[name] == (pytest.approx(value, abs=1e-6, rel=1e-6) if isinstance(value, float) else value)


def open_series(open_site, series="BTCUSDT/1h/spot", **options):
    page = open_site(f"#/series/{series}", **options)
    page.wait_for_selector("#chart path.box", state="attached")
    settle(page)
    return page


@pytest.mark.parametrize("options", [DESK, PHONE])
def test_the_page_reads_as_the_served_one_at_any_width(open_site, service, options):
    page = open_site(**options)
    expect(page.get_by_role("link", name="BTCUSDT").first).to_be_visible()
    made = page.locator("#made")
    expect(made).to_have_text(
        re.compile(r"This page was made \d{4}-\d\d-\d\d \d\d:\d\d UTC \(.*\), refreshed by the night\.")
    )
    assert axe_findings(page) == []
    for gone in ("Runs", "JSON API"):
        expect(page.get_by_role("link", name=gone)).to_have_count(0)
    page.evaluate("location.hash = '#/models'")
    page.wait_for_selector("#leaderboard table")
    page.wait_for_selector("#leaderboard .js-plotly-plot")
    assert not page.get_by_text("Two models side by side").is_visible()
    assert axe_findings(page) == []
    page.evaluate("location.hash = '#/series/BTCUSDT/1h/spot'")
    page.wait_for_selector("#chart path.box", state="attached")
    settle(page)
    told = page.locator("#first-told")
    expect(told).to_have_text(re.compile("target first .* %, stop first .* %, neither .* % by 22:00"))
    assert axe_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator(".past").count() == 0
    assert "Older candles" not in page.locator("#chart-keys").inner_text()

    last = service("forecast").json()["last_close"]
    target, stop = round(1.006 * last), round(0.997 * last)
    page.fill("#target-price", f"{target:,}")
    page.fill("#stop-price", str(stop))
    page.press("#stop-price", "Enter")
    row = service("first", target=target, stop=stop).json()["first"][-1]
    until(page, "!document.querySelector('#first-told').hasAttribute('aria-busy')")
    expect(told).to_contain_text(f"stop first {round(100 * row['stop_first'])} %")
    assert f"target={target}" in page.url


def test_whatever_can_be_taken_along_is_a_file_of_the_page(open_site, service):
    page = open_series(open_site, **DESK)
    links = [a.get_attribute("href") for a in page.locator(".downloads a").all()]
    for view in ("#/", "#/models"):
        page.evaluate(f"location.hash = '{view}'")
        page.wait_for_selector(f".view-{view[2:] or 'overview'} .downloads a")
        links += [a.get_attribute("href") for a in page.locator(".downloads a").all()]
    answers = {href.partition("/api/")[2]: page.request.get(href) for href in links}
    assert {name: answer.status for name, answer in answers.items()} == dict.fromkeys(answers, 200)
    places = {part: f"{part}/BTCUSDT/1h" for part in ("forecast", "decisions")}
    tables = {part: part for part in ("overview", "leaderboard")} | places
    named = {f"{place}.{kind}" for place in tables.values() for kind in ("json", "csv")}
    assert answers.keys() == named
    # The rows of the service's own tables.
    for part, place in places.items():
        table = service(part, format="csv")
        assert table.headers["content-type"].startswith("text/csv")
        assert answers[f"{place}.csv"].text() == table.text
    rows = list(csv.DictReader(io.StringIO(answers["overview.csv"].text())))
    shown = json.loads(answers["overview.json"].text())["rows"]
    assert [row["symbol"] for row in rows] == [row["symbol"] for row in shown]
    assert [float(row["q90"]) for row in rows] == [row["q90"] for row in shown]


def test_every_picture_of_a_theme_and_another_market_or_the_runs_are_told(open_site):
    page = open_series(open_site, **DESK, color_scheme="dark")
    colour = "document.getElementById('chart')._fullLayout.font.color"
    assert page.evaluate(colour) == "#e6edf3"
    page.select_option("#theme", "light")
    until(page, f"{colour} === '#1c2733'")
    page.evaluate("location.hash = '#/series/BTCUSDT/1h/um'")
    expect(page.locator(".problem").first).to_have_text("This page shows the market spot alone.")
    page.evaluate("location.hash = '#/runs'")
    expect(page.locator(".view-runs .problem")).to_contain_text("was published without an answer to this")


def test_a_forecast_of_another_model_than_serves_has_no_chances_and_no_command(home, tmp_path):
    own = tmp_path / "home"
    shutil.copytree(home / "data", own / "data", ignore=shutil.ignore_patterns("hub"))
    answers = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        answers, _ = page_files(own / "data", "spot")
    table = json.loads(answers["api/extremes/BTCUSDT/1h.json"])
    assert table["distance"] is None
    assert (
        table["note"]
        == "this forecast is published without chances of prices: they come when the page is made again"
    )


def test_ages_are_counted_by_the_visitors_clock(open_site, site):
    about = json.loads((site / "below/page/page.json").read_text())
    made = datetime.fromisoformat(about["made"])
    page = open_site(now=made + timedelta(hours=3), **DESK)
    expect(page.locator("#made")).to_contain_text("UTC (3 hours ago), refreshed by the night.")
    assert not page.locator("#made.problem").count()
    later = open_site(now=made + timedelta(days=3), **DESK)
    expect(later.locator("#made.problem")).to_contain_text(
        "(3 days ago), refreshed by the night; nothing has refreshed it since, and prices and forecasts are of then."
    )
    expect(later.locator(".card.problem").first).to_contain_text(
        "stale; all candles of their newest forecasts have closed, and newer ones come when this page is made again"
    )
    assert later.locator("main code").count() == 0  # no command of a machine that is not the visitor's
    fresh = open_site(**DESK)  # five minutes after the newest forecast of BTC
    expect(fresh.get_by_role("link", name="BTCUSDT").first).to_be_visible()
    assert not fresh.get_by_text(re.compile(r"3 of 3 series are stale")).count()


def test_nothing_tells_of_the_machine_and_the_same_store_gives_the_same_files(home, site, tmp_path):
    page = site / "below/page"
    files = {p.relative_to(page).as_posix(): p.read_bytes() for p in page.rglob("*") if p.is_file()}
    assert {"index.html", "README.md", "SHA256SUMS", "page.json", ".nojekyll"} < files.keys()
    for name, data in files.items():
        assert str(home).encode() not in data, name
        assert str(tmp_path.parent.parent).encode() not in data, name
    told = [name for name in files if name.startswith("api/") and b"`cpb " in files[name]]
    assert told == ["api/leaderboard.json"]  # what its columns mean, which the page does not show
    head = files["README.md"].decode().split("---\n")[1]
    assert "sdk: static\n" in head
    assert "Not financial advice" in files["README.md"].decode()
    stamps = {name: (page / name).stat().st_mtime_ns for name in files}
    assert "nothing had changed" in publish_page("spot", out=page, nightly=True).place
    assert stamps == {name: (page / name).stat().st_mtime_ns for name in files}
    publish_page("spot", out=tmp_path / "again")
    again = {
        p.relative_to(tmp_path / "again").as_posix(): p.read_bytes()
        for p in (tmp_path / "again").rglob("*")
        if p.is_file()
    }
    assert {**again, "page.json": b""} == {**files, "page.json": b""}


def test_forty_series_take_at_most_15_megabytes(site):
    page = site / "below/page"
    sizes = {p.relative_to(page).as_posix(): p.stat().st_size for p in page.rglob("*") if p.is_file()}
    series = sum(
        size for name, size in sizes.items() if "BTCUSDT" in name
    )  # whose chart has 300 of 500 candles
    assert series > 50_000
    assert sum(sizes.values()) + 40 * series * 500 / 300 < 15e6


def test_a_market_without_forecasts_names_those_that_have_some(home, monkeypatch):
    monkeypatch.chdir(home)
    with pytest.raises(CpbError) as caught:
        page_files(home / "data", "um")
    assert str(caught.value).endswith(
        "make some with `cpb forecast --market um`, or publish those of `--market spot`"
    )
