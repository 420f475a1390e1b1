"""What the trainer does with a job that it cannot train, or need not."""

from datetime import UTC, datetime

import pytest

from schemas.errors import CpbError
from schemas.handover import FleetResult, JobMember, SeriesRecord, SplitBounds
from schemas.identity import ModelId, SeriesId
from schemas.run import RunSpec
from tasks.storage.records import write_record
from tasks.training.files import RESULT, prepare
from tasks.training.plan import job_key, plan_job
from tasks.training.trainer import train_once


def day(n):
    return datetime(2024, 1, n, tzinfo=UTC)


@pytest.fixture
def job():
    """A job of two series whose features are nowhere."""
    bounds = SplitBounds(
        timeframe="1h", train=(day(1), day(9)), validation=(day(10), day(12)), test=(day(13), day(15))
    )
    members = []
    for symbol in ("BTCUSDT", "ETHUSDT"):
        series = SeriesId("spot", symbol, "1h")
        record = SeriesRecord(
            series=series,
            path=f"features/{symbol}.npz",
            digest="d",
            file_digest="f",
            rows=9,
            first_us=0,
            last_us=1,
        )
        members.append(JobMember(model=ModelId("gru", "smoke", series, 1), features=record, bounds=bounds))
    return plan_job(RunSpec(preset="smoke"), "gru", members)


def test_a_fleet_without_a_series_that_can_be_read_says_why(job, tmp_path):
    folder = prepare(tmp_path, job)
    with pytest.raises(CpbError) as caught:
        train_once(folder)
    assert caught.value.code == "empty-fleet"
    assert "BTCUSDT" in str(caught.value)
    assert not (folder / RESULT).exists()


def test_a_fleet_that_is_trained_is_left_as_it_is(job, tmp_path):
    folder = prepare(tmp_path, job)
    write_record(folder / RESULT, FleetResult(key=job_key(job), architecture="gru"), of=folder.name)
    before = (folder / RESULT).read_bytes()
    train_once(folder)
    assert (folder / RESULT).read_bytes() == before
    assert not (folder / "members").exists()
