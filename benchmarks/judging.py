"""How fast judging is, and what the gate by a backtest lets through: `python -m benchmarks.judging [--only gate]`.

judge: 40 members × 4 architectures × 2,000 origins × 10 steps (3.2 million forecast rows of 19 quantiles) with
    intervals, tests, Holm's correction, pooling and every pair of models, on two threads at most.
gate: 37 months of daily losses at 1h, simulated. A day's difference is as wide and as heavy-tailed as that of two real
    recipes, and uncorrelated as theirs: `har-universal` averaged with `walk` against `har-universal` alone, June 2022
    to May 2025 (.0073 of the mean loss, kurtosis 33; `research/gate.py` at a6dc485d drew those days themselves).
    null_5, null_20: share of backtests in which any of 5 or 20 equal recipes passes, named together or one after
    another, whichever is more. power_5, power_20: share in which one that is truly .1 % better passes among 4 or 19
    equal ones.
"""

import argparse
import resource
import time
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from benchmarks._paired import main
from cpbmodels.data.columns import candle_columns
from cpbmodels.data.series import Series
from schemas.decision import Paired
from tasks.backtesting.results import all_pairs
from tasks.judging import baselines
from tasks.judging.member import judge_member
from tasks.judging.paired import DailyLosses, corrected, failed, paired
from tasks.judging.pool import apply_holm, judge_pools

HOUR = 3_600_000_000
DAYS, SPREAD, KURTOSIS, GAIN = 1126, 0.0073, 33, 0.001
FREEDOM = 4 + 6 / (KURTOSIS - 3)  # Student-t's degrees of freedom with that kurtosis


def market(seed: int, rows: int = 8000) -> Series:
    random = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(random.standard_t(4, rows) * 0.005))
    opened = np.r_[100, close[:-1]]
    prices = np.column_stack([opened, np.maximum(opened, close), np.minimum(opened, close), close])
    segments = np.zeros(rows, dtype=np.int64)
    names, features, volatility = candle_columns(prices, segments)
    spans = {"train": (0, 5000), "validation": (5200, 5800), "test": (rows - 2010, rows)}
    times = np.arange(rows) * HOUR
    return Series(prices, features, names, volatility, segments, spans, f"C{seed}USDT", "1h", times)


def judge(args: argparse.Namespace) -> dict[str, float]:
    series = [market(i) for i in range(args.members)]
    started, forecast_rows, judged = time.perf_counter(), 0, []
    for a in range(4):
        for coin in series:
            train, test = coin.origins("train", 1, 10), coin.origins("test", 1, 10)
            reference = baselines.reference(coin, train, test, 10)
            forecast = SimpleNamespace(origins=test, quantiles=reference * (0.9 + 0.05 * a))
            judged.append(judge_member(coin, forecast, reference, architecture=f"a{a}"))
            forecast_rows += reference.shape[0] * reference.shape[1]
    judged = apply_holm(judged)
    pools, pairs = judge_pools(judged), all_pairs(judged)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counts = {"forecast_rows": forecast_rows, "pools": len(pools), "pairs": len(pairs)}
    return {"seconds": seconds, **counts, "rss_peak_mb": peak}


def backtest(random: np.random.Generator, gain: float) -> Paired:
    """Figures of one simulated backtest of a recipe that is truly better by `gain`."""
    noise = SPREAD * np.sqrt((FREEDOM - 2) / FREEDOM) * random.standard_t(FREEDOM, (DAYS, 1))
    other = np.ones((DAYS, 1))
    return paired(DailyLosses(np.arange(DAYS) + 19_000, (1 - gain) * other + noise, other))


def passes(recipes: Sequence[Paired], together: bool) -> list[bool]:
    """Whether each recipe passes, named together or one after another."""
    if together:
        p_values = corrected([recipe.p for recipe in recipes], [1] * len(recipes), 0)
    else:
        p_values = [corrected([recipe.p], [1], before)[0] for before, recipe in enumerate(recipes)]
    return [not failed(recipe, p) for recipe, p in zip(recipes, p_values, strict=True)]


def gate(args: argparse.Namespace) -> dict[str, float]:
    random = np.random.default_rng(0)
    equal = [[backtest(random, 0.0) for _ in range(20)] for _ in range(args.runs)]
    better = [backtest(random, GAIN) for _ in range(args.runs)]
    shares = {
        f"null_{m}": max(
            float(np.mean([any(passes(row[:m], way)) for row in equal])) for way in (True, False)
        )
        for m in (5, 20)
    }
    return shares | {
        f"power_{m}": float(
            np.mean(
                [passes([recipe, *row[: m - 1]], True)[0] for recipe, row in zip(better, equal, strict=True)]
            )
        )
        for m in (5, 20)
    }


PARTS = {"judge": judge, "gate": gate}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--members", type=int, default=40, help="of each architecture, in the part judge")
    parser.add_argument("--runs", type=int, default=400, help="simulated backtests in the part gate")


if __name__ == "__main__":
    main("judging", PARTS, options=options)
