"""`cpb tune` from candles to a preset, with Optuna."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

optuna = pytest.importorskip("optuna")

import cpbmodels  # noqa: E402
from flows.tune import run_tune  # noqa: E402
from schemas.errors import BusyError, CpbError  # noqa: E402
from schemas.run import RunSpec  # noqa: E402
from schemas.tuning import TuneSpec  # noqa: E402
from tasks.storage.locks import locked  # noqa: E402
from tasks.tracking.calls import search  # noqa: E402
from tasks.tracking.leaderboard import read_board  # noqa: E402
from tasks.tracking.metrics import OF_TRIALS  # noqa: E402
from tasks.tracking.store import open_store  # noqa: E402
from tasks.tuning import search as loop  # noqa: E402
from tasks.tuning import trials as batches  # noqa: E402
from tasks.tuning.study import Study  # noqa: E402

ASKED = {
    "source": "sim",
    "coins": "BTC,ETH",
    "timeframes": "1h",
    "preset": "smoke",
    "architectures": "gru",
    "since": "2025-03",
    "as_of": "2025-06-01",
    "folds": 1,
    "device": "cpu",
    "overrides": {"hidden_dim": 4, "context": 8, "steps_per_epoch": 4, "max_validation_windows": 40},
}


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(loop, "BATCH", 4)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tune(**more):
    said = []
    return run_tune(TuneSpec(**ASKED | more), said.append), said


@pytest.mark.slow
def test_a_study_is_searched_scored_once_and_gone_on_with(place):
    first, _ = tune(trials=6)
    assert first["trials"] == first["completed"] + first["pruned"] + first["failed"] == 6
    assert first["test_times_scored"] == 1
    assert first["luck"]["trials"] == 6 - first["failed"]
    assert first["report"] == str(place / "home/sim/tuning" / first["study"] / "report.json")
    assert Path(first["preset"]).is_file()
    report = json.loads(Path(first["report"]).read_text())
    assert report["winner"] == first["winner"]
    again, said = tune(trials=6)  # nothing left to do: not trained and not scored again
    assert {k: again[k] for k in ("winner", "luck", "test")} == {
        k: first[k] for k in ("winner", "luck", "test")
    }
    assert not any("scoring" in line for line in said)
    more, _ = tune(trials=9)
    assert (more["study"], more["trials"]) == (first["study"], 9)
    if more["winner"]["trial"] == first["winner"]["trial"]:
        assert more["test_times_scored"] == 1
    stored = optuna.load_study(study_name=first["study"], storage=f"sqlite:///{first['storage']}")
    assert [trial.number for trial in stored.trials] == list(range(9))
    assert (
        min(t.value for t in stored.trials if t.value is not None and t.state.name == "COMPLETE")
        == (more["winner"]["validation_crps_ratio"])
    )
    spec = RunSpec(source="sim", coins="BTC", preset=more["preset"])
    (fleet,) = spec.fleets
    assert fleet.architecture == "gru"
    options = cpbmodels.preset(fleet.preset, "gru", **fleet.overrides)
    assert all(getattr(options, name) == value for name, value in more["winner"]["options"].items())
    store = open_store()
    below = list(search(store, f"tags.`mlflow.parentRunId` = '{first['run_id']}'"))
    assert len(below) == 9
    assert {run.data.tags["cpb.kind"] for run in below} == {"trial"}
    assert set().union(*(run.data.metrics for run in below)) == set(OF_TRIALS)
    with pytest.raises(CpbError) as error:  # trials are no models
        read_board()
    assert error.value.code == "no-run"


@pytest.mark.slow
def test_a_study_that_lost_a_series_is_partial_in_mlflow_too(place):
    answer, _ = tune(trials=2, coins="BTC,NOPECOIN")
    assert answer["exit"] == 3
    run = open_store().client.get_run(answer["run_id"])
    assert (run.info.status, run.data.tags["outcome"]) == ("FINISHED", "partial")
    assert run.data.tags["reason"].startswith("sim NOPECOINUSDT 1h in ingest: ")


@pytest.mark.slow
def test_a_trial_equals_its_training_alone_and_a_budget_ends_the_search(place, monkeypatch):
    seen = {}
    train = batches.train_batch

    def noted(trials, scored, **options):
        results = train(trials, scored, **options | {"dtype": "float64", "prune": lambda *_: False})
        seen.update(trials=trials, scored=scored, results=results)
        return results

    monkeypatch.setattr(loop, "train_batch", noted)
    tune(trials=3)
    trial, scored, result = seen["trials"][1], seen["scored"], seen["results"][1]
    ratios = []
    for fold in scored:
        assert fold.fold.fold == 1
        (member,) = cpbmodels.train_fleet(
            [fold.fold.series],
            "gru",
            "smoke",
            dtype="float64",
            device="cpu",
            seeds=batches.member_seed(1, "gru", fold.fold.id, 1),
            **ASKED["overrides"] | trial,
        )
        forecast = cpbmodels.predict([member], [fold.fold.series], [fold.origins])[0]
        ratios.append((batches.crps(forecast.quantiles, fold.truth).mean(1) / fold.mean).mean())
    assert result.ratio == pytest.approx(float(np.mean(ratios)), rel=1e-9)
    assert sum(result.losses) == pytest.approx(result.ratio)
    ended = []

    def first_batch(*given, **options):
        results = train(*given, **options)
        ended.append(len(results))
        return results

    # An hour passes with the first batch: on a busy machine a budget of a second ends before any epoch does.
    monkeypatch.setattr(loop, "train_batch", first_batch)
    passed = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * len(ended))
    monkeypatch.setattr(loop, "time", passed)
    short, _ = tune(trials=500, seed=5, budget="10m")
    assert [short["trials"]] == ended


@pytest.mark.slow
def test_a_budget_that_ends_within_the_first_epoch_leaves_the_trials_out(place, monkeypatch):
    train = batches.train_batch

    def late(*given, **options):
        results = train(*given, **options | {"deadline": time.monotonic()})
        assert results == [None] * 4
        return results

    monkeypatch.setattr(loop, "train_batch", late)
    with pytest.raises(CpbError) as error:
        tune(trials=4, budget="10m")
    assert error.value.code == "no-trial"
    assert "none of 0 trials was completed" in str(error.value)


def test_a_failed_search_is_marked_before_another_one_may_begin(place, monkeypatch):
    """Otherwise the same command, which waits for the lock, would open a run that is then marked as failed."""

    def no_trials(*_given):
        raise CpbError("no trial was completed")

    def marked(_run_id, outcome, _tags):
        (lock,) = place.glob("home/sim/tuning/*/lock")
        with pytest.raises(BusyError), locked(lock, wait=False):
            pass
        ended.append(outcome)

    ended = []
    monkeypatch.setattr(loop, "run_trials", no_trials)
    monkeypatch.setattr("flows.run.finish", marked)
    with pytest.raises(CpbError, match="no trial"):
        tune(trials=1)
    assert ended == ["failed"]


def test_halving_gives_up_the_worse_half_of_a_batch(tmp_path):
    study = Study(tmp_path / "o.db", "one", TuneSpec(**ASKED))
    trials = study.ask(9)
    given_up = [study.should_prune(trials, k, 2, float(k)) for k in range(len(trials))]
    assert sum(given_up) >= 5
    assert not given_up[0]
    for k, trial in enumerate(trials):
        study.tell(trial, float(k), pruned=given_up[k], attributes={"x": k})
    assert len(study.save()) == study.trials == 9
    again = Study(tmp_path / "o.db", "one", TuneSpec(**ASKED))
    assert again.trials == 9
    assert again.best().number == 0


def test_no_other_command_imports_optuna():
    code = (
        "import sys, flows.cli.app; flows.cli.app._app(); import flows.tune; print('optuna' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout.lower()) is False
