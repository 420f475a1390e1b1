"""What the gate by a backtest lets through: nulls and power, on the dependence of an average's real losses.

python -m research.gate --home HOME [--timeframe 15m] [--months 18] [--of "har + line"] [--json]

HOME: of `python -m research.skill`, whose stored losses are the pair: a mean of quantiles against `har-universal`
alone, at every origin, daily sums of each coin. Its mean difference is removed (`null`) or replaced by a true gain. A
simulated backtest is made of blocks of four weeks of real days, drawn with replacement: overlap, clustering, heavy
tails, what the coins share and the calendar of a month stay. The same is done with Gaussian noise of that spread: the
difference is what the tails cost.

- null: share of backtests in which any of m equal recipes passes: m named together (`together`, also the best of m
  search trials), or one after another on the same span (`one by one`).
- power: share in which a recipe better by a true gain passes among m - 1 equal ones, and the share that each condition
  alone lets through.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from research.skill import PLANS, Rows
from schemas.handover import Paired
from tasks.judging import paired
from tasks.judging.paired import ALPHA, DailyLosses, corrected, failed
from tasks.judging.scores import Array

DAY_US = 86_400_000_000
BLOCK = 28  # days
COUNTS = (1, 5, 20, 40)
GAINS = (0.0005, 0.001, 0.002)
MONTHS = {"1h": 37, "15m": 18}


def read_pair(home: Path, timeframe: str, name: str) -> DailyLosses:
    """Daily sums of a model's CRPS and of har-universal's, of each coin (0 where a coin has no rows)."""
    rows = Rows.read(home, timeframe)
    coin = rows.arrays["coin"].astype(int)
    days, place = np.unique(rows.arrays["time"] // DAY_US, return_inverse=True)
    shape = (len(days), len(rows.coins))
    cell = np.ravel_multi_index((place, coin), shape)
    held = np.unique(coin)
    own, other = (
        np.bincount(cell, rows.arrays[key], len(days) * len(rows.coins)).reshape(shape)[:, held]
        for key in (name, "har")
    )
    return DailyLosses(days, own, other)


def pooled(losses: DailyLosses) -> tuple[Array, Array]:
    """Return, per day, the difference and the second recipe's loss, mean over coins, as shares of the mean loss [D]."""
    scale = losses.other.sum(axis=0) / len(losses.days)
    return ((losses.own - losses.other) / scale).mean(axis=1), (losses.other / scale).mean(axis=1)


def simulated(difference: Array, level: Array, days: int, gain: float, random: np.random.Generator) -> Paired:
    """Figures of a backtest of so many days, from blocks of real days, with a true gain."""
    starts = random.integers(0, len(difference), -(-days // BLOCK))
    # Circular, so that every day is drawn alike and a null has the mean 0.
    rows = (starts[:, None] + np.arange(BLOCK)).ravel()[:days] % len(difference)
    other = level[rows][:, None]
    own = other + (difference[rows] - gain * level[rows])[:, None]
    return paired.paired(DailyLosses(np.arange(days) + 19_000, own, other))


def passes(found: Sequence[Paired], at_once: bool) -> list[bool]:
    """Whether each recipe passes, named together or one after another."""
    if at_once:
        p_values = corrected([one.p for one in found], [1] * len(found), 0)
    else:
        p_values = [corrected([one.p], [1], before)[0] for before, one in enumerate(found)]
    return [not failed(one, p) for one, p in zip(found, p_values, strict=True)]


def conditions(one: Paired, p: float) -> dict[str, bool]:
    return {
        "significant": p < ALPHA and one.high < 1,
        "gain": one.ratio <= 1 - paired.MIN_GAIN,
        "months": one.better >= paired.MIN_BETTER * one.months,
        "recent": not one.recent_p < ALPHA,
    }


def measure(difference: Array, level: Array, days: int, runs: int, seed: int) -> dict[str, Any]:
    """Nulls and power of backtests of so many days."""
    random = np.random.default_rng(seed)
    null: dict[str, list[float]] = {
        f"{count} {how}": [] for count in COUNTS for how in ("together", "one by one")
    }
    significant = []
    kept = []
    for _ in range(runs):
        found = [simulated(difference, level, days, 0.0, random) for _ in range(max(COUNTS))]
        kept.append(found)
        significant += [one.p < ALPHA for one in found]
        for count in COUNTS:
            null[f"{count} together"].append(any(passes(found[:count], True)))
            null[f"{count} one by one"].append(any(passes(found[:count], False)))
    power: dict[str, dict[str, float]] = {}
    for gain in GAINS:
        better = [simulated(difference, level, days, gain, random) for _ in range(runs)]
        for count in COUNTS:
            rows, met = [], []
            for one, others in zip(better, kept, strict=True):
                field = [one, *others[: count - 1]]
                p = corrected([other.p for other in field], [1] * count, 0)[0]
                rows.append(not failed(one, p))
                met.append(conditions(one, p))
            alone = {name: float(np.mean([row[name] for row in met])) for name in met[0]}
            power[f"{gain:.2%} of {count}"] = {"passes": float(np.mean(rows))} | alone
    return {
        "null": {name: float(np.mean(rows)) for name, rows in null.items()},
        "uncorrected_p_below_alpha": float(np.mean(significant)),
        "power": power,
    }


def study(losses: DailyLosses, runs: int, months: int, seed: int = 0) -> dict[str, Any]:
    """The whole benchmark."""
    difference, level = pooled(losses)
    own = paired.paired(losses)
    centred = difference - difference.mean() * level
    days = round(months * 365.25 / 12)
    shape = centred - centred.mean()
    gaussian = np.random.default_rng(seed).normal(0, centred.std(), len(centred))
    noises = {"of the pair": centred, "Gaussian": gaussian - gaussian.mean()}
    out: dict[str, Any] = {
        "pair": {"days": own.days, "ratio": own.ratio, "interval": [own.low, own.high], "better": own.better,
                 "months": own.months, "p": own.p, "kurtosis": float((shape**4).mean() / centred.var() ** 2),
                 **{f"autocorrelation_{k}": float(shape[k:] @ shape[:-k] / (shape @ shape)) for k in (1, 7)}},
        "days": days,
    }  # fmt: skip
    return out | {name: measure(noise, level, days, runs, seed) for name, noise in noises.items()}


def show(found: dict[str, Any]) -> None:
    pair = found["pair"]
    print(
        f"the pair: {pair['ratio']:.4f} [{pair['interval'][0]:.4f}, {pair['interval'][1]:.4f}] on {pair['days']} days, "
        f"better in {pair['better']} of {pair['months']} months; a day's kurtosis {pair['kurtosis']:.0f}, "
        f"autocorrelation {pair['autocorrelation_1']:.2f} at one day, {pair['autocorrelation_7']:.2f} at seven; "
        f"simulated: {found['days']} days"
    )
    for name, one in found.items():
        if not isinstance(one, dict) or "null" not in one:
            continue
        print(f"\nnoise {name}; p < .05 before correction: {one['uncorrected_p_below_alpha']:.1%}")
        print("\n| equal recipes | any passes |\n|---|---|")
        for label, share in one["null"].items():
            print(f"| {label} | {share:.1%} |")
        print("\n| true gain | passes | significant | gain | months | recent |\n|---|---|---|---|---|---|")
        for label, row in one["power"].items():
            print(f"| {label} | " + " | ".join(f"{share:.0%}" for share in row.values()) + " |")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, required=True, help="of `python -m research.skill`")
    parser.add_argument("--of", default="har + walk", help="the mean that is compared with har-universal")
    parser.add_argument("--timeframe", default="1h", choices=list(PLANS))
    parser.add_argument("--months", type=int, help="of a simulated backtest; by default 37 at 1h, 18 at 15m")
    parser.add_argument("--runs", type=int, default=1000, help="simulated backtests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    losses = read_pair(asked.home, asked.timeframe, asked.of)
    found = study(losses, asked.runs, asked.months or MONTHS[asked.timeframe], asked.seed)
    if asked.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
