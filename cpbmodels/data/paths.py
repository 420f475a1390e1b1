"""Joint paths over the horizon: a Gaussian copula that puts dependence between the quantiles of single steps and coins.

Steps: the rank correlation of a model's own errors on its validation windows, which `config.json` holds. Without it,
the steps depend as those of a random walk do: independent steps would be wrong for every price (docs/decisions.md).
Coins: the rank correlation of several models' errors at equal times. A path's standard normal scores are z[coin, step]
with correlation coins[a, b] x steps[i, j]; its prices are the quantiles at the levels Phi(z), so that the margins are
the models' own. Schefzik, Thorarinsdottir and Gneiting (2013), Statistical Science 28. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from cpbmodels.data.student_t import QUANTILES
from cpbmodels.errors import ModelError

if TYPE_CHECKING:
    import polars as pl

MAX_STEPS = 160
"""Longest horizon whose correlation is kept: 12,720 numbers, some 165 kB of `config.json`."""
MAX_PATHS = 100_000
MIN_WINDOWS = 30
"""Fewest windows, or common times of two coins, from which a correlation is estimated."""
LEARNED, RANDOM_WALK = "learned", "random walk"

SCORES = np.array([NormalDist().inv_cdf(float(level)) for level in QUANTILES])
"""The 19 levels as standard normal scores."""


@dataclass(frozen=True)
class Margins:
    """Inputs for drawing one coin's paths.

    close: float64 [H, 19], the close's quantiles, in prices. steps: its model's `step_correlation`, None if it has
    none.
    """

    symbol: str
    close: np.ndarray
    steps: Sequence[float] | None


@dataclass(frozen=True)
class Paths:
    """Joint paths of S coins over H steps.

    close: float64 [S, n, H], prices; path i of every coin belongs to the same scenario.
    steps: for each coin where the dependence between its steps comes from: `learned` (its model's own errors) or
        `random walk` (the model holds none).
    independent: symbols whose paths depend on no other coin's, because no correlation between coins is known.
    """

    symbols: tuple[str, ...]
    close: np.ndarray
    steps: tuple[str, ...]
    independent: tuple[str, ...]
    issued_at: datetime | None
    step_seconds: int

    def to_frame(self) -> pl.DataFrame:
        """Rows `symbol issued_at path step target_time close`, S x n x H; path and step count from 0 and 1.

        Raises:
            ModelError: the series have no times.
        """
        import polars as pl

        if self.issued_at is None:
            raise ModelError("The paths have no times: make the series with Series.from_frame.")
        coins, count, horizon = self.close.shape
        issued = pl.lit(self.issued_at).cast(pl.Datetime("us", "UTC"))
        frame = pl.DataFrame(
            {
                "symbol": pl.Series(self.symbols).gather(np.repeat(np.arange(coins), count * horizon)),
                "path": np.tile(np.repeat(np.arange(count), horizon), coins),
                "step": np.tile(np.arange(1, horizon + 1), coins * count),
                "close": self.close.ravel(),
            }
        )
        target = issued + pl.duration(seconds=pl.col("step") * self.step_seconds)
        return frame.select(
            "symbol", issued.alias("issued_at"), "path", "step", target.alias("target_time"), "close"
        )

    def __repr__(self) -> str:
        """One line: how many, and where the dependence comes from."""
        coins, count, horizon = self.close.shape
        between = f", independent coins: {', '.join(self.independent)}" if self.independent else ""
        steps = ", ".join(sorted(set(self.steps)))
        return f"<Paths: {coins} coins, {count:,} paths, {horizon} steps ({steps}){between}>"


def draw_paths(
    margins: Sequence[Margins],
    n: int,
    seed: int,
    issued_at: datetime | None,
    step_seconds: int,
    coins: Mapping[str, Any] | None = None,
) -> Paths:
    """Draw n joint paths of coins with a common origin and horizon.

    Args:
        coins: `symbols` and `correlation`, as `correlate_coins` returns them; None: coins are independent.

    Raises:
        ModelError: n is out of range, or `coins` is not such an entry.
    """
    if not isinstance(n, int) or not 1 <= n <= MAX_PATHS:
        raise ModelError(f"n is {n!r}: give a number of paths from 1 to {MAX_PATHS:,}.")
    horizon = len(margins[0].close)
    between, unknown = _between([one.symbol for one in margins], coins)
    z = np.random.default_rng(seed).standard_normal((n, horizon, len(margins))) @ between.T
    close = np.empty((len(margins), n, horizon))
    for k, one in enumerate(margins):
        steps = random_walk(horizon) if one.steps is None else _full(one.steps, horizon)
        scores = z[:, :, k] @ _root(steps).T
        for step in range(horizon):
            close[k, :, step] = _prices(scores[:, step], one.close[step])
    sources = tuple(RANDOM_WALK if one.steps is None else LEARNED for one in margins)
    symbols = tuple(one.symbol for one in margins)
    return Paths(symbols, close, sources, unknown, issued_at, step_seconds)


def _prices(scores: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """Prices [n] at normal scores [n]: log-prices linear in the score, extrapolated past the outermost two.

    Beyond 5 and 95 %, where a forecast says nothing, that is a normal tail with the slope of its outermost levels.
    """
    log = np.log(quantiles)
    low, high = np.diff(log)[[0, -1]] / np.diff(SCORES)[[0, -1]]
    beyond = np.minimum(scores - SCORES[0], 0) * low + np.maximum(scores - SCORES[-1], 0) * high
    return np.exp(np.interp(scores, SCORES, log) + beyond)


def step_correlation(errors: np.ndarray) -> list[float] | None:
    """The lower triangle, row by row, of the correlation between steps of the errors' normal scores; H (H - 1) / 2.

    None if it cannot be estimated or is not kept: fewer than MIN_WINDOWS windows or 2 steps, more than MAX_STEPS
    steps, or a step whose errors are all equal.

    Args:
        errors: float64 [V, H], each in units of its own forecast's spread, so that windows are comparable.
    """
    count, horizon = errors.shape
    if count < MIN_WINDOWS or not 2 <= horizon <= MAX_STEPS or (np.ptp(errors, axis=0) == 0).any():
        return None
    return _triangle(np.corrcoef(rank_scores(errors), rowvar=False))


def rank_scores(errors: np.ndarray) -> np.ndarray:
    """Normal scores [V, H] of each column's ranks: Phi^-1 of (rank - 1/2) / V."""
    count = len(errors)
    score = np.array([NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)])
    ranks = np.argsort(np.argsort(errors, axis=0, kind="stable"), axis=0, kind="stable")
    return score[ranks]


def scaled_errors(quantiles: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Truth [...] minus the median, in units of the forecast's 90 % interval; quantiles [..., 19]."""
    width = np.maximum(quantiles[..., -1] - quantiles[..., 0], np.finfo(np.float64).tiny)
    return (truth - quantiles[..., len(QUANTILES) // 2]) / width


def mean_correlation(own: Sequence[Sequence[float] | None]) -> list[float] | None:
    """The mean of several models' `step_correlation`, for a model that averages them; None if any model lacks it."""
    known = [one for one in own if one is not None]
    if not known or len(known) < len(own) or len({len(one) for one in known}) > 1:
        return None
    return np.mean(known, axis=0).round(4).tolist()


def random_walk(horizon: int) -> np.ndarray:
    """Correlation [H, H] of a random walk's positions: sqrt(min(i, j) / max(i, j))."""
    steps = np.arange(1, horizon + 1)
    return np.sqrt(np.minimum.outer(steps, steps) / np.maximum.outer(steps, steps))


def correlate_coins(errors: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any] | None:
    """Correlation between coins of the errors' normal scores, at the times that all coins have.

    Args:
        errors: by symbol, times int64 [V] and errors [V, H] as of `scaled_errors`.

    Returns:
        `symbols`, `correlation` (the lower triangle, row by row; the mean over the steps) and `windows` (common times);
        None with fewer than 2 coins or MIN_WINDOWS common times.
    """
    if len(errors) < 2:
        return None
    common = next(iter(errors.values()))[0]
    for times, _ in errors.values():
        common = np.intersect1d(common, times)
    if len(common) < MIN_WINDOWS:
        return None
    scores = np.stack([rank_scores(own[np.searchsorted(times, common)]) for times, own in errors.values()])
    mean = np.mean([np.corrcoef(scores[:, :, step]) for step in range(scores.shape[2])], axis=0)
    return {"symbols": list(errors), "correlation": _triangle(mean), "windows": len(common)}


def read_coins(coins: Mapping[str, Any] | str | Path | None, timeframe: str) -> Mapping[str, Any] | None:
    """The entry of a timeframe in `coins.json`, given as its path or its content; None if not given.

    Raises:
        ModelError: the file cannot be read, or holds something else.
    """
    if coins is None:
        return None
    if isinstance(coins, str | Path):
        try:
            coins = json.loads(Path(coins).read_bytes())
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{coins} cannot be read as coins.json ({error}): give the run's file."
            ) from None
    found = coins.get(timeframe) if isinstance(coins, Mapping) else None
    if not isinstance(coins, Mapping) or not (found is None or isinstance(found, Mapping)):
        raise ModelError("coins is not the content of a coins.json: give the run's file, or leave it out.")
    return found


def bare_symbol(symbol: str) -> str:
    """Letters and digits of a symbol, without the settlement currency that some libraries append after a colon."""
    return "".join(filter(str.isalnum, symbol.partition(":")[0])).upper()


def _between(symbols: Sequence[str], coins: Mapping[str, Any] | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """A root [S, S] of the correlation between coins, and the symbols that it does not know."""
    size = len(symbols)
    if coins is None:
        return np.eye(size), tuple(symbols) if size > 1 else ()
    known = {bare_symbol(name): i for i, name in enumerate(coins.get("symbols", ()))}
    whole = _full(coins.get("correlation", ()), len(known))
    rows = [known.get(bare_symbol(symbol)) for symbol in symbols]
    found = np.eye(size)
    for a, i in enumerate(rows):
        for b, j in enumerate(rows):
            if a != b and i is not None and j is not None:
                found[a, b] = whole[i, j]
    unknown = tuple(symbol for symbol, row in zip(symbols, rows, strict=True) if row is None)
    return _root(found), unknown if size > 1 else ()


def is_triangle(value: Any, horizon: int) -> bool:
    """Whether this is the lower triangle of a correlation between `horizon` steps."""
    return (
        isinstance(value, list)
        and len(value) == horizon * (horizon - 1) // 2
        and all(
            isinstance(one, int | float) and not isinstance(one, bool) and -1 <= one <= 1 for one in value
        )
    )


def _triangle(whole: np.ndarray) -> list[float]:
    return whole[np.tril_indices(len(whole), -1)].round(4).tolist()


def _full(triangle: Any, size: int) -> np.ndarray:
    if not is_triangle(list(triangle), size):
        raise ModelError(
            f"{len(triangle)} numbers do not form a correlation matrix of {size} rows: fetch the file again."
        )
    found = np.eye(size)
    found[np.tril_indices(size, -1)] = triangle
    return found + np.tril(found, -1).T


def _root(correlation: np.ndarray) -> np.ndarray:
    """A with A A' = the correlation, its rows of length 1; rounding may have left it slightly indefinite."""
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0))
    return root / np.linalg.norm(root, axis=1, keepdims=True)
