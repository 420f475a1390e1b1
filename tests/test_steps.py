"""Every step of both DAGs, in order, by its plain function: no orchestrator, no process, records from hand to hand."""

from datetime import timedelta

import pytest
from prefect.context import FlowRunContext

from schemas.handover import (
    FleetJudgement,
    ForecastBatch,
    IngestResult,
    Publication,
    SeriesRecord,
    ShardResult,
)
from schemas.identity import SeriesId
from schemas.ledger import Score, Watching
from schemas.run import RunSpec
from tasks import steps
from tasks.judging.judges import Judges
from tasks.running.step import Step
from tasks.steps import (
    evaluate,
    features,
    forecast,
    ingest,
    opened_engine,
    plan,
    promote,
    publish,
    score,
    train,
    watch,
)
from tasks.tracking.flow_log import start_flow
from tasks.tracking.store import open_store
from tasks.training import shard_training
from tasks.training.fleet_progress import FleetProgress
from tests.tools.forecast_steps import FORECAST
from tests.tools.in_process import train_by

SPEC = RunSpec(
    coins="BTC,ETH",
    timeframes="1h",
    architectures="linear",
    preset="smoke",
    source="sim",
    since="2024-10",
    as_of="2025-01-01",
    overrides={"epochs": 1},
)


def test_both_dags_are_these_steps():
    made = {value.name for value in vars(steps).values() if isinstance(value, Step)}
    train_all = {"ingest", "features", "plan", "train", "evaluate", "promote", "publish", "forecast"}
    assert made == {*train_all, *FORECAST}


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    monkeypatch.chdir(tmp_path)
    train_by(monkeypatch, shard_training.train_job)
    return tmp_path


def test_records_pass_through_every_step_without_prefect(at_home):
    """`train-all`, then `forecast` a day later: each step gets the records of the one before, and nothing else."""
    assert FlowRunContext.get() is None
    scope = SPEC.scope

    got = ingest(scope)
    assert isinstance(got, IngestResult)
    assert got.series == tuple(SeriesId("sim", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))
    records = [features(scope, series) for series in got.series]
    assert all(isinstance(record, SeriesRecord) for record in records)
    planned = plan(SPEC, records)
    (fleet,) = planned.fleets
    assert (planned.failures, planned.stopped, fleet.architecture) == ((), (), "linear")

    run = start_flow(SPEC, planned.series, planned.fleets, "train-all")
    with opened_engine(SPEC) as engine, Judges(engine.cores) as judges:
        engine.plan(len(fleet.shards))
        progress = FleetProgress(fleet)
        trained = [(shard, train(SPEC, engine, shard, progress)) for shard in fleet.shards]
        assert all(isinstance(result, ShardResult) and not result.failures for _, result in trained)
        judged = evaluate(SPEC, run, fleet, trained, judges)
    assert isinstance(judged, FleetJudgement)
    assert [record.model.series for record in judged.judgements] == list(got.series)
    decided = promote(SPEC, [judged])
    assert [record.series for record in decided] == list(got.series)
    assert isinstance(publish("sim"), Publication)
    issued = forecast(scope)
    assert isinstance(issued, ForecastBatch)
    assert (issued.series, issued.rows) == (got.series, 20)

    day = scope.model_copy(update={"as_of": scope.as_of + timedelta(days=1)})
    assert ingest(day).failures == ()
    assert forecast(day).rows == 20
    scored = score(day)
    assert isinstance(scored, Score)
    assert (scored.rows, scored.failures) == (20, ())
    assert isinstance(watch(day), Watching)
    assert open_store().client.get_run(run).info.status == "RUNNING"  # it is the flow that ends its run
