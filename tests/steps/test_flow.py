"""The flow from candles to forecasts, with a trainer that runs in this process: what fails, fails alone."""

import json
import re
import shlex
import shutil
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cpbmodels.fleet.fleet import Fleet
from flows.console import price
from flows.housekeeping import leave_results
from flows.train_all import run_train_all
from flows.train_one import train_one
from schemas.errors import CpbError
from schemas.home import home_folder
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.forecasting.months import latest
from tasks.forecasting.price_chances import chances_of
from tasks.promotion import night
from tasks.promotion.losses import registered_model
from tasks.running.progress import reports_to
from tasks.steps import ingest
from tasks.storage.arrays import read_npz, write_npz
from tasks.storage.sealed import resealing, sealed_files
from tasks.tracking.archive import archives, restore
from tasks.tracking.calls import search
from tasks.tracking.champions import champions
from tasks.tracking.leaderboard import read_board
from tasks.tracking.store import open_store
from tasks.tracking.store_errors import UNUSABLE
from tasks.training import shard_training as worker
from tasks.training.checkpoint import LATEST
from tasks.training.shard import read_job, read_result
from tasks.training.trainers import TrainerDied, TrainingTimeout
from tests.tools.in_process import train_by
from tests.tools.inbox import inbox

SPEC = RunSpec(
    coins="BTC,ETH",
    timeframes="1h",
    architectures="linear,robust-har",
    preset="smoke",
    source="sim",
    since="2024-09",
    as_of="2025-01-01",
    overrides={"epochs": 1},
)
LABEL = "smoke+b2c6f1d2"
"""The label of its preset, with the digest of the overrides."""
BTC, ETH = (SeriesId("sim", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))


class Trainer:
    """Stands in for resident trainers: trains in this process; `after` may spoil what it left in a folder."""

    def __init__(self):
        self.calls, self.before, self.after = [], lambda job, folder: None, lambda job, folder: None

    def __call__(self, folder):
        job = read_job(folder)
        self.calls.append(job.architecture)
        if (folder / "result.json").exists():
            return
        self.before(job, folder)
        worker.train_job(folder)
        self.after(job, folder)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory):
    """A home with the simulator's candles; copied for every test."""
    place = tmp_path_factory.mktemp("ingested")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPB_HOME", str(place / "data"))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlruns/mlflow.db")
        ingest(SPEC.scope)
    return place


@pytest.fixture
def trainer(ingested, tmp_path, monkeypatch):
    shutil.copytree(ingested / "data", tmp_path / "data")
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    monkeypatch.chdir(tmp_path)
    fake = Trainer()
    train_by(monkeypatch, fake)
    return fake


def run(**options):
    said = []
    spec = RunSpec(**SPEC.model_dump() | options)
    return run_train_all(spec, said.append), said


def statuses():
    """(architecture, symbol) -> status of every member's run."""
    runs = list(search(open_store(), "tags.`cpb.kind` = 'member'"))
    return {(r.data.tags["architecture"], r.data.tags["symbol"]): r.info.status for r in runs}


def recorded(kind):
    """(architecture or command, status, outcome, reason) of every run of a kind, without open ones beside them."""
    runs = sorted(search(open_store(), f"tags.`cpb.kind` = '{kind}'"), key=lambda run: run.info.run_name)
    return [
        (
            r.data.tags.get("architecture", r.data.tags.get("command")),
            r.info.status,
            r.data.tags.get("outcome"),
            r.data.tags.get("reason"),
        )
        for r in runs
    ]


def test_a_whole_run_and_the_same_again(trainer, tmp_path):
    first, _ = run()
    assert first.failures == []
    assert (first.exit_code, first.series, first.members, first.champions) == (0, 2, 4, 2)
    assert first.forecast_rows == 20
    assert set(statuses().values()) == {"FINISHED"}
    assert {c.series for c in champions(open_store(), market="sim")} == {BTC, ETH}
    assert champions(open_store(), market="spot") == []
    assert trainer.calls.count("linear") == 1
    trainer.before = lambda job, folder: pytest.fail("trained again")
    again, said = run()
    assert again.as_json() == first.as_json()
    assert len(statuses()) == 4
    assert any("trained before by the same command" in line for line in said)


def test_a_second_attempt_takes_the_data_of_the_first(trainer, monkeypatch):
    """Though an hourly forecast has fetched newer candles meanwhile: it is the same run, and trains nothing again."""
    opened = []

    def away_once(run, *given):
        opened.append(run.run_id)
        if len(opened) == 1:
            raise CpbError("the MLflow store cannot be used", code=UNUSABLE)
        leave_results(run, *given)

    def meanwhile(_seconds):
        ingest(RunSpec(**SPEC.model_dump() | {"as_of": "2025-01-03"}).scope)
        trainer.before = lambda job, folder: pytest.fail("trained again")

    monkeypatch.setattr("flows.train_all.leave_results", away_once)
    monkeypatch.setattr("flows.run.pause", meanwhile)
    alone = {"as_of": None, "offline": True, "architectures": "robust-har", "overrides": {}}
    done = run_train_all(RunSpec(**SPEC.model_dump() | alone), print, waits_s=[900])
    assert opened == [done.run_id] * 2
    assert recorded("flow") == [("train-all", "FINISHED", "complete", None)]
    assert done.forecast_rows == 20


def test_a_machine_that_ends_between_two_fleets_loses_no_fleet(trainer, tmp_path, monkeypatch):
    """`CPB_KEEP`: what was archived after the first fleet is all that the next session has."""
    drive, left = tmp_path / "drive", tmp_path / "left"
    drive.mkdir()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("CPB_KEEP", str(drive))
    first = []

    def between(job, folder):
        if first and job.architecture != first[0]:
            deadline = time.monotonic() + 120
            while not archives(drive):
                assert time.monotonic() < deadline
                time.sleep(0.02)
            shutil.copytree(drive, left)
        first.append(job.architecture)

    trainer.before = between
    for module in ("local", "trainers"):  # one fleet after the other
        monkeypatch.setattr(f"tasks.training.{module}.usable_cores", lambda: 1)
    whole, said = run()
    assert (
        len([line for line in said if line.startswith(f"kept: {drive}/cpb-")]) == 3
    )  # each fleet, and the end

    shutil.rmtree(tmp_path / "data")  # and the machine with it
    restore(tmp_path / "data", left)
    trained = []
    trainer.before = lambda job, folder: trained.append(job.architecture)
    again, said = run(offline=True)
    assert trained == [name for name in ("linear", "robust-har") if name != first[0]]
    assert any(line.startswith(f"trained {first[0]}: ") and "trained before" in line for line in said)
    assert (again.members, again.champions, again.forecast_rows) == (4, 2, 20)
    assert again.failures == whole.failures == []


def test_a_fleet_that_memory_halved_is_a_warning_of_the_summary_and_of_the_run(trainer, monkeypatch):
    step = Fleet.step

    def scarce(self, bank, origins, weight, lr):
        if len(origins) > 1:
            raise torch.OutOfMemoryError("no")
        return step(self, bank, origins, weight, lr)

    monkeypatch.setattr(Fleet, "step", scarce)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)  # both members in one fleet
    for _ in range(2):  # the same command again says it again
        summary, said = run(architectures="linear")
        (warning,) = summary.warnings
        assert warning in said
        assert warning.startswith("linear: memory ran out")
        assert summary.as_json()["warnings"] == [warning]
        assert (summary.exit_code, summary.members) == (0, 2)
        assert open_store().client.get_run(summary.run_id).data.tags["warnings"] == warning


def test_resuming_says_where_there_is_nothing_to_resume(trainer):
    options = {"coins": "BTC", "architectures": "linear"}
    spec = RunSpec(**SPEC.model_dump() | options)
    heard = []
    for resume in (*LATEST, None):
        said = []
        train_one(spec, resume=resume, report=said.append)
        heard.append([line.startswith("nothing to resume") for line in said].count(True))
    assert heard == [1, 0, 0]


def begun(trainer, monkeypatch, spec, *, epochs):
    """Train until an epoch has ended, then stop as if killed: its checkpoints and epochs stay."""
    on_epoch = worker.ProgressFile.on_epoch

    def stop(progress, record):
        on_epoch(progress, record)
        if record.epoch > epochs:  # the checkpoint of the epoch before is then written
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker.ProgressFile, "on_epoch", stop)
        patch.setattr("cpbmodels.fleet.checkpoints.MAX_TIME_SHARE", 1e9)
        with pytest.raises(KeyboardInterrupt):
            train_one(spec, resume="latest", report=print)


def test_a_resumed_training_says_so_at_the_beginning(trainer, monkeypatch):
    spec = RunSpec(
        **SPEC.model_dump() | {"coins": "BTC", "architectures": "linear", "overrides": {"epochs": 9}}
    )
    begun(trainer, monkeypatch, spec, epochs=3)
    said = []
    train_one(spec, resume="latest", report=said.append)
    (place,) = [
        i
        for i, line in enumerate(said)
        if line.startswith("resuming linear: from its last checkpoint on, of")
    ]
    (end,) = [i for i, line in enumerate(said) if line.startswith("trained linear: 1 model (")]
    assert place < end
    assert re.search(r"of epoch [1-4]$", said[place])
    assert said[place].removeprefix("resuming linear: ") in said[end]
    assert not any("nothing to resume" in line for line in said)


def test_the_lines_of_epochs_reach_the_listener_though_the_trainer_is_over_before_a_look(trainer):
    heard = []
    with reports_to(SimpleNamespace(progress=lambda report: None, line=heard.append)):
        run(overrides={"epochs": 25, "patience": 25})
    of_epochs = [line for line in heard if line.partition("  ")[0] in ("linear", "robust-har")]
    heads = ["  ".join(line.split("  ")[:2]) for line in of_epochs]
    assert sorted(heads) == [
        "linear  epoch 20/25",
        "linear  epoch 25/25",
        "robust-har  fitted without epochs",
    ]
    pattern = r"  train -?\d+\.\d{4}  val -?\d+\.\d{4}(  lr \d\.\de-\d\d  \d+\.\d s)?  CPU [\d,]+ MB, "
    assert all(re.search(pattern, line) for line in of_epochs), of_epochs


def test_what_the_fleets_cost_is_said_at_the_end_and_by_json(trainer):
    summary, said = run()
    (trained,) = [line for line in said if line.startswith("trained linear: ")]
    assert re.fullmatch(
        r"trained linear: 2 models \(\d+\.\d s, [\d,]+ windows/s on cpu, at most [\d,]+ MB of memory, "
        r"best epoch 1 of 1\)",
        trained,
    )
    (solved,) = [line for line in said if line.startswith("trained robust-har: ")]
    assert "best epoch" not in solved
    assert re.fullmatch(
        r"cost: \d+\.\d s of training on cpu \(linear \d+\.\d s, robust-har \d+\.\d s\), at most [\d,]+ MB of memory",
        said[-1],
    )
    linear, robust = summary.as_json()["fleets"]
    assert (linear["fleet"], linear["device"], linear["best_epoch"], linear["epochs_run"]) == (
        "linear",
        "cpu",
        1,
        1,
    )
    assert (robust["fleet"], robust["best_epoch"]) == ("robust-har", None)
    assert {linear["preset"], robust["preset"]} == {LABEL}
    assert min(linear["seconds"], linear["windows_per_s"], linear["rss_peak_mb"]) > 0
    assert linear["gpu_mem_allocated_peak_mb"] is None
    assert run()[1][-1] == f"{said[-1]}; by an earlier run: linear, robust-har"


def test_of_classifiers_the_run_says_how_often_they_are_right(trainer):
    summary, said = run(architectures="classifier-gru,robust-har")
    (line,) = [line for line in said if line.startswith("classifier-gru: ")]
    figures = r"accuracy 0\.\d{4}, macro-F1 0\.\d{4}; always the most frequent class: accuracy 0\.\d{4}"
    assert re.fullmatch(f"classifier-gru: {figures}", line)
    classifier, robust = summary.as_json()["fleets"]
    assert 0 < classifier["test_macro_f1"] <= classifier["test_accuracy"] < 1
    assert "test_accuracy" not in robust
    assert any(
        line.startswith("judged 4 models against the random walk and the class frequencies") for line in said
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"profile": "gpu-6gb"},
            "profile gpu-6gb sets batch_size 16, context 20 of preset seed-gru: "
            "other models than the preset's own",
        ),
        (
            {"profile": "gpu-6gb", "batch_size": 8},
            "profile gpu-6gb sets context 20 of preset seed-gru: other models than the preset's own",
        ),
        ({"profile": "gpu-16gb"}, None),
    ],
)
def test_a_profile_says_what_it_sets(trainer, options, sentence):
    sizes = {name: value for name, value in options.items() if name != "profile"}
    overrides = {"epochs": 1, "steps_per_epoch": 1, "hidden_dim": 4} | sizes
    _, said = run(
        coins="BTC", architectures=None, preset="seed-gru", profile=options["profile"], overrides=overrides
    )
    assert [line for line in said if line.startswith("profile ")] == ([sentence] if sentence else [])


def test_a_batch_in_parts_that_was_asked_for_is_no_lack_of_memory(trainer):
    summary, said = run(architectures="linear", overrides={"epochs": 1, "accumulate": 2})
    assert summary.warnings == []
    assert not any("memory ran out" in line for line in said)


def spoil_forecast(name):
    def spoil(job, folder):
        path = folder / "members" / name / "test.npz"
        if job.architecture == "linear":
            arrays = read_npz(path)
            arrays["quantiles"][3, 2, 1] = np.nan
            with resealing(path.parent, path.name):
                write_npz(path, arrays)

    return spoil


def test_one_forecast_that_is_not_finite_costs_that_model_alone(trainer):
    trainer.after = spoil_forecast("sim-ETHUSDT-1h")
    summary, said = run()
    assert summary.exit_code == 3
    (failure,) = summary.failures
    assert (failure.step, failure.code, str(failure.model)) == (
        "evaluate",
        "non-finite",
        "linear/sim-ETHUSDT/1h",
    )
    assert statuses() == {
        ("linear", "BTCUSDT"): "FINISHED",
        ("linear", "ETHUSDT"): "FAILED",
        ("robust-har", "BTCUSDT"): "FINISHED",
        ("robust-har", "ETHUSDT"): "FINISHED",
    }
    why = f"linear/sim-ETHUSDT/1h ({LABEL}) in evaluate: {failure.why}"
    assert recorded("flow") == [("train-all", "FINISHED", "partial", why)]
    assert recorded("fleet") == [
        ("linear", "FINISHED", "partial", why),
        ("robust-har", "FINISHED", "complete", None),
    ]
    assert (summary.members, summary.champions) == (3, 2)
    assert any(line.startswith(f"FAILED linear/sim-ETHUSDT/1h ({LABEL}) in evaluate") for line in said)


@pytest.mark.parametrize(
    ("error", "code", "tries"),
    [
        (TrainerDied("killed"), "trainer-died", 2),
        (TrainingTimeout("too long"), "timeout", 1),
        (CpbError("memory ran out"), "error", 1),
        (OSError(28, "No space left on device"), "unexpected", 1),
        (RuntimeError("the shard was lost"), "unexpected", 1),
    ],
    ids=["died", "timeout", "memory", "disk", "lost"],
)
def test_a_fleet_that_cannot_be_trained_is_recorded_as_failed_and_leaves_the_others_good(
    trainer, monkeypatch, error, code, tries
):
    def die(job, folder):
        if job.architecture == "linear":
            raise error

    trainer.before = die
    monkeypatch.setattr("tasks.steps.RETRY_WAIT_S", 0)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)  # both members in one shard
    summary, _ = run()
    assert {(f.step, f.code, f.model.architecture) for f in summary.failures} == {("train", code, "linear")}
    assert len(summary.failures) == 2
    assert trainer.calls.count("linear") == tries
    assert statuses() == {
        ("linear", "BTCUSDT"): "FAILED",
        ("linear", "ETHUSDT"): "FAILED",
        ("robust-har", "BTCUSDT"): "FINISHED",
        ("robust-har", "ETHUSDT"): "FINISHED",
    }
    why = f"linear/sim-BTCUSDT/1h ({LABEL}) in train: {error} (and 1 more)"
    assert recorded("flow") == [("train-all", "FINISHED", "partial", why)]
    assert recorded("fleet") == [
        ("linear", "FAILED", "failed", why),
        ("robust-har", "FINISHED", "complete", None),
    ]
    members = [run for run in recorded("member") if run[0] == "linear"]
    assert members == [("linear", "FAILED", None, str(error))] * 2
    assert (summary.exit_code, summary.members, summary.champions) == (3, 2, 2)
    assert {row["architecture"] for row in read_board(market="sim")} == {"robust-har"}

    trainer.before = lambda job, folder: None  # the cause is gone: the same command makes all of it good
    again, _ = run()
    assert (again.run_id, again.exit_code, again.members) == (summary.run_id, 0, 4)
    assert recorded("flow") == [("train-all", "FINISHED", "complete", None)]
    assert {run[1:] for run in recorded("fleet")} == {("FINISHED", "complete", None)}
    assert set(statuses().values()) == {"FINISHED"}
    assert len(recorded("member")) == 4


@pytest.mark.parametrize("one", [False, True], ids=["train-all", "train"])
def test_a_run_of_which_nothing_could_be_trained_is_recorded_with_every_member(trainer, monkeypatch, one):
    def die(job, folder):
        raise TrainerDied("killed")

    trainer.before = die
    monkeypatch.setattr("tasks.steps.RETRY_WAIT_S", 0)
    spec = RunSpec(**SPEC.model_dump() | ({"coins": "BTC", "architectures": "linear"} if one else {}))
    begin = partial(train_one, spec, resume=None) if one else partial(run_train_all, spec)
    with pytest.raises(CpbError, match="no model could be trained; the first reason: linear/sim-BTC") as end:
        begin(report=print)
    assert end.value.code == "no-model"
    command = "train" if one else "train-all"
    assert recorded("flow") == [(command, "FAILED", "failed", str(end.value))]
    assert {run[1:3] for run in recorded("fleet")} == {("FAILED", "failed")}
    assert {(run[1], run[3]) for run in recorded("member")} == {("FAILED", "killed")}
    assert len(recorded("member")) == (1 if one else 4)


def test_a_fleet_of_which_no_member_could_be_judged_is_recorded_as_failed(trainer):
    def spoil(job, folder):
        for series in (BTC, ETH):
            if (folder / "members" / series.name).exists():
                spoil_forecast(series.name)(job, folder)

    trainer.after = spoil
    summary, _ = run()
    assert (summary.exit_code, summary.members, summary.champions) == (3, 2, 2)
    (fleet,) = [run for run in recorded("fleet") if run[0] == "linear"]
    assert fleet[1:3] == ("FAILED", "failed")
    assert f"linear/sim-BTCUSDT/1h ({LABEL}) in evaluate: " in fleet[3]


def test_a_fault_in_the_middle_of_the_record_leaves_no_run_open(trainer, monkeypatch):
    monkeypatch.setattr("tasks.tracking.fleet_log.log_members", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run()
    ended = [*recorded("flow"), *recorded("fleet")]
    assert {run[1] for run in ended} == {"FAILED"}
    assert {run[3] for run in ended} == {"division by zero"}


def test_a_model_that_diverged_in_its_first_epoch_is_a_failure_and_no_champion(trainer, monkeypatch):
    train = worker.train_members

    def diverge(job, loaded, **how):
        models = train(job, loaded, **how)
        return [
            replace(m, report=m.report | {"diverged": True})
            if s.symbol.endswith("BTCUSDT") and job.architecture == "robust-har"
            else m
            for m, (_, s) in zip(models, loaded, strict=True)
        ]

    monkeypatch.setattr(worker, "train_members", diverge)
    summary, _ = run()
    (failure,) = summary.failures
    assert (failure.step, failure.code, str(failure.model)) == (
        "train",
        "diverged",
        "robust-har/sim-BTCUSDT/1h",
    )
    serving = {c.series: c.architecture for c in champions(open_store(), market="sim")}
    assert serving[BTC] == "linear"
    assert statuses()["robust-har", "BTCUSDT"] == "FAILED"


def test_a_series_that_fails_early_is_a_failed_run_of_every_fleet_and_of_nothing_else(trainer):
    summary, _ = run(coins="BTC,ETH,NOPECOIN")
    (failure,) = summary.failures
    assert (failure.step, failure.model, failure.series.symbol) == ("ingest", None, "NOPECOINUSDT")
    failed = {k for k, v in statuses().items() if v == "FAILED"}
    assert failed == {("linear", "NOPECOINUSDT"), ("robust-har", "NOPECOINUSDT")}
    assert (summary.members, summary.champions, summary.exit_code) == (4, 2, 3)


def test_people_are_told_of_failures_and_new_champions_and_a_dead_service_costs_nothing(trainer, monkeypatch):
    with inbox() as service:
        monkeypatch.setenv("CPB_NOTIFY", service.url)
        monkeypatch.setenv("CPB_HEARTBEAT_URL", service.heartbeat)
        run(coins="BTC,ETH,NOPECOIN")
        (told,) = service.messages
        assert told["title"].endswith(": train-all")
        assert "sim NOPECOINUSDT 1h failed in ingest" in told["message"]
        assert "champion" not in told["message"]  # a first one replaces none
        with pytest.raises(CpbError):
            run(coins="NOPECOIN")
        assert "no series can be trained" in service.messages[1]["message"]
        assert service.beats == []
        run()  # another run, on the same candles: the gate moves nothing
        run()
        assert len(service.messages) == 2
        assert service.beats == ["/ping-secret/train-all"] * 2
    assert run(coins="BTC,ETH,NOPECOIN", seed=2)[0].exit_code == 3


def test_nothing_to_train_ends_in_one_sentence_and_a_fault_never_leaves_a_run_open(trainer, monkeypatch):
    with pytest.raises(CpbError) as refused:
        run(coins="NOPECOIN")
    assert refused.value.code == "no-series"
    monkeypatch.setattr("tasks.judging.fleet.judge_pools", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run()
    open_runs = [r for r in search(open_store(), "tags.`cpb.kind` = 'flow'") if r.info.status == "RUNNING"]
    assert open_runs == []


@pytest.mark.timeout(60)
def test_a_training_that_cannot_begin_ends_the_run_and_nobody_waits_for_its_shards(trainer, monkeypatch):
    monkeypatch.setattr("tasks.training.local.LocalEngine.plan", lambda engine, shards: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run()


def weights_of(shard):
    """The sha256 of the weights of a finished shard's members."""
    folders = [shard / "members" / member.name for member in read_result(shard).members]
    return [sealed_files(folder)["model/model.safetensors"] for folder in folders]


def test_a_damaged_result_is_made_again(trainer, tmp_path):
    first, _ = run()
    results = sorted((tmp_path / "data" / "sim" / "fleets").glob("*/result.json"))
    assert len(results) == 2
    whole = weights_of(results[0].parent)
    results[0].write_bytes(results[0].read_bytes()[:-40])
    again, _ = run()
    assert (again.exit_code, again.members) == (0, first.members)
    assert weights_of(results[0].parent) == whole


def shortened(home, symbol, days):
    """Let a coin's stored candles end `days` before the others': it is not traded any more."""
    from datetime import timedelta

    import polars as pl

    folder = SeriesId("sim", symbol, "1h").folder(home, "klines")
    last = max(
        pl.read_parquet(f, hive_partitioning=False)["open_time"].max() for f in folder.glob("*.parquet")
    )
    return last - timedelta(days=days)


@pytest.mark.parametrize(("days", "stopped"), [(13, []), (15, ["sim-ETHUSDT-1h"])])
def test_a_coin_that_stopped_trading_loses_its_champion(trainer, tmp_path, monkeypatch, days, stopped):
    first, _ = run()
    assert first.champions == 2
    from tasks.signals import feature_files

    read, end = feature_files.read_klines, shortened(tmp_path / "data", "ETHUSDT", days)
    monkeypatch.setattr(
        feature_files,
        "read_klines",
        lambda home, series, as_of=None, **kw: read(
            home, series, as_of=end if series.symbol == "ETHUSDT" else as_of, **kw
        ),
    )
    # It is more candles than the champion has seen that count: this run sees fewer of ETH.
    monkeypatch.setattr(
        night, "registered_model", lambda champion: replace(registered_model(champion), candles=0)
    )
    summary, said = run()
    assert summary.stopped == stopped
    assert summary.exit_code == 0
    serving = {c.series for c in champions(open_store(), market="sim")}
    assert serving == ({BTC} if stopped else {BTC, ETH})
    assert any("has stopped trading" in line for line in said) == bool(stopped)
    assert any("sim ETHUSDT 1h has lost its champion" in line for line in said) == bool(stopped)


def test_a_run_ends_with_its_forecasts_and_with_commands_that_work(trainer, cpb_here):
    spec = SPEC.model_dump(exclude={"overrides"})
    options = [f"--{name.replace('_', '-')}={spec[name]}" for name in ("source", "since", "as_of", "preset")]
    words = ["train-all", "--coins=BTC,ETH", "--timeframes=1h", "--architectures=linear", "--set", "epochs=1"]
    code, out, err = cpb_here(*words, *options)
    assert code == 0
    assert "2 coins have their first champion, linear: on the test span its bands were " in err
    assert "2 champions packaged in " in err
    assert re.search(r"1h \(market sim\): the close of 2025-01-01 10:00 UTC", out)
    told = json.loads(cpb_here(*words, *options, "--json")[1].splitlines()[-1])
    assert [(row["symbol"], row["market"]) for row in told["forecasts"]] == [
        ("BTCUSDT", "sim"),
        ("ETHUSDT", "sim"),
    ]
    verdicts = {champion.series: champion.verdict for champion in champions(open_store(), market="sim")}
    for series, row in zip((BTC, ETH), told["forecasts"], strict=True):
        stored = latest(home_folder(), series)
        last = stored.row(-1, named=True)
        assert {name: row[name] for name in ("q10", "q90", "last_close")} == {
            name: pytest.approx(last[name]) for name in ("q10", "q90", "last_close")
        }
        up, down = chances_of(home_folder(), series, stored).stops([0.05])
        assert (row["stop_5_up"], row["stop_5_down"]) == (
            pytest.approx(up["price"]),
            pytest.approx(down["price"]),
        )
        assert row["verdict"] == verdicts[series]
        shown = (
            f"{price(row['q10'])}–{price(row['q90'])} {price(row['stop_5_down'])} {price(row['stop_5_up'])}"
        )
        assert shown in " ".join(out.split())
    commands = [line.strip() for line in err.splitlines() if line.startswith("  cpb ")]
    assert commands[0].startswith(
        "cpb forecast BTC 1h --source sim --since 2024-09 --as-of 2025-01-01 --target "
    )
    assert commands[1:] == ["cpb serve", "cpb champions --why --market sim", "cpb ui"]
    code, out, _ = cpb_here(*shlex.split(commands[0])[1:])
    assert code == 0
    assert "reached first?" in out
    assert cpb_here(*shlex.split(commands[2])[1:])[0] == 0


def test_a_champion_without_a_table_of_extremes_has_a_band_and_no_touched_prices(trainer, monkeypatch):
    monkeypatch.setattr("tasks.storage.packaged.ServedModel.extremes", lambda model: None)
    made, _ = run(architectures="linear")
    assert made.exit_code == 0
    assert [(row["stop_5_up"], row["stop_5_down"]) for row in made.forecasts] == [(None, None)] * 2
    assert all(row["q10"] < row["last_close"] < row["q90"] for row in made.forecasts)
