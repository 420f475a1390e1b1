"""What the rules of promotion let through: a year of nights and hours on real losses, a thousand times.

python -m research.promotion --source FOLDER --as-of 2025-06-06        # makes the backtest first (half an hour)
python -m research.promotion --rows FOLDER                             # its `--out`, kept from
    cpb backtest --source FOLDER --as-of 2025-06-06 --timeframes 1h --preset default --folds 6 --out FOLDER

Real losses: two models' mean CRPS over the steps of every origin of the backtest's test spans. The pooled difference
of an hour is the mean over coins of (crps challenger − crps incumbent) / width, with width the 80 % band of a random
walk with EWMA volatility at the origin, mean over steps. A simulated year is made of blocks of ten days, drawn with
replacement: overlap, clustering and what the coins share stay. Every pair of models is taken both ways.

- null: differences without their mean. `fold`: the mean of each test span removed, as both models are trained anew for
  each. `all`: one mean removed for all two years; a challenger that is better for most of them and much worse once is
  such a null too, and the hardest.
- gain: a null, better by a share of the incumbent's pooled loss. Days are counted from e = 1, without test rows.
- missing: nulls whose challenger lacks 2 % of the hours: of the largest differences, of its largest losses, or any.
  They are left out, or count as the gate counts them: as the largest difference of the 90 days before, and at least the
  incumbent's own loss.
- chosen: the best of 20 nulls on a test span of 120 days, then 180 days of a trial: evidence from the test span on, or
  from the appointment on, as the gate counts it.
- refresh: challenger's losses of a coin scaled to be as large as the incumbent's on the whole, or 1 % larger, and
  judged by `not_worse` on windows of the newest rows.

The constructions are compared at their best stakes. The way of betting was chosen on these folds, mostly the odd ones
(`--folds 1,3,5`), with all six in view: no fold is held out. docs/promotion.md says what was tried.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from cpbmodels.data.rows import QUANTILE_COLUMNS
from tasks.judging.evidence import BETTING, Betting, alpha_share, e_processes, not_worse
from tasks.judging.scores import Array, crps

HORIZON, HOUR_US = 10, 3_600_000_000
YEAR, BLOCK = 365 * 24, 240  # hours
GAINS = (0.001, 0.002, 0.005, 0.01)
ALPHA = 0.05
DECAY, WARM = 0.96, 200  # of the EWMA, and origins it starts from, which are left out
WIDTH = 2.5631 * np.sqrt(np.arange(1, HORIZON + 1)).mean()  # 80 % band over σ, mean over steps
MISSING, MEMORY = 0.02, 90 * 24
CHOSEN, TEST, TRIAL = 20, 120 * 24, 180 * 24
BATCH = 250  # years simulated at a time
REFRESH_ROWS = (720, 2880)  # a month, and the test span at 1h
Construct = Callable[[Array], Array]


@dataclass(frozen=True)
class Losses:
    """Losses of models [M, C, N] over coins and hours (NaN: the coin has none), widths [C, N] and folds [N]."""

    models: list[str]
    values: Array
    widths: Array
    folds: NDArray[np.int64]

    def pooled(self, challenger: int, incumbent: int) -> tuple[Array, float]:
        """Differences [N] of the coins of an hour, and the incumbent's mean loss on the same scale."""
        scaled = self.values[[challenger, incumbent]] / self.widths
        means = np.nanmean(scaled, axis=1)
        return means[0] - means[1], float(means[1].mean())

    def level(self, model: int) -> Array:
        """A model's loss [N], mean over the coins of an hour, on the scale of `pooled`."""
        return np.asarray(np.nanmean(self.values[model] / self.widths, axis=0))

    def of_folds(self, wanted: Sequence[int]) -> "Losses":
        """The hours of these folds."""
        keep = np.isin(self.folds, wanted)
        return Losses(self.models, self.values[..., keep], self.widths[:, keep], self.folds[keep])


def backtest(folder: Path, source: str, as_of: str | None) -> None:
    """Forecast rows of the default models over six folds at 1h, in `folder`."""
    env = os.environ | {
        "CPB_HOME": str(folder / "home"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }
    options = ["--timeframes", "1h", "--preset", "default", "--folds", "6", "--out", str(folder)]
    options += ["--as-of", as_of] if as_of else []
    command = [sys.executable, "-m", "flows.cli", "backtest", "--source", source, *options]
    done = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 3):  # 3: some coins or folds are left out
        raise SystemExit(f"cpb backtest ended with {done.returncode}")


def read_losses(folder: Path) -> Losses:
    """Losses of all models in a backtest's `--out`, on the origins that all of them forecast."""
    models = sorted(p.name.removeprefix("model=") for p in (folder / "forecasts").glob("model=*"))
    if len(models) < 2:
        raise SystemExit(f"{folder} has rows of fewer than two models: make them with `cpb backtest --out`")
    coins = sorted({p.name for p in (folder / "forecasts").glob("model=*/interval=1h/symbol=*")})
    found = [[_origin_losses(folder, model, coin) for coin in coins] for model in models]
    times = np.unique(np.concatenate([one["time"].to_numpy() for row in found for one in row]))
    shape = (len(coins), len(times))
    values, widths, folds = (
        np.full((len(models), *shape), np.nan),
        np.full(shape, np.nan),
        np.zeros(len(times)),
    )
    for m, row in enumerate(found):
        for c, one in enumerate(row):
            at = np.searchsorted(times, one["time"].to_numpy())
            values[m, c, at] = one["loss"].to_numpy()
            widths[c, at] = _widths(one["last"].to_numpy())
            folds[at] = one["fold"].to_numpy()
    values[:, np.isnan(values).any(axis=0)] = np.nan  # both models of a pair need the origin
    values[:, np.isnan(widths)] = np.nan
    some = np.isfinite(values[0]).any(axis=0)
    return Losses(models, values[..., some], widths[:, some], folds[some].astype(np.int64))


def _origin_losses(folder: Path, model: str, coin: str) -> pl.DataFrame:
    """Columns time (µs), fold, last (log of the close), loss of every origin of one model and coin."""
    files = sorted((folder / "forecasts" / f"model={model}" / "interval=1h" / coin).glob("*.parquet"))
    columns = ["issued_at", "step", "fold", "last_close", "realised_close", *QUANTILE_COLUMNS]
    rows = pl.concat([pl.read_parquet(file, columns=columns) for file in files]).sort("issued_at", "step")
    last = np.log(rows["last_close"].to_numpy())
    quantiles = np.log(rows.select(QUANTILE_COLUMNS).to_numpy()) - last[:, None]
    realised = np.log(rows["realised_close"].to_numpy()) - last
    loss = crps(quantiles.reshape(-1, HORIZON, 19), realised.reshape(-1, HORIZON)).mean(axis=1)
    first = rows.gather_every(HORIZON)
    return first.select(pl.col("issued_at").dt.epoch("us").alias("time"), "fold").with_columns(
        pl.Series("last", last[::HORIZON]), pl.Series("loss", loss)
    )


def _widths(log_closes: Array) -> Array:
    """Mean over steps of the 80 % band of a random walk with EWMA volatility, known at each origin [N]."""
    squares = np.diff(log_closes, prepend=log_closes[0]) ** 2
    out = np.full(len(squares), np.nan)
    if len(squares) <= WARM:
        return out
    variance = squares[1:WARM].mean()
    for row in range(WARM, len(squares)):
        variance = DECAY * variance + (1 - DECAY) * squares[row]
        out[row] = variance
    return np.where(out > 0, WIDTH * np.sqrt(out), np.nan)


def centred(differences: Array, folds: NDArray[np.int64], null: str) -> Array:
    """Differences without their mean: of each fold, or of all."""
    groups = folds if null == "fold" else np.zeros_like(folds)
    out = differences.copy()
    for group in np.unique(groups):
        out[groups == group] -= differences[groups == group].mean()
    return out


def years(values: Array, folds: NDArray[np.int64], count: int, seed: int, hours: int = YEAR) -> Array:
    """Simulated years [count, hours]: blocks drawn with replacement, none across two folds."""
    length = min(BLOCK, int(np.bincount(folds)[np.unique(folds)].min()))
    starts = np.flatnonzero(folds[: len(folds) - length + 1] == folds[length - 1 :])
    drawn = np.random.default_rng(seed).choice(starts, (count, -(-hours // length)))
    rows = (drawn[:, :, None] + np.arange(length)).reshape(count, -1)[:, :hours]
    return values[rows]


def rounds(betting: Betting = BETTING) -> Construct:
    return lambda differences: e_processes(differences, HORIZON, betting)


def single_origins(differences: Array) -> Array:
    """Ten interleaved sequences of single origins, which do not overlap, averaged."""
    betting = Betting(round_lags=1, min_round=1, stakes=(0.2,), weights=(1.0,), loss_cap=3.0, gain_cap=3.0)
    out = np.zeros_like(differences)
    for offset in range(HORIZON):
        own = e_processes(differences[:, offset::HORIZON], 1, betting)
        spread = np.repeat(own, HORIZON, axis=1)[:, : differences.shape[1] - offset]
        out[:, offset:] += spread
        out[:, :offset] += 1
    return out / HORIZON


def two_streams(differences: Array) -> Array:
    """Blocks of a horizon's length in two interleaved streams, averaged."""
    betting = Betting(round_lags=1, min_round=1, stakes=(0.25,), weights=(1.0,), loss_cap=3.0, gain_cap=3.0)
    second = e_processes(differences[:, HORIZON:], HORIZON, betting)
    second = np.hstack([np.ones((len(differences), HORIZON)), second])
    return (e_processes(differences, HORIZON, betting) + second) / 2


CONSTRUCTIONS: dict[str, Construct] = {
    "rounds (cpb)": rounds(),
    "ten interleaved origins": single_origins,
    "two streams of blocks": two_streams,
}


def ever(evidence: Array, threshold: float) -> float:
    return float((evidence.max(axis=1) >= threshold).mean())


def days_until(evidence: Array, threshold: float) -> Array:
    """Days until evidence reaches the threshold; infinite where it does not in the year."""
    hit = evidence >= threshold
    return np.where(hit.any(axis=1), (hit.argmax(axis=1) + HORIZON) / 24, np.inf)


def measure(losses: Losses, construct: Construct, count: int, seed: int = 0) -> dict[str, Any]:
    """Shares of nulls that are promoted, and days until better ones are; each figure over all ordered pairs."""
    first = 1 / alpha_share(1, ALPHA)
    out: dict[str, Any] = {"null": {}, "gain": {}}
    pairs = list(permutations(range(len(losses.models)), 2))
    per = -(-count // len(pairs))
    promoted: dict[str, list[tuple[float, float]]] = {"fold": [], "all": []}
    found: dict[float, list[Array]] = {gain: [] for gain in GAINS}
    for number, (challenger, incumbent) in enumerate(pairs):
        differences, level = losses.pooled(challenger, incumbent)
        for null in ("fold", "all"):
            values = centred(differences, losses.folds, null)
            simulated = years(values, losses.folds, per, seed + number)
            evidence = _batched(construct, simulated)
            promoted[null].append((ever(evidence, 1 / ALPHA), ever(evidence, first)))
            if null == "fold":
                for gain in GAINS:
                    better = _batched(construct, simulated - gain * level)
                    found[gain].append(np.column_stack([days_until(better, t) for t in (1 / ALPHA, first)]))
    for null, shares in promoted.items():
        at_alpha, at_first = np.mean(shares, axis=0)
        out["null"][null] = {
            "promoted_alpha": float(at_alpha),
            "promoted_first_share": float(at_first),
            "worst_pair_alpha": float(np.max(shares, axis=0)[0]),
        }
    for gain, parts in found.items():
        days = np.concatenate(parts)
        out["gain"][str(gain)] = {
            "median_days_alpha": _median(days[:, 0]),
            "median_days_first_share": _median(days[:, 1]),
            "slowest_pair_alpha": max((_median(part[:, 0]) for part in parts), key=lambda d: d or np.inf),
            "in_180_days_alpha": float((days[:, 0] <= 180).mean()),
            "in_a_year_alpha": float(np.isfinite(days[:, 0]).mean()),
        }
    return out | {"years": per * len(pairs)}


def missing(losses: Losses, count: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Share of nulls (`fold`) that are promoted at the first share, by which hours the challenger lacks."""
    pairs = list(permutations(range(len(losses.models)), 2))
    per, construct, threshold = -(-count // len(pairs)), rounds(), 1 / alpha_share(1, ALPHA)
    found: dict[str, dict[str, list[float]]] = {}
    for number, (challenger, incumbent) in enumerate(pairs):
        null = centred(losses.pooled(challenger, incumbent)[0], losses.folds, "fold")
        drawn = [
            years(values, losses.folds, per, seed + number)
            for values in (null, losses.level(challenger), losses.level(incumbent))
        ]
        chance = np.random.default_rng(seed + number).random(drawn[0].shape)
        for name, by in (("largest differences", drawn[0]), ("largest losses", drawn[1]), ("any", chance)):
            lacks = by > np.quantile(by, 1 - MISSING, axis=1, keepdims=True)
            kept = drawn[0].shape[1] - lacks.sum(axis=1).max()
            dropped = np.stack([row[~gone][:kept] for row, gone in zip(drawn[0], lacks, strict=True)])
            filled = np.where(lacks, np.maximum(drawn[2], _worst_before(drawn[0], lacks)), drawn[0])
            rows = found.setdefault(name, {"left out": [], "counted as the worst": []})
            rows["left out"].append(ever(construct(dropped), threshold))
            rows["counted as the worst"].append(ever(construct(filled), threshold))
    return {name: {way: float(np.mean(v)) for way, v in rows.items()} for name, rows in found.items()}


def chosen(losses: Losses, count: int, seed: int = 0) -> dict[str, tuple[float, float]]:
    """Share of trials in which the best of `CHOSEN` nulls (`fold`) is promoted, at α and at the first share, by which
    rows count."""
    pairs = list(permutations(range(len(losses.models)), 2))
    per, construct, first = -(-count // len(pairs)), rounds(), 1 / alpha_share(1, ALPHA)
    found: dict[str, list[tuple[float, float]]] = {
        "the test span's as well": [],
        "those after the appointment": [],
    }
    for number, (challenger, incumbent) in enumerate(pairs):
        null = centred(losses.pooled(challenger, incumbent)[0], losses.folds, "fold")
        drawn = years(null, losses.folds, per * CHOSEN, seed + number, TEST + TRIAL).reshape(per, CHOSEN, -1)
        best = drawn[np.arange(per), drawn[..., :TEST].mean(axis=2).argmin(axis=1)]
        for way, rows in zip(found.values(), (best, best[:, TEST:]), strict=True):
            evidence = construct(rows)
            way.append((ever(evidence, 1 / ALPHA), ever(evidence, first)))
    return {way: tuple(np.mean(shares, axis=0).tolist()) for way, shares in found.items()}


def _worst_before(differences: Array, lacks: NDArray[np.bool_]) -> Array:
    """The largest known difference of the `MEMORY` hours before each [S, T]; 0 where there is none."""
    known = pl.DataFrame(np.where(lacks, np.nan, differences).T).fill_nan(None)
    worst = known.select(pl.all().rolling_max(MEMORY, min_samples=1).shift(1).fill_null(0.0))
    return np.asarray(worst.to_numpy().T)


def _batched(construct: Construct, simulated: Array) -> Array:
    return np.concatenate([construct(simulated[at : at + BATCH]) for at in range(0, len(simulated), BATCH)])


def _median(days: Array) -> float | None:
    middle = float(np.median(days))
    return middle if np.isfinite(middle) else None


def refreshes(losses: Losses, count: int, seed: int = 0) -> dict[str, Any]:
    """Share of refreshes accepted, equal and 1 % worse, by number of rows."""
    random = np.random.default_rng(seed)
    pairs = list(permutations(range(len(losses.models)), 2))
    out: dict[str, Any] = {}
    for rows in REFRESH_ROWS:
        accepted = {1.0: 0, 1.01: 0, 1.05: 0}
        for _ in range(count):
            challenger, incumbent = pairs[random.integers(len(pairs))]
            coin = random.integers(losses.values.shape[1])
            own, other = losses.values[challenger, coin], losses.values[incumbent, coin]
            known = np.flatnonzero(np.isfinite(own))
            start = random.integers(max(1, len(known) - rows))
            window = known[start : start + rows]
            equal = own[window] * other[known].mean() / own[known].mean()
            for factor in accepted:
                high = not_worse(factor * equal, other[window], window * HOUR_US, HORIZON, HOUR_US)[2]
                accepted[factor] += high < 1.005
        out[str(rows)] = {f"accepted_{factor}": n / count for factor, n in accepted.items()}
    return out


def describe(losses: Losses) -> dict[str, Any]:
    """Of every pair: mean and spread of the pooled hourly difference as shares of the loss, and autocorrelation."""
    out = {}
    for a, b in permutations(range(len(losses.models)), 2):
        if a > b:
            continue
        differences, level = losses.pooled(a, b)
        x = (differences - differences.mean()) / level
        lags = {f"autocorrelation_{k}": float((x[k:] @ x[:-k]) / (x @ x)) for k in (1, 5, 10)}
        figures = {"mean": float(differences.mean() / level), "spread": float(x.std())}
        out[f"{losses.models[a]} over {losses.models[b]}"] = figures | lags
    return out


def simulate(losses: Losses, count: int, seed: int = 0) -> dict[str, Any]:
    """The whole benchmark."""
    return {
        "hours": int(losses.values.shape[2]),
        "coins": int(losses.values.shape[1]),
        "pairs": describe(losses),
        "constructions": {name: measure(losses, way, count, seed) for name, way in CONSTRUCTIONS.items()},
        "missing": missing(losses, count, seed),
        "chosen": chosen(losses, count, seed),
        "refresh": refreshes(losses, min(count, 1000), seed),
    }


def show(found: dict[str, Any]) -> None:
    print(f"{found['coins']} coins, {found['hours']:,} hours\n")
    for pair, figures in found["pairs"].items():
        print(f"{pair:<28}" + "  ".join(f"{k} {v:.4f}" for k, v in figures.items()))
    print("\n| construction | null | promoted, α | first share | worst pair, α |\n|---|---|---|---|---|")
    for name, one in found["constructions"].items():
        for null, row in one["null"].items():
            print(f"| {name} | {null} | " + " | ".join(f"{v:.1%}" for v in row.values()) + " |")
    print(
        "\n| construction | gain | days, α | first share | in 180 days | in a year |\n|---|---|---|---|---|---|"
    )
    for name, one in found["constructions"].items():
        for gain, row in one["gain"].items():
            days = [f"{v:.0f}" if v is not None else "–" for v in list(row.values())[:3]]
            shares = [f"{v:.0%}" for v in list(row.values())[3:]]
            print(f"| {name} | {float(gain):.1%} | " + " | ".join(days + shares) + " |")
    print(f"\n| {MISSING:.0%} of the hours missing | left out | counted as the worst |\n|---|---|---|")
    for name, row in found["missing"].items():
        print(f"| {name} | " + " | ".join(f"{v:.1%}" for v in row.values()) + " |")
    print(
        f"\n| rows that count for the best of {CHOSEN} equal recipes | promoted, α | first share |\n|---|---|---|"
    )
    for way, shares in found["chosen"].items():
        print(f"| {way} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    print("\n| refresh on rows | equal | 1 % worse | 5 % worse |\n|---|---|---|---|")
    for rows, one in found["refresh"].items():
        print(f"| {rows} | " + " | ".join(f"{v:.1%}" for v in one.values()) + " |")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", help="a mirror of klines, folder or URL: makes the backtest first")
    parser.add_argument("--as-of")
    parser.add_argument("--rows", type=Path, help="the `--out` of a backtest at 1h, instead of --source")
    parser.add_argument("--years", type=int, default=1002, help="simulated years for each figure")
    parser.add_argument("--folds", help="of the backtest's: 1,3,5 say")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="120 years for each figure")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    if (asked.source is None) == (asked.rows is None):
        parser.error("give either --source or --rows")
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.rows or Path(temporary)
        if asked.source:
            known = Path(asked.source)
            backtest(folder, str(known.resolve()) if known.exists() else asked.source, asked.as_of)
        losses = read_losses(folder)
    if asked.folds:
        losses = losses.of_folds([int(fold) for fold in asked.folds.split(",")])
    found = simulate(losses, 120 if asked.quick else asked.years, asked.seed)
    if asked.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
