"""Nights on simulated candles, trained in this process."""

import numpy as np

from flows.train_all import run_train_all
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.storage.arrays import write_npz
from tasks.storage.sealed import resealing
from tasks.tracking.decisions import newest_decisions
from tasks.tracking.registry import aliases_of
from tasks.tracking.store import open_store
from tasks.training import shard_training as worker
from tasks.training.shard import read_job

FIRST, SECOND, EARLIER = "2025-01-01", "2025-01-02", "2024-12-31"
SPEC = RunSpec(
    coins="BTC,ETH",
    timeframes="1h",
    architectures="linear",
    preset="smoke",
    source="sim",
    since="2024-09",
    as_of=FIRST,
    overrides={"epochs": 1},
)
BTC, ETH = (SeriesId("sim", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))


class Trainer:
    """Stands in for resident trainers: trains in this process; `after` may change what it left in a folder."""

    def __init__(self):
        self.after = lambda job, folder: None

    def __call__(self, folder):
        if not (folder / "result.json").exists():
            worker.train_job(folder)
            self.after(read_job(folder), folder)


def night(as_of=FIRST, **options):
    """A run of the main job; its summary and what it said."""
    said = []
    spec = RunSpec(**SPEC.model_dump() | {"as_of": as_of} | options)
    return run_train_all(spec, said.append), said


def aliases(series=BTC):
    return aliases_of(open_store(), series)


def decided(series=BTC):
    """(outcome, rule) of the newest decision."""
    newest = newest_decisions(open_store())[series]
    return newest.outcome, newest.rule


def newest(series=BTC):
    return newest_decisions(open_store())[series]


def widened(factor, split="test"):
    """Let a trained model's forecasts be this many times as wide on a span: its CRPS grows."""

    def spoil(job, folder):
        for member in job.members:
            path = folder / "members" / member.name / f"{split}.npz"
            with np.load(path) as kept:
                arrays = {key: kept[key].copy() for key in kept.files}
            middle = arrays["quantiles"][..., 9:10]
            arrays["quantiles"] = middle + factor * (arrays["quantiles"] - middle)
            with resealing(path.parent, path.name):
                write_npz(path, arrays)

    return spoil
