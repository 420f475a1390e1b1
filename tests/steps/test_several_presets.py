"""Several presets in one run: two of one architecture are told apart in everything that people and programs see."""

import json
import shutil
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from flows.backtest import run_backtest
from flows.train_all import run_train_all
from schemas.backtesting import BacktestSpec
from schemas.errors import CpbError
from schemas.home import home_folder
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.promotion.night_fleets import fleets_to_train
from tasks.steps import plan
from tasks.tracking.calls import search
from tasks.tracking.champions import champions
from tasks.tracking.flow_runs import newest_flow_runs
from tasks.tracking.judged_models import judged_models
from tasks.tracking.leaderboard import read_board, read_members
from tasks.tracking.store import open_store
from tasks.training import shard_training as worker
from tasks.training.shard import read_job, shard_folders
from tasks.training.shard_retention import remove_old_shards
from tests.tools.in_process import train_by

SCOPE = {"coins": "BTC,ETH", "timeframes": "1h", "source": "sim", "since": "2024-09", "as_of": "2025-01-01"}
BTC = SeriesId("sim", "BTCUSDT", "1h")
FILES = {"a.toml": 1, "b.toml": 2}
"""Presets of one's own, of the same base: the epochs of each."""


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    """A home with the simulator's candles; copied for every test."""
    place = tmp_path_factory.mktemp("ingested")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPB_HOME", str(place / "data"))
        from tasks.steps import ingest

        ingest(RunSpec(**SCOPE).scope)
    return place


@pytest.fixture
def here(ingested, tmp_path, monkeypatch):
    """A copy of the home, two preset files, and a trainer in this process, whose calls it returns."""
    shutil.copytree(ingested / "data", tmp_path / "data")
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    monkeypatch.chdir(tmp_path)
    for name, epochs in FILES.items():
        text = f'base = "smoke"\narchitectures = ["linear"]\n[options]\nepochs = {epochs}\n'
        Path(name).write_text(text)
    calls = []

    def train(folder):
        calls.append(read_job(folder))
        if not (folder / "result.json").exists():
            worker.train_job(folder)

    train_by(monkeypatch, train)
    return calls


def run(**options):
    said = []
    spec = RunSpec(**SCOPE | {"preset": "a.toml,b.toml,smoke", "architectures": "linear"} | options)
    return run_train_all(spec, said.append), said


def runs(kind):
    return [*search(open_store(), f"tags.`cpb.kind` = '{kind}'")]


def test_three_changes_of_one_preset_are_three_models_of_a_series(here):
    summary, said = run()
    assert (summary.exit_code, summary.members, summary.champions) == (0, 6, 2)
    fleets = {fleet.data.tags["recipe"]: fleet for fleet in runs("fleet")}
    a, b, plain = sorted(fleets, key=len, reverse=True)
    assert plain == "smoke"
    assert all(label.startswith("smoke+") for label in (a, b))
    # on the terminal
    names = {f"linear/{label}" for label in fleets}
    assert {
        line.split(":")[0].removeprefix("trained ") for line in said if line.startswith("trained ")
    } == names
    # in MLflow
    assert {fleet.info.run_name for fleet in fleets.values()} == {
        f"linear · BTC, ETH · 1h · {label} · 2025-01-01" for label in fleets
    }
    (flow,) = runs("flow")
    assert flow.info.run_name == "train-all · BTC, ETH · 1h · smoke · 2025-01-01"
    assert {*newest_flow_runs(open_store(), 1)[0].architectures} == names
    members = Counter((m.info.run_name, m.data.tags["preset"], m.data.tags["recipe"]) for m in runs("member"))
    assert members == Counter(
        (f"linear/sim-{coin}USDT/1h", "smoke", label) for coin in ("BTC", "ETH") for label in fleets
    )
    # on boards and pages
    rows = read_board(summary.run_id)
    assert {(row["architecture"], row["preset"]) for row in rows} == {("linear", label) for label in fleets}
    assert len({row["crps_ratio"] for row in rows}) == 3
    models = judged_models(open_store(), BTC, read_members(open_store()))
    assert {model.preset for model in models} == {*fleets}
    results = json.loads((home_folder() / "sim/results.json").read_text())["models"]
    assert {(row["symbol"], row["preset"]) for row in results} == {
        (f"{coin}USDT", label) for coin in ("BTC", "ETH") for label in fleets
    }
    # for the gate
    assert any("from 3 recipes" in line for line in said)
    assert len({champion.tags["cpb.recipe"] for champion in champions(open_store())}) == 1
    # on disk: the next run, and the same one, keep all
    folders = shard_folders(home_folder() / "sim")
    assert len(folders) == 3
    assert remove_old_shards(home_folder() / "sim/fleets") == []
    again, said = run()
    assert again.as_json() == summary.as_json()
    assert sum(line.startswith("trained ") and "before by the same command" in line for line in said) == 3


def test_a_run_with_a_file_needs_it_only_once_and_its_name_decides_nothing(here):
    options = RunSpec(**SCOPE | {"preset": "a.toml,smoke", "architectures": "linear"})
    Path("c.toml").write_text(Path("a.toml").read_text())
    other = RunSpec(**SCOPE | {"preset": "./c.toml,smoke", "architectures": "linear"})
    for name in (*FILES, "c.toml"):
        Path(name).unlink()
    ids = set()
    for spec in (options, RunSpec(**json.loads(options.model_dump_json())), other):
        summary = run_train_all(spec, lambda _: None)
        assert summary.members == 4
        ids.add(summary.run_id)
    assert len(ids) == 1


def test_a_failure_names_the_preset_and_costs_no_other(here, monkeypatch):
    train = worker.train_job

    def die(folder):
        if read_job(folder).overrides.get("epochs") == 2:
            raise CpbError("memory ran out")
        return train(folder)

    monkeypatch.setattr(worker, "train_job", die)
    summary, said = run()
    (label,) = {failure.model.recipe for failure in summary.failures}
    assert label.startswith("smoke+")
    assert [line for line in said if line.startswith("FAILED")] == [
        f"FAILED linear/sim-BTCUSDT/1h ({label}), linear/sim-ETHUSDT/1h ({label}) in train: memory ran out"
    ]
    assert {row["preset"] for row in summary.as_json()["failures"]} == {label}
    assert {fleet.data.tags["recipe"]: fleet.info.status for fleet in runs("fleet")}[label] == "FAILED"
    assert (summary.members, summary.exit_code) == (4, 3)
    assert len(read_board(summary.run_id)) == 2


def test_each_fleet_has_a_progress_and_a_task_of_its_own(here, monkeypatch):
    said = []
    monkeypatch.setattr("tasks.training.fleet_progress.report_progress", lambda *line: said.append(line[0]))
    run()
    assert len({*said}) == 3
    assert all(line.startswith("train linear/smoke") for line in said)
    spec = RunSpec(**SCOPE | {"preset": "a.toml,smoke", "architectures": "linear,har"})
    names = [fleet.name for fleet in plan(spec, [m.features for job in here for m in job.members][:1]).fleets]
    assert names == [f"linear/{here[0].members[0].model.recipe}", "linear/smoke", "har"] or len(names) == 3
    assert names[1:] == ["linear/smoke", "har"]


def test_a_backtest_has_a_model_of_each_preset(here):
    spec = BacktestSpec(
        **SCOPE,
        preset="a.toml,b.toml,smoke",
        architectures="linear,har",
        folds=2,
        out="out",
        check_lookahead=True,
        baselines="random-walk",
    )
    said = []
    answer = run_backtest(spec, said.append)
    (a, b), names = [name for name in answer["pooled"] if "+" in name], {"random-walk", "linear/smoke", "har"}
    assert {*answer["pooled"]} == names | {a, b}
    presets = {name: rows["1h"]["preset"] for name, rows in answer["pooled"].items()}
    assert presets == {a: a[7:], b: b[7:], "linear/smoke": "smoke", "har": "smoke", "random-walk": None}
    assert answer["members"][f"{a}/sim-BTCUSDT/1h"]["preset"] == a[7:]
    assert {pair[side] for pair in answer["pairs"] for side in ("first", "second")} == names | {a, b}
    for name in (a, b, "linear/smoke"):
        assert f"training of {name}" not in answer["lookahead"]  # it is no finding
        assert f"{name} trained on shuffled" in answer["lookahead"]
    assert any(f"training {a}, {b}, linear/smoke, har" in line for line in said)
    out = Path("out")
    rows = pl.scan_parquet(out / "forecasts", hive_partitioning=True).collect()
    assert {*rows["model"]} == {*rows["model_version"]} == (names | {a, b}) - {"random-walk"}
    board = pl.read_csv(out / "leaderboard.csv")
    assert dict(board.select("architecture", "preset").iter_rows()) == presets | {"random-walk": ""}
    assert "Presets a.toml, b.toml, smoke" in (out / "report.html").read_text()


def test_train_and_tune_take_one_preset(cpb_here):
    for words in (("train", "BTC", "1h", "--arch", "gru"), ("tune", "--arch", "gru")):
        code, out, err = cpb_here(*words, "--source", "sim", "--preset", "seed-gru,default")
        assert (code, out) == (2, "")
        assert err.startswith("cpb: preset 'seed-gru,default': `cpb ")
        assert "name one" in err


def test_what_is_trained_does_not_depend_on_the_registry_without_serving():
    spec = RunSpec(**SCOPE | {"preset": "seed-gru,default"})
    assert fleets_to_train(spec, [BTC]) == ({"1h": spec.fleets}, ())
