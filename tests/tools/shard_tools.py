"""Shards to share: a home with one series' features and a small job, and one that looks as a trainer leaves it."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from cpbmodels.data.columns import feature_frame
from schemas.handover import JobMember, SeriesRecord, ShardResult, SplitBounds, TrainedMember
from schemas.identity import ModelId, SeriesId
from schemas.run import RunSpec
from tasks.storage.arrays import write_npz
from tasks.storage.records import file_digest, write_record
from tasks.storage.sealed import seal
from tasks.training.plan import job_key, plan_job
from tasks.training.shard import RESULT, prepare

SERIES = SeriesId("spot", "BTCUSDT", "1h")
START = datetime(2024, 1, 1, tzinfo=UTC)


def home_with_job(home, architecture="gru", *, hours=500, **overrides):
    """Write the series' features into a home, and return the job of a model that learns them."""
    rng = np.random.default_rng(7)
    close = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, hours)))
    opened = np.concatenate([[100.0], close[:-1]])
    spread = 1 + np.abs(rng.normal(0, 0.002, hours))
    klines = pl.DataFrame(
        {
            "open_time": pl.datetime_range(
                START, START + timedelta(hours=hours - 1), "1h", time_unit="us", time_zone="UTC", eager=True
            ),
            "open": opened,
            "high": np.maximum(opened, close) * spread,
            "low": np.minimum(opened, close) / spread,
            "close": close,
            "volume": rng.uniform(1, 2, hours),
        }
    )
    path = SERIES.folder(home, "features") / f"{'a' * 16}-{'b' * 8}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    feature_frame(klines, "1h").write_parquet(path)
    record = SeriesRecord(
        series=SERIES,
        path=path.relative_to(home).as_posix(),
        digest="d",
        file_digest=file_digest(path),
        rows=hours,
        first_us=round(START.timestamp() * 1e6),
        last_us=0,
    )
    bounds = SplitBounds(
        timeframe="1h",
        train=(at(0), at(0.6 * hours)),
        validation=(at(0.65 * hours), at(0.8 * hours)),
        test=(at(0.85 * hours), at(hours)),
    )
    member = JobMember(model=ModelId(architecture, "smoke", SERIES, 1), features=record, bounds=bounds)
    spec = RunSpec(preset="smoke", architectures=architecture, device="cpu", overrides=overrides)
    return plan_job(spec, spec.fleets[0], [member])


def at(hours):
    return START + timedelta(hours=round(hours))


def trained_shard(home, job, name="weights"):
    """Leave the job's shard in a home as its trainer would; the weights are a name."""
    folder = prepare(home, job)
    model = folder / "members" / SERIES.name / "model"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_text(name)
    (model / "config.json").write_text("{}")
    write_npz(model.parent / "test.npz", {"quantiles": np.zeros(3)})
    seal(model.parent)
    member = TrainedMember(model=job.members[0].model, name=SERIES.name, history=(), report={})
    result = ShardResult(key=job_key(job), architecture="gru", members=(member,))
    write_record(folder / RESULT, result)
    return folder
