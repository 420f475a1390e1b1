"""Fleets of a backtest: what is planned for the trainer, and how its forecasts are read back."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

import cpbmodels
from schemas.backtesting import BacktestSpec
from schemas.failure import Failure
from schemas.handover import ShardResult, TrainedMember
from schemas.identity import SeriesId
from tasks.backtesting.backtest import plan_backtest
from tasks.backtesting.folds import plan_folds
from tasks.backtesting.methods import TrainedFleet
from tasks.storage.arrays import write_npz
from tasks.storage.sealed import seal
from tasks.training.plan import job_key
from tasks.training.shard import shard_folder
from tests.tools.known_markets import A, B


@pytest.fixture
def spec(home, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(home))
    return BacktestSpec(
        coins="AUSDT,BUSDT", preset="smoke", architectures="har,har-universal", folds=2, seed=7
    )


def test_every_series_and_fold_is_a_member_with_its_own_bounds_and_seed(spec, records, folds):
    plan = plan_backtest(spec, records)
    assert [fleet.architecture for fleet in plan.fleets] == ["har", "har-universal"]
    assert [len(fleet.shards) for fleet in plan.fleets] == [1, 2]  # a universal model is one for each fold
    for job in plan.fleets:
        assert [m.name for m in job.members] == [
            "AUSDT-1h-fold-1",
            "BUSDT-1h-fold-1",
            "AUSDT-1h-fold-2",
            "BUSDT-1h-fold-2",
        ]
        for member, fold in zip(job.members, folds.loaded, strict=True):
            assert (member.bounds, member.fold) == (fold.bounds, fold.fold)
            text = f"7/{job.architecture}/{fold.id.symbol}/1h/{fold.fold - 1}"
            assert member.model.seed == zlib.crc32(text.encode())


def test_the_market_is_part_of_a_members_seed_and_name(spec, folds):
    fold = folds.loaded[0]
    future = replace(fold, record=fold.record.model_copy(update={"series": SeriesId("um", "AUSDT", "1h")}))
    (member,) = plan_folds(spec, spec.fleets[0], [future]).members
    assert member.model.seed == zlib.crc32(b"7/har/um-AUSDT/1h/0")
    assert member.name == "um-AUSDT-1h-fold-1"


@pytest.fixture(scope="module")
def model(folds):
    (member,) = cpbmodels.train_fleet([folds.loaded[0].series], "har", "smoke", seeds=[1], device="cpu")
    return member


@pytest.fixture
def fleet(spec, folds, model, tmp_path):
    """A fleet of A's and B's first folds: A was trained, B was not."""
    plan = plan_folds(spec, spec.fleets[0], folds.loaded[:2])
    (job,) = plan.shards
    trained, failed = job.members
    folder = shard_folder(tmp_path, job) / "members" / trained.name
    files = model.save(folder / "model")
    series = folds.loaded[0].series
    origins = series.origins("test", model.context, model.horizon)
    forecasts = cpbmodels.predict([model], [series], [origins])[0]
    arrays = {
        "quantiles": forecasts.quantiles.astype(np.float32),
        "candle": forecasts.candle.astype(np.float32),
    }
    write_npz(folder / "test.npz", {"origins": origins} | arrays)
    assert files.exists()
    seal(folder)
    member = TrainedMember(
        model=trained.model,
        name=trained.name,
        history=({"train_loss": 1.0, "val_loss": 1.1},),
        report={},
    )
    failure = Failure.of(failed.model, "train", "diverged")
    return TrainedFleet.of(
        plan,
        [ShardResult(key=job_key(job), architecture="har", members=(member,), failures=(failure,))],
        tmp_path,
    )


def test_the_trainers_own_forecasts_are_read(fleet, folds, model, tmp_path):
    fold = folds.loaded[0]
    forecasts = fleet.forecast(fold)
    expected = cpbmodels.predict([model], [fold.series], [forecasts.origins])[0]
    np.testing.assert_array_equal(forecasts.quantiles, expected.quantiles.astype(np.float32))
    np.testing.assert_array_equal(forecasts.candle, expected.candle.astype(np.float32))
    assert forecasts.quantiles.dtype == np.float64


def test_the_trainers_failures_belong_to_their_own_series_and_fold(fleet, folds):
    assert fleet.training_failure(folds.loaded[0]) is None
    failure = fleet.training_failure(folds.loaded[1])
    assert (failure.series, failure.reason) == (B, "diverged")
    assert fleet.identity(folds.loaded[0]).series == A
