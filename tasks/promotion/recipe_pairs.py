"""The evidence store: a file per pair of a challenger's and a champion's recipe, in `HOME/ledger/evidence`.

A pair's rows are the pooled differences of live forecasts per origin, each added once and in order. The e-value is
always computed from all rows, so that it can be checked by hand, and a kill between two steps loses nothing. A switch
by a backtest leaves a pair too, so that coins follow it in the same way.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from schemas.errors import DamagedError
from schemas.handover import BacktestEvidence, PairEvidence, Record
from schemas.identity import INTERVAL_SECONDS, Market, Recipe, SeriesId, tree_of
from tasks.judging.evidence import alpha_share, e_process
from tasks.judging.gate import MAX_WAIT
from tasks.storage.records import SET_ASIDE, read_record, set_aside, write_record

log = logging.getLogger("cpb")

_NAME = re.compile(r"\d{3,}(~[^~]+){6}\.json")
"""`002~har~default~3f9a12c0d4e5~linear~default~0c1d2e3f4a5b.json`: number, challenger, incumbent."""

Row = tuple[datetime, int, float, int]
"""Origin (UTC close of the last known candle), number of pooled coins, difference, and how many of these coins lack
the challenger's forecast."""


class Pair(Record):
    """A challenger's recipe on trial against the recipe of a timeframe's champions.

    A row's difference is the mean over coins of (challenger's - champion's CRPS) / the reference's width at the origin.
    `share`: of alpha, as the `k`-th pair of its market and timeframe; `k` is 0 and `backtest` is set if a backtest
    decided, which spends nothing of it. `horizon`: candles until an origin's losses are known. `appointed_at`:
    wall-clock time, regardless of `--as-of`; only forecasts after it are evidence.
    `behind`: the symbols that kept their champion at the switch, and follow as soon as possible.
    """

    version: ClassVar[int] = 2

    market: Market
    timeframe: str
    challenger: str
    incumbent: str
    k: int
    share: float
    horizon: int
    appointed_at: datetime
    state: Literal["open", "switched", "dropped"] = "open"
    ended_at: datetime | None = None
    rows: tuple[Row, ...] = ()
    behind: tuple[str, ...] = ()
    backtest: BacktestEvidence | None = None

    @property
    def recipes(self) -> tuple[Recipe, Recipe]:
        """Challenger and incumbent."""
        return Recipe.parse(self.challenger), Recipe.parse(self.incumbent)

    @property
    def threshold(self) -> float:
        """The e-value at which the champions are switched."""
        return 1 / self.share

    @property
    def watermark(self) -> datetime | None:
        """The newest origin of the rows; None without rows."""
        return self.rows[-1][0] if self.rows else None

    @property
    def e_value(self) -> float:
        """The current evidence, 1 without rows; after it has crossed the threshold, its maximum.

        After an outage many origins are added together; hourly checks would have seen a crossing in their middle.
        """
        if not self.rows:
            return 1.0
        values = e_process(np.array([row[2] for row in self.rows]), lag=self.horizon)
        highest = float(values.max())
        return highest if highest >= self.threshold else float(values[-1])

    def evidence(self, now: datetime) -> PairEvidence:
        """Return the evidence for use in decisions."""
        rows, step = self.rows, timedelta(seconds=INTERVAL_SECONDS[self.timeframe])
        span = (rows[-1][0] - rows[0][0]) // step + 1 if rows else 1
        return PairEvidence(
            challenger=self.challenger, incumbent=self.incumbent, e=self.e_value, threshold=self.threshold,
            k=self.k, origins=len(rows), days=(now - self.appointed_at) / timedelta(days=1),
            missing=sum(row[3] for row in rows) / max(1, sum(row[1] for row in rows)),
            empty=1 - len(rows) / span if rows else 0.0,
        )  # fmt: skip


def pair_files(home: Path, market: str, timeframe: str = "*") -> list[Path]:
    """Return the files of a timeframe's pairs, or of all timeframes, oldest first; other files are ignored."""
    folders = _folder(home, market, "").parent.glob(f"interval={timeframe}")
    return sorted(path for folder in folders for path in folder.glob("*.json") if _NAME.fullmatch(path.name))


def about(path: Path) -> str:
    """Return the subject of a pair's file: the names of its folder and of the file."""
    return f"{path.parent.name}/{path.name}"


def pairs(home: Path, market: str, timeframe: str) -> list[Pair]:
    """Return every pair of a timeframe, oldest first.

    A damaged file is set aside, and its pair is not tried again. So is a file of the version that counted forecasts of
    test spans, which were public before the appointment: its trial ends.
    """
    found = []
    for path in pair_files(home, market, timeframe):
        try:
            found.append(read_record(path, Pair, of=about(path)))
        except DamagedError as error:
            set_aside(path, f"its trial is closed, and its evidence counts no more ({error})")
    return found


def tried(home: Path, market: str, timeframe: str) -> set[tuple[Recipe, Recipe]]:
    """Return the pairs that were tried live or are on trial, including pairs whose file was lost to damage."""
    known = {
        pair.recipes for pair in pairs(home, market, timeframe) if pair.k
    }  # also sets damaged files aside
    found = (SET_ASIDE.fullmatch(path.name) for path in _folder(home, market, timeframe).glob("*"))
    lost = {
        aside["name"] for aside in found if aside and _NAME.fullmatch(aside["name"]) and aside["name"] > "001"
    }
    return known | {_recipes(name.removesuffix(".json")) for name in lost}


def open_pair(
    home: Path, market: Market, timeframe: str, challenger: Recipe, incumbent: Recipe, horizon: int,
    now: datetime,
) -> Pair:  # fmt: skip
    """Return the record of a new pair with the next share of alpha, without storing it."""
    k = 1 + len(tried(home, market, timeframe))
    return Pair(
        market=market, timeframe=timeframe, challenger=str(challenger), incumbent=str(incumbent), k=k,
        share=alpha_share(k), horizon=horizon, appointed_at=now,
    )  # fmt: skip


def save(home: Path, pair: Pair) -> Pair:
    """Write a pair and return it."""
    path = _path(home, pair)
    write_record(path, pair, of=about(path), compact=True)
    return pair


def end(
    pair: Pair, state: Literal["switched", "dropped"], now: datetime, behind: Iterable[SeriesId] = ()
) -> Pair:
    """Return the ended pair; it stays in the store, so that it is never tried again."""
    left = tuple(sorted(series.symbol for series in behind))
    return pair.model_copy(update={"state": state, "ended_at": now, "behind": left})


def followed(ended: Iterable[Pair]) -> dict[Recipe, Pair]:
    """Return, for each recipe that lost a timeframe by a switch and has not won it back, that switch."""
    lost: dict[Recipe, Pair] = {}
    for pair in sorted(
        (p for p in ended if p.state == "switched" and p.ended_at), key=lambda p: str(p.ended_at)
    ):
        winner, loser = pair.recipes
        lost[loser] = pair
        lost.pop(winner, None)
    return lost


def take(
    pair: Pair,
    differences: Mapping[datetime, Mapping[str, tuple[float, bool]]],
    complete: Callable[[datetime, Iterable[str]], bool],
) -> Pair:
    """Return the pair with the new origins after its appointment added, in order, up to the first incomplete origin.

    Args:
        differences: origin -> coin -> scaled difference, and whether the challenger's forecast is missing.
        complete: whether to add an origin with these coins now (`complete_or_old`); otherwise later origins wait too.
    """
    rows = list(pair.rows)
    for origin in sorted(differences):
        coins = differences[origin]
        if not coins or origin <= (rows[-1][0] if rows else pair.appointed_at):
            continue
        if not complete(origin, coins):
            break
        values, missing = zip(*coins.values(), strict=True)
        rows.append((origin, len(coins), float(np.mean(values)), sum(missing)))
    return pair.model_copy(update={"rows": tuple(rows)})


def complete_or_old(
    expected: Iterable[str], due: timedelta, now: datetime
) -> Callable[[datetime, Iterable[str]], bool]:
    """Return the rule for live rows: an origin waits for all coins, at most a day after it can be scored."""
    wanted = set(expected)
    return lambda origin, coins: wanted <= set(coins) or now - origin - due >= MAX_WAIT


def _folder(home: Path, market: str, timeframe: str) -> Path:
    return tree_of(home, "ledger", market) / "evidence" / f"interval={timeframe}"


def _path(home: Path, pair: Pair) -> Path:
    one, other = (str(recipe).replace("/", "~") for recipe in pair.recipes)
    return _folder(home, pair.market, pair.timeframe) / f"{pair.k:03d}~{one}~{other}.json"


def _recipes(name: str) -> tuple[Recipe, Recipe]:
    parts = name.split("~")
    return Recipe(*parts[1:4]), Recipe(*parts[4:7])
