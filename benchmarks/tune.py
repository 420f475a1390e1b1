"""Tuning: what 256 trials cost as fleets, beside one fleet of equal members, and beside one training at a time.

    python -m benchmarks.tune [--trials 256] [--coins 5] [--only fleet] [--json]

- `fleet`: a batch of trials as `cpb tune` runs it (Optuna asked, trained, pruned nothing, scored, told, written to
  SQLite), paired with one `train_fleet` call of as many members with equal options.
- `alone`: Optuna with one training at a time, on its SQLite storage: a trial trains a member per coin, one after the
  other, and scores it. A sample of trials is measured beside a whole run of the other way and taken times the number of
  trials: an extrapolation, as the column `sampled` says. Both use the library's own training, precision and scores.

gru at the width of preset `smoke`, random-walk candles, one process, all cores that torch is given.
"""

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import cpbmodels
from benchmarks._paired import main, paired, seconds
from benchmarks._walks import walks
from cpbmodels.data.series import Series
from schemas.handover import SeriesRecord, SplitBounds
from schemas.identity import SeriesId
from schemas.tuning import TuneSpec
from tasks.backtesting.folds import FoldSeries
from tasks.training.progress import ProgressFile
from tasks.tuning import trials as batches

ROWS, TEST_ROWS, HOUR_US = 4000, 600, 3_600_000_000
PRESET, ARCHITECTURE = "smoke", "gru"


def _folds(coins: int) -> list[FoldSeries]:
    """Each walk as one fold: 70 % train, the rest validates and tests, with an embargo between."""
    return [_fold(k, one) for k, one in enumerate(walks(coins, ROWS))]


def _fold(number: int, series: Series) -> FoldSeries:
    end = len(series)
    spans = {
        "train": (200, end - 2 * TEST_ROWS - 200),
        "validation": (end - 2 * TEST_ROWS, end - TEST_ROWS - 200),
        "test": (end - TEST_ROWS, end),
    }
    made = replace(series, spans=spans, times=np.arange(end, dtype=np.int64) * HOUR_US)
    identity = SeriesId("sim", f"W{number}USDT", "1h")
    record = SeriesRecord.model_construct(series=identity)
    return FoldSeries(1, record, SplitBounds.model_construct(timeframe="1h"), made)


def _spec(asked: argparse.Namespace) -> TuneSpec:
    """All trials run to their end: what is measured is the cost of trials, not how many of them Optuna gives up."""
    return TuneSpec(preset=PRESET, architectures=ARCHITECTURE, trials=asked.trials, pruner="none")


def _tune(asked: argparse.Namespace, scored: list[batches.Scored]) -> None:
    """Every trial in batches of `--batch`, as `cpb tune` does it, without MLflow."""
    from tasks.tuning.study import Study, parameters

    with tempfile.TemporaryDirectory() as folder:
        spec = _spec(asked)
        study = Study(Path(folder) / "optuna.db", "bench", spec)
        while study.trials < asked.trials:
            trials = study.ask(min(asked.batch, asked.trials - study.trials))
            results = batches.train_batch(
                parameters(trials), scored, architecture=ARCHITECTURE, preset=PRESET, overrides={}, seed=1,
                prune=lambda *_: False, deadline=None, progress=ProgressFile(Path(folder), ARCHITECTURE), device="cpu",
            )  # fmt: skip
            for trial, one in zip(trials, results, strict=True):
                assert one is not None  # without a deadline every trial has a result
                study.tell(trial, one.ratio, one.pruned, {"losses": one.losses})
            study.save()


def _equal(asked: argparse.Namespace, scored: list[batches.Scored]) -> None:
    """One fleet call with as many members, all with the preset's options."""
    series = [one.fold.series for one in scored] * asked.trials
    cpbmodels.train_fleet(series, ARCHITECTURE, PRESET, seeds=list(range(len(series))), device="cpu")


def _alone(asked: argparse.Namespace, scored: list[batches.Scored], trials: int) -> None:
    """Optuna with one training at a time, as `study.optimize` does it."""
    import optuna

    from tasks.tuning.study import distribution, sampler

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spec = _spec(asked)
    space = {name: distribution(values) for name, values in spec.space.items()}
    with tempfile.TemporaryDirectory() as folder:
        study = optuna.create_study(storage=f"sqlite:///{folder}/optuna.db", sampler=sampler(spec, 0))
        for _ in range(trials):
            trial = study.ask(space)
            study.tell(trial, _ratio(scored, trial.params))


def _ratio(scored: list[batches.Scored], options: dict[str, Any]) -> float:
    ratios = []
    for seed, one in enumerate(scored):
        series = one.fold.series
        members = cpbmodels.train_fleet([series], ARCHITECTURE, PRESET, seeds=seed, device="cpu", **options)
        forecast = cpbmodels.predict(members, [series], [one.origins])[0]
        ratios.append(float(batches.crps(forecast.quantiles, one.truth).mean() / one.mean))
    return float(np.mean(ratios))


def _scored(asked: argparse.Namespace) -> list[batches.Scored]:
    return batches.prepare(_folds(asked.coins), cpbmodels.preset(PRESET, ARCHITECTURE))


def fleet(asked: argparse.Namespace) -> Mapping[str, Any]:
    scored = _scored(asked)
    found = paired(
        lambda: _tune(asked, scored), lambda: _equal(asked, scored), repeats=asked.repeats, warm_up=False
    ).as_dict()
    return {
        "tune / equal members": {
            "trials": asked.trials, "coins": asked.coins, "times_the_cost": found["ratio"],
            "min": found["ratio_min"], "max": found["ratio_max"],
            "tune_s": found["slow_s"], "equal_s": found["fast_s"],
        }
    }  # fmt: skip


def alone(asked: argparse.Namespace) -> Mapping[str, Any]:
    scored = _scored(asked)
    ratios, one_by_one, together = [], [], []
    for turn in range(asked.repeats):
        ways = [lambda: _alone(asked, scored, asked.sample), lambda: _tune(asked, scored)]
        taken = [seconds(way) for way in (ways if turn % 2 == 0 else ways[::-1])]
        sample, tuned = taken if turn % 2 == 0 else taken[::-1]
        one_by_one.append(sample * asked.trials / asked.sample)
        together.append(tuned)
        ratios.append(one_by_one[-1] / tuned)
    return {
        "one training at a time / tune": {
            "trials": asked.trials, "coins": asked.coins, "sampled": asked.sample,
            "times_faster": float(np.median(ratios)), "min": min(ratios), "max": max(ratios),
            "alone_s_extrapolated": float(np.median(one_by_one)), "tune_s": float(np.median(together)),
        }
    }  # fmt: skip


PARTS = {"fleet": fleet, "alone": alone}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--coins", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="trials proposed and trained at once")
    parser.add_argument("--sample", type=int, default=8, help="trials of the way that is extrapolated")
    parser.add_argument("--repeats", type=int, default=3)


if __name__ == "__main__":
    main("tune", PARTS, options=_options)
