"""`HOME/alerts`: chances that people want to be told of, a line each, checked against the newest forecasts.

    # COIN TIMEFRAME, a question about prices, and a limit of its chance by the forecast's last step
    BTC 1h touch 98000 > 20 %
    BTC 1h above 105000 < 10 %
    um ETH 1h first 4200 3900 > 60 %

Prices and chances are read as `cpb forecast` reads them, and computed by `PriceChances` alone.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from cpbmodels.errors import grouped
from cpbmodels.files import read_regular
from schemas.coins import similar_coins
from schemas.errors import MINUTE, CpbError, MemberError, UsageError
from schemas.forecasting import parse_chances, parse_price
from schemas.identity import MARKETS, SPOT, SeriesId
from schemas.scope import ScopeSpec
from tasks.forecasting.price_chances import PriceChances, chances_of

ALERTS_FILE = "alerts"
_MAX_BYTES = 100_000
_LINE = re.compile(r"([^<>]+)([<>])([^<>]+)")
_TEXTS = {
    "touch": "that {0} is reached by {by}",
    "above": "of a close above {0} at {by}",
    "first": "that {0} is reached before {1} by {by}",
}
"""Question, as a method of `PriceChances` is called -> what its chance is of; {0} and {1} stand for its prices."""


@dataclass(frozen=True)
class Alert:
    """A line: the chance of a question about prices, and the limit above (`>`) or below (`<`) which it is told."""

    series: SeriesId
    question: str
    prices: tuple[float, ...]
    side: str
    limit: float

    @property
    def key(self) -> str:
        """The same for lines that ask the same, whatever stands around them in the file."""
        return f"alert {self.series} {self.question} {self.prices} {self.side} {self.limit}"

    def sentence(self, chances: PriceChances) -> str:
        """Return what is to be told, "" while the limit is not passed."""
        asked = self.prices if self.question == "first" else (self.prices,)
        last: dict[str, Any] = getattr(chances, self.question)(*asked)[-1]
        chance = last["target_first" if self.question == "first" else "probability"]
        if not (chance > self.limit if self.side == ">" else chance < self.limit):
            return ""
        of = _TEXTS[self.question].format(*map(grouped, self.prices), by=f"{last['by']:{MINUTE}} UTC")
        than = "more" if self.side == ">" else "less"
        return (
            f"{self.series}: the chance {of} is {100 * chance:.3g} %, {than} than {100 * self.limit:.6g} %; "
            f"the last close is {grouped(float(chances.chances.last_close))}"
        )


def parse_alert(text: str) -> Alert:
    """Return the alert of a line without its comment.

    Raises:
        UsageError: it is none, or can be read in two ways.
    """
    parts = _LINE.fullmatch(text)
    words = parts[1].split() if parts else []
    market = words.pop(0) if words and words[0] in MARKETS else SPOT
    number_of_prices = {"touch": 1, "above": 1, "first": 2}.get(words[2] if len(words) > 2 else "")
    if parts is None or number_of_prices is None or len(words) != 3 + number_of_prices:
        raise UsageError(
            f"{text[:80]!r} is no alert: write COIN TIMEFRAME and touch PRICE, above PRICE or first TARGET STOP, then "
            "> or < and a chance, as in `BTC 1h touch 98000 > 20 %`",
            code="alert",
        )
    coin, timeframe, question, *prices = words
    found = ScopeSpec(coins=coin, timeframes=timeframe, market=market).scope.series
    limits = parse_chances(" ".join(parts[3].split()).replace(" %", "%"), "limit")
    if len(found) != 1 or len(limits) != 1:
        raise UsageError(f"{text[:80]!r} names several series or limits: write a line for each", code="alert")
    return Alert(found[0], question, tuple(parse_price(p, question) for p in prices), parts[2], limits[0])


def check_alerts(
    home: Path,
    market: str,
    newest: Mapping[SeriesId, pl.DataFrame],
    now: datetime,
    known: Collection[SeriesId],
) -> tuple[dict[str, str], list[str]]:
    """Return a sentence for each alert whose limit or prices are passed, by its key, and for each line that fails.

    Args:
        market: of the forecasts; lines of other markets are left to their own.
        newest: the steps of each series' newest forecast.
        now: a forecast whose last candle has closed by then tells nothing (UTC).
        known: series that have a champion, or whose failure is told: a line of any other is a problem, and one of these
            without a newest forecast is left to the run that makes it.
    """
    told, problems = dict[str, str](), []
    symbols = {series.symbol for series in known}
    try:
        lines = [*_lines(home)]
    except OSError as error:
        return {}, [f"{home / ALERTS_FILE} is not read: {error.strerror or error}; make it a plain text file"]
    for number, text in lines:
        try:
            alert = parse_alert(text)
            series, rows = alert.series, newest.get(alert.series)
            if rows is None:
                if series.market == market and series not in known:
                    meant = "" if series.symbol in symbols else similar_coins(series.symbol, symbols)
                    raise MemberError(f"no champion forecasts {series}{meant}")
            elif rows["target_time"][-1] > now:
                chances = chances_of(home, series, rows)
                try:
                    told[alert.key] = alert.sentence(chances)
                except UsageError as passed:
                    # The close has passed its prices: news, and no failure of the run.
                    told[alert.key] = f"{str(passed).rstrip('.')}, in line {number} of {home / ALERTS_FILE}"
        except CpbError as error:
            problems.append(f"{home / ALERTS_FILE}, line {number}: {error}; correct it, or put # before it")
    return {key: sentence for key, sentence in told.items() if sentence}, problems


def _lines(home: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is no comment; none without the file."""
    try:
        content = read_regular(home / ALERTS_FILE, _MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return
    for number, line in enumerate(content.decode("utf-8-sig", errors="replace").splitlines(), 1):
        if text := line.partition("#")[0].strip():
            yield number, text
