"""How a flow ends where a step fails: what MLflow and the user are told."""

import signal
from contextlib import contextmanager

import pytest
from mlflow.exceptions import MlflowException
from prefect.exceptions import TerminationSignal

from flows.phases import ingest_scope
from flows.run import Run, flow_run, marked
from schemas.errors import CpbError
from schemas.failure import Failure
from schemas.handover import IngestResult
from schemas.identity import ModelId, SeriesId
from schemas.run import RunSpec
from tasks.tracking.runs import finish, start_fleet, start_parent
from tasks.tracking.store import open_store


@contextmanager
def running(run_id, report=print):
    """A flow at its run in MLflow."""
    with flow_run("train-all", report) as run:
        run.run_id = run_id
        yield run


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    return open_store()


def test_a_store_that_is_away_is_not_asked_again_to_mark_the_run(store):
    run = start_parent("k", {})
    with pytest.raises(CpbError), running(run.run_id):
        raise MlflowException("the server cannot be reached")
    assert store.client.get_run(run.run_id).info.status == "RUNNING"
    assert start_parent("k", {}).run_id == run.run_id  # the same command goes on with it


def test_a_run_that_ends_in_an_error_is_marked_failed_and_can_be_repeated(store):
    run = start_parent("k", {})
    with pytest.raises(CpbError, match="no fleet"), running(run.run_id):
        raise CpbError("no fleet could be trained")
    failed = store.client.get_run(run.run_id)
    assert failed.info.status == "FAILED"
    assert failed.data.tags["reason"] == "no fleet could be trained"

    again = start_parent("k", {})
    assert (again.run_id, again.finished) == (run.run_id, False)
    finish(again.run_id)
    assert "reason" not in store.client.get_run(run.run_id).data.tags
    assert store.client.get_run(run.run_id).info.status == "FINISHED"


def test_what_a_failed_run_has_left_open_fails_with_it(store):
    run = start_parent("k", {})
    done, fleet = (start_fleet(run.run_id, name, name) for name in ("gru", "har"))
    finish(done.run_id)
    other = start_parent("other", {})
    with pytest.raises(CpbError), running(run.run_id):
        raise CpbError("no space")
    ended = [store.client.get_run(run.run_id) for run in (run, fleet, done, other)]
    assert [run.info.status for run in ended] == ["FAILED", "FAILED", "FINISHED", "RUNNING"]
    assert [run.data.tags.get("reason") for run in ended] == ["no space", "no space", None, None]
    finish(other.run_id)


def test_a_run_with_failures_is_partial_and_names_each_reason_once(store):
    opened, said = start_parent("k", {}), []
    models = [ModelId("gru", "default", SeriesId("spot", f"{coin}USDT", "1h"), 1) for coin in "ABCDE"]
    with running(opened.run_id, said.append) as run:
        run.warnings.append("slow")
        run.add(Failure.of(model, "train", "memory ran out") for model in models[:3])
        run.add(Failure.of(model, "evaluate", f"{model}: not finite") for model in models[3:])
        run.add([Failure.of(models[0].series, "forecast", "stale")])
    tags = store.client.get_run(opened.run_id).data.tags
    assert (tags["outcome"], tags["warnings"]) == ("partial", "slow")
    assert tags["reason"] == (
        "gru/AUSDT/1h (default) in train: memory ran out (and 2 more); gru/DUSDT/1h (default) in evaluate: not finite "
        "(and 1 more); AUSDT 1h in forecast: stale"
    )
    assert said == [
        *(
            f"FAILED {line}"
            for line in (
                "gru/AUSDT/1h (default), gru/BUSDT/1h (default), gru/CUSDT/1h (default) in train: memory ran out",
                "gru/DUSDT/1h (default), gru/EUSDT/1h (default) in evaluate: not finite",
                "AUSDT 1h in forecast: stale",
            )
        )
    ]
    with run.attempt("publish"):
        raise CpbError("the Hub is away")
    assert run.reasons.endswith("; and 1 more")
    assert (len(said), run.exit_code) == (4, 3)
    run.add(Failure.of(model, "train", "no space") for model in [*models, models[0]])
    assert said[-1].endswith(" (default) and 1 more in train: no space")


@pytest.mark.parametrize("fetched", [(), (SeriesId("spot", "BTCUSDT", "1h"),)])
def test_a_reason_that_ends_the_run_is_said_once_by_its_error(fetched, monkeypatch):
    failure = Failure.of(SeriesId("spot", "BTXUSDT", "1h"), "ingest", "not listed")
    result = IngestResult(series=fetched, failures=(failure,))
    monkeypatch.setattr("flows.phases.ingest", lambda *_: result)
    said = []
    run = Run("train-all", said.append)
    assert ingest_scope(run, RunSpec(coins="BTX", timeframes="1h")) == fetched
    assert run.failures == [failure]
    assert [line for line in said if "not listed" in line] == [f"FAILED {failure.line}"] * len(fetched)


def test_a_run_without_failures_is_complete_and_has_no_reason(store):
    opened = start_parent("k", {})
    with running(opened.run_id) as run:
        pass
    ended = store.client.get_run(opened.run_id)
    assert (ended.info.status, ended.data.tags["outcome"]) == ("FINISHED", "complete")
    assert not {"reason", "warnings"} & set(ended.data.tags)
    assert run.exit_code == 0


@pytest.mark.parametrize("late", [KeyboardInterrupt(), CpbError("a figure cannot be shown")])
def test_what_follows_the_end_of_a_run_takes_nothing_back(store, late):
    opened = start_parent("k", {})

    def ended_and_on():
        with running(opened.run_id) as run:
            run.end()
            raise late  # as Ctrl-C does while the home is archived

    with pytest.raises(type(late)):
        ended_and_on()
    ended = store.client.get_run(opened.run_id)
    assert (ended.info.status, ended.data.tags["outcome"]) == ("FINISHED", "complete")


def test_a_run_whose_end_is_refused_is_marked_failed(store, monkeypatch):
    opened = start_parent("k", {})
    monkeypatch.setattr("flows.run.Run.mark", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError), running(opened.run_id):
        pass
    assert store.client.get_run(opened.run_id).info.status == "FAILED"


def test_an_inner_block_marks_a_run_at_once_and_the_outer_leaves_it(store, monkeypatch):
    opened, ended = start_parent("k", {}), []
    monkeypatch.setattr("flows.run.finish", lambda *given: ended.append(given))
    with pytest.raises(CpbError), running(opened.run_id) as run, marked(run):
        raise CpbError("no trial was completed")
    assert [outcome for _, outcome, _ in ended] == ["failed"]


@pytest.mark.parametrize(
    "interrupt", [KeyboardInterrupt(), SystemExit(143), TerminationSignal(signal.SIGTERM)]
)
def test_an_interrupted_run_and_what_is_open_below_it_are_killed_and_can_be_repeated(store, interrupt):
    run = start_parent("k", {})
    done, fleet = (start_fleet(run.run_id, name, name) for name in ("gru", "har"))
    finish(done.run_id)
    member = store.client.create_run(
        store.experiment_id, tags={"mlflow.parentRunId": fleet.run_id}
    ).info.run_id
    other = start_parent("other", {})

    with pytest.raises(type(interrupt)), running(run.run_id):
        raise interrupt

    ids = (run.run_id, fleet.run_id, member, done.run_id, other.run_id)
    status = [store.client.get_run(run_id).info.status for run_id in ids]
    assert status == ["KILLED", "KILLED", "KILLED", "FINISHED", "RUNNING"]
    assert type(interrupt).__name__ in store.client.get_run(run.run_id).data.tags["reason"]
    again = start_parent("k", {})
    assert (again.run_id, again.finished) == (run.run_id, False)
    finish(other.run_id)
    finish(again.run_id)
    assert "reason" not in store.client.get_run(run.run_id).data.tags
