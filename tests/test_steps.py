"""Every step of both DAGs, in order, by its plain function: no orchestrator, no process, records from hand to hand."""

import inspect
from datetime import timedelta
from importlib import import_module

import pytest
from in_process import train_by
from prefect.context import FlowRunContext

import tasks
from flows.training import start_run
from schemas.handover import (
    FleetJudgement,
    ForecastBatch,
    IngestResult,
    Publication,
    Score,
    SeriesRecord,
    ShardResult,
    Watching,
)
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.evaluate import evaluate
from tasks.features import features
from tasks.forecast import forecast
from tasks.forecasting.drift import check_drift
from tasks.forecasting.issue import issue_forecasts
from tasks.forecasting.record import score_due
from tasks.hub.tree import package
from tasks.ingest import ingest
from tasks.judging.fleet import Judges, judge_fleet
from tasks.market.ingest import ingest as bring_up_to_date
from tasks.plan import plan
from tasks.promote import promote
from tasks.promotion.night import decide_night
from tasks.publish import publish
from tasks.running.step import Step
from tasks.score import score
from tasks.signals.feature_files import write_features
from tasks.tracking.store import open_store
from tasks.train import opened_engine, train
from tasks.training import trainer
from tasks.training.local import LocalEngine
from tasks.training.plan import plan_fleet
from tasks.training.progress import FleetProgress
from tasks.watch import watch

PLAIN = {
    "ingest": bring_up_to_date,
    "features": write_features,
    "plan": plan_fleet,
    "train": LocalEngine.run,
    "evaluate": judge_fleet,
    "promote": decide_night,
    "publish": package,
    "forecast": issue_forecasts,
    "score": score_due,
    "watch": check_drift,
}
"""Where the substance of each step lies."""

SPEC = RunSpec(
    coins="BTC,ETH", timeframes="1h", architectures="linear", preset="smoke", source="sim",
    since="2024-10", as_of="2025-01-01", overrides={"epochs": 1},
)  # fmt: skip


def test_both_dags_are_these_steps():
    assert tuple(PLAIN) == tasks.STEPS
    for name in tasks.STEPS:
        (found,) = [one for one in vars(import_module(f"tasks.{name}")).values() if isinstance(one, Step)]
        assert (found.name, found.task.name) == (name, name)


@pytest.mark.parametrize("name", PLAIN)
def test_a_step_calls_its_plain_function_which_knows_no_orchestrator(name):
    plain = PLAIN[name]
    step = import_module(f"tasks.{name}")
    function, _, method = plain.__qualname__.partition(".")
    home = import_module(plain.__module__)
    assert getattr(home, function) in vars(step).values()
    assert not method or f".{method}" in inspect.getsource(step)
    assert not [one for one in vars(home).values() if getattr(one, "__module__", "").startswith("prefect")]


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    monkeypatch.chdir(tmp_path)
    train_by(monkeypatch, trainer.train_job)
    return tmp_path


def test_records_pass_through_every_step_without_prefect(at_home):
    """`train-all`, then `forecast` a day later: each step gets the records of the one before, and nothing else."""
    assert FlowRunContext.get() is None
    scope, root = SPEC.scope, SPEC.scope.root

    got = ingest(scope)
    assert isinstance(got, IngestResult)
    assert got.series == tuple(SeriesId("sim", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))
    records = [features(scope, series) for series in got.series]
    assert all(isinstance(one, SeriesRecord) for one in records)
    planned = plan(SPEC, records)
    (fleet,) = planned.fleets
    assert (planned.failures, planned.stopped, fleet.architecture) == ((), (), "linear")

    run = start_run(SPEC, planned.series, "train-all").run_id
    with opened_engine(SPEC) as engine, Judges(engine.cores) as judges:
        engine.plan(len(fleet.shards))
        progress = FleetProgress(fleet)
        trained = [(shard, train(shard, root, engine, 600, progress)) for shard in fleet.shards]
        assert all(isinstance(result, ShardResult) and not result.failures for _, result in trained)
        judged = evaluate(SPEC, run, fleet, trained, root, judges)
    assert isinstance(judged, FleetJudgement)
    assert [one.model.series for one in judged.judgements] == list(got.series)
    decided = promote(SPEC, [judged])
    assert [one.series for one in decided] == list(got.series)
    assert isinstance(publish(scope.home, "sim"), Publication)
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
