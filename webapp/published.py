"""The page as files for a host of static files: what it asks of the service about one market, answered once.

`static/published.js` answers the page's questions from these files, and computes the chances of prices from the tables
of extremes. Figures have the names of their colours; the browser fills in those of its theme.
"""

from collections.abc import Iterator
from dataclasses import asdict
from importlib.resources import files as resources
from pathlib import Path
from threading import Event
from typing import Any

from pydantic_core import to_json

from schemas.errors import CpbError, counted
from schemas.failure import Failure
from schemas.identity import SIM, Market, SeriesId, market_option
from tasks.figures.themes import DATA_KEYS, THEMES
from tasks.hub.card import words_of
from webapp import all_series, answers, figures, one_series, runs, store_cache, stored
from webapp.cache import drop_changed
from webapp.formats import csv_of, json_of

CANDLES = 500
"""In the chart of a series."""
_DECISIONS = 20
"""That the page lists."""

_LATER = "this forecast is published without chances of prices: they come when the page is made again"
"""In the place of a command of this machine, by which the model and its newest forecast belong together again."""

_STATIC = Path(__file__).parent / "static"
_SERVED_ONLY = ("docs.html", "docs.js", "index.html")

_README = """---
title: How far prices may move
emoji: 📈
colorFrom: blue
colorTo: gray
sdk: static
app_file: index.html
license: mit
---

# How far prices may move

Forecasts of {series} of {market}, with the record of those that came before, made by **cpb**. The page is `index.html`;
its figures are in `api` as JSON, times in UTC. It asks no other host for anything.

**No model predicts whether a price rises or falls**: what they forecast is how far it may move. Not financial advice.

{data}. MIT licence, for page and forecasts; the charts are drawn by plotly.js (MIT).
"""


def page_files(home: Path, market: Market) -> tuple[dict[str, bytes], list[Failure]]:
    """Return the files of a market's page by their paths, and the series that are left out as damaged.

    The same store gives the same bytes: nothing in them says when they were made, or on which machine.

    Raises:
        CpbError: no series of the market has a forecast, or MLflow's store cannot be read.
    """
    drop_changed(home)
    store_cache.refresh(Event())
    if old := runs.champions_of(market)[2]:
        raise CpbError(old, code="store")
    overview = all_series.overview(home, market)
    # A visitor's clock says what is out of date, and no visitor has this machine's commands.
    rows = [row.model_copy(update={"stale": None, "command": ""}) for row in overview.rows if row.issued_at]
    if not rows:
        others = " or ".join(f"`--market {about.market}`" for about in overview.markets if about.forecasts)
        raise CpbError(
            f"no series of market {market} has a forecast that a page could show: make some with "
            f"`cpb forecast{market_option(market)}`{others and f', or publish those of {others}'}",
            code="no-forecast",
        )
    markets = [about for about in overview.markets if about.market == market]
    changes = {"rows": rows, "markets": markets, "note": None, "stale": None}
    overview = overview.model_copy(update=changes)
    made = {"overview.json": json_of(overview), "overview.csv": csv_of(overview)}
    for row in rows:
        made |= dict(_series_answers(home, SeriesId(row.market, row.symbol, row.timeframe)))
    made |= _board_answers(market)
    themes = {name: asdict(theme) for name, theme in THEMES.items()}
    made["themes.json"] = to_json({"themes": themes, "data_keys": sorted(DATA_KEYS)})
    words = words_of(market)
    readme = _README.format(series=counted(len(rows), "series"), market=words.of, data=words.data)
    damaged = [Failure.of(s, "publish", why) for s, why in stored.damaged(home).items() if s.market == market]
    return {f"api/{name}": data for name, data in made.items()} | _page(readme), damaged


def _series_answers(home: Path, series: SeriesId) -> Iterator[tuple[str, bytes]]:
    place = f"{series.symbol}/{series.timeframe}"
    forecast, decisions = one_series.forecast(home, series), runs.decisions(series, _DECISIONS)
    yield f"forecast/{place}.json", json_of(forecast)
    yield f"forecast/{place}.csv", csv_of(forecast)
    newest = one_series.forecasts(home, series, 1)
    empty = answers.Forecasts(**vars(series), forecasts=[])
    yield f"forecasts/{place}.json", json_of(empty, "forecasts", newest)
    table = one_series.table(home, series)
    later = {"note": _LATER} if table.note and "`" in table.note else {}
    yield f"extremes/{place}.json", json_of(table.model_copy(update=later))
    yield f"ledger/{place}.json", json_of(*one_series.scored(home, series, 0))
    yield f"decisions/{place}.json", json_of(decisions.model_copy(update={"note": None}))
    yield f"decisions/{place}.csv", csv_of(decisions)
    drawn = figures.forecast(home, series, CANDLES)
    yield f"figures/forecast/{place}.json", _figure(drawn, series.market)
    for chart in ("record", "coverage", "decisions"):
        drawn = figures.over_time(home, series, chart)
        yield f"figures/{chart}/{place}.json", _figure(drawn, series.market)


def _board_answers(market: Market) -> dict[str, bytes]:
    board = runs.leaderboard(market)
    made = {"leaderboard.json": json_of(board), "leaderboard.csv": csv_of(board)}
    for timeframe in {row["timeframe"] for row in board.rows}:
        made[f"figures/board.{timeframe}.json"] = _figure(figures.board(market, timeframe), market)
        made[f"figures/coins.{timeframe}.json"] = _figure(figures.coins(market, timeframe), market)
    return made


def _figure(drawn: dict[str, Any], market: Market) -> bytes:
    return json_of(answers.Figure(**figures.noted(drawn, market=market, simulated=market == SIM)))


def _page(readme: str) -> dict[str, bytes]:
    index = (_STATIC / "index.html").read_bytes().replace(b"<html ", b"<html data-published ", 1)
    plotly = resources("plotly") / "package_data" / "plotly.min.js"
    return {
        "index.html": index,
        "README.md": readme.encode(),
        ".nojekyll": b"",  # GitHub Pages: every file as it is
        "plotly/plotly.min.js": plotly.read_bytes(),
        **{f"static/{p.name}": p.read_bytes() for p in _STATIC.iterdir() if p.name not in _SERVED_ONLY},
    }
