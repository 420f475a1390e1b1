from datetime import UTC, datetime
from pathlib import Path

from schemas.config import TrainConfig
from schemas.records import SeriesRecord
from schemas.scope import Scope
from tasks.signals.splits import SplitBounds
from tasks.training.job import Job, member_seed, plan_job


def day(n):
    return datetime(2024, 1, n, tzinfo=UTC)


BOUNDS = {
    "1h": SplitBounds(
        timeframe="1h", train=(day(1), day(9)), validation=(day(10), day(12)), test=(day(13), day(15))
    )
}


def record(symbol, digest="d", path="a.parquet"):
    return SeriesRecord(
        symbol=symbol, timeframe="1h", path=Path(path), digest=digest, rows=9, first_us=0, last_us=1
    )


def config(**changes):
    scope = Scope(symbols=("BTCUSDT",), timeframes=("1h",), home=Path("data"))
    return TrainConfig(scope=scope, preset="smoke", architectures=("gru",), **changes)


def test_the_key_names_the_result_not_the_place():
    base = plan_job(config(), "gru", [record("BTCUSDT")], BOUNDS)
    moved = plan_job(config(), "gru", [record("BTCUSDT", path="elsewhere/b.parquet")], BOUNDS)
    assert base.key == moved.key
    others = [
        plan_job(config(seed=2), "gru", [record("BTCUSDT")], BOUNDS),
        plan_job(config(), "lstm", [record("BTCUSDT")], BOUNDS),
        plan_job(config(overrides={"batch_size": 8}), "gru", [record("BTCUSDT")], BOUNDS),
        plan_job(config(), "gru", [record("BTCUSDT", digest="e")], BOUNDS),
        plan_job(config(), "gru", [record("BTCUSDT"), record("ETHUSDT")], BOUNDS),
    ]
    assert len({base.key, *(j.key for j in others)}) == 6


def test_a_job_survives_the_disk(tmp_path):
    job = plan_job(config(overrides={"batch_size": 8}), "har-universal", [record("BTCUSDT")], BOUNDS)
    job.save(tmp_path)
    again = Job.load(tmp_path)
    assert again == job
    assert again.key == job.key
    assert again.universal
    assert again.base_architecture == "har"


def test_a_members_seed_depends_on_nobody_else():
    seeds = {
        member_seed(1, a, s, t) for a in ("gru", "har") for s in ("BTCUSDT", "ETHUSDT") for t in ("1h", "15m")
    }
    assert len(seeds) == 8
    first = plan_job(config(), "gru", [record("BTCUSDT")], BOUNDS).members[0]
    second = plan_job(config(), "gru", [record("ETHUSDT"), record("BTCUSDT")], BOUNDS).members[1]
    assert first.seed == second.seed
