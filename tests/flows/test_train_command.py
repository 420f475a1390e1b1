"""`cpb train`: one model by position, options of the model's preset, and what it prints."""

import json
import shlex
import sys
import zlib
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from flows.run import Run
from schemas.fleets import FleetSpec
from schemas.handover import FleetJudgement, Judgement, SeriesRecord, ShardResult, TrainedMember
from schemas.identity import ModelId, SeriesId
from schemas.run import TrainSpec
from tasks.training.checkpoint import progress_so_far

METRICS = {"test_crps_ratio": 0.9, "test_crps_ratio_low": 0.8, "test_crps_ratio_high": 0.95}
MODEL = ModelId("gru", "seed-gru", SeriesId("sim", "BTCUSDT", "1h"), 7)


@pytest.fixture
def end_of(cpb_here):
    def run(*words):
        code, out, err = cpb_here("train", *words, "--json")
        return code, json.loads(out.splitlines()[-1]), err

    return run


NO_LAYERS = (
    "n_layers has no effect on har, which reads hidden_dim, dropout: leave it out, or train an architecture that reads "
    "it: transformer, gru, lstm, lstm-manual, classifier-gru."
)


@pytest.mark.parametrize(
    ("words", "field", "sentence"),
    [
        ("BTC 1h --arch gru --set n_heads=4", "overrides", "n_heads has no effect on gru"),
        ("BTC 1h --n-layers 3", "overrides", NO_LAYERS),
        ("BTC 1h --arch gru --set n_layers=1 --set dropout=0.5", "overrides", "dropout has no effect on gru"),
        (
            "BTC 1h --resume newest",
            "resume",
            "resume 'newest' is not a checkpoint and holds none: give latest",
        ),
        ("BTC,ETH 1h", "", "`cpb train` trains one model"),
        (
            "BTC 1h --preset seed-gru,seed-lstm",
            "preset",
            "preset 'seed-gru,seed-lstm': `cpb train` trains one preset's model",
        ),
    ],
)
def test_one_sentence_names_the_field(words, field, sentence, end_of):
    code, told, err = end_of(*words.split())
    assert (code, told["exit"], told["field"]) == (2, 2, field)
    assert told["error"].startswith(sentence)
    # On a busy machine lines of progress stand before it.
    assert err.splitlines()[-1] == f"cpb: {told['error']}"


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """`cpb train` whose training is replaced by a result; gives what was asked of it."""
    from flows import train_one

    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    report = {
        "epochs_run": 2,
        "best_epoch": 2,
        "best_val_loss": 2.5,
        "windows_per_s": 10.0,
        "rss_peak_mb": 5.0,
        "reason": "no better validation loss for 2 epochs",
        "device": "cpu",
    }
    history = ({"train_loss": 2.0, "val_loss": 3.0}, {"train_loss": 1.0, "val_loss": 2.5})
    member = TrainedMember(model=MODEL, name="sim-BTCUSDT-1h", history=history, report=report)
    shard = ShardResult(key="0f", architecture="gru", members=(member,), train_seconds=66.54)
    folder = tmp_path / "sim/fleets/0f/members/sim-BTCUSDT-1h"
    features = SeriesRecord(
        series=MODEL.series, path="f", digest="d", file_digest="f", rows=9, first_us=0, last_us=8
    )
    judgement = Judgement(
        model=MODEL,
        folder=folder,
        features=features,
        run_id="r1",
        metrics=METRICS,
        verdict="better than the random walk",
        fleet=FleetSpec(architecture="gru", preset="smoke"),
    )
    judged = FleetJudgement(key="0f", architecture="gru", run_id="f", judgements=(judgement,))
    asked = {}
    told = SimpleNamespace(asked=asked, shard=shard, judged=judged, home=tmp_path)

    def plan_training(run, spec, records, engine):
        run.run_id = "parent"

    def train_and_evaluate(run, spec, planned, engine, archiver, resume):
        asked.update(name=run.name, spec=spec, resume=resume)
        return [[told.shard]], [told.judged]

    monkeypatch.setattr(train_one, "check_records", lambda *_: None)
    monkeypatch.setattr(train_one, "opened_engine", lambda spec: nullcontext())
    monkeypatch.setattr(train_one, "ingest_scope", lambda *_: ())
    monkeypatch.setattr(train_one, "write_columns", lambda *_: [])
    monkeypatch.setattr(train_one, "plan_training", plan_training)
    monkeypatch.setattr(train_one, "train_and_evaluate", train_and_evaluate)
    monkeypatch.setattr("flows.run.finish", lambda run_id, *outcome: asked.update(finished=run_id))
    return told


def test_it_prints_the_member_and_its_scores(trained, end_of):
    words = [
        "--arch",
        "gru",
        "--source",
        "sim",
        "--set",
        "seed=7",
        "--max-epochs",
        "2",
        "--set",
        "dtype=float64",
    ]
    code, told, _ = end_of("BTCUSDT", "1h", *words)
    assert code == 0
    assert told == {
        "architecture": "gru",
        "preset": "seed-gru",
        "market": "sim",
        "symbol": "BTCUSDT",
        "timeframe": "1h",
        "epochs_run": 2,
        "train_loss": 1.0,
        "val_loss": 2.5,
        "best_epoch": 2,
        "best_val_loss": 2.5,
        "windows_per_s": 10.0,
        "memory": {"rss_peak_mb": 5.0},
        "device": "cpu",
        "stopped": "no better validation loss for 2 epochs",
        "history": [{"train_loss": 2.0, "val_loss": 3.0}, {"train_loss": 1.0, "val_loss": 2.5}],
        "cost": {
            "seconds": 66.54,
            "windows_per_s": 10.0,
            "device": "cpu",
            "rss_peak_mb": 5.0,
            "gpu_mem_allocated_peak_mb": None,
            "best_epoch": 2,
            "epochs_run": 2,
            "epochs_of": None,
        },
        "verdict": "better than the random walk",
        "test_crps_ratio": 0.9,
        "test_crps_ratio_low": 0.8,
        "test_crps_ratio_high": 0.95,
        "run_id": "r1",
        "model_folder": str(trained.home / "sim/fleets/0f/members/sim-BTCUSDT-1h/model"),
        "exit": 0,
    }
    assert trained.asked["spec"] == TrainSpec(
        coins="BTCUSDT",
        timeframes="1h",
        architectures="gru",
        preset="seed-gru",
        source="sim",
        seed=7,
        overrides={"epochs": 2},
        dtype="float64",
    )
    assert (trained.asked["resume"], trained.asked["name"], trained.asked["finished"]) == (
        "forget",
        "train",
        "parent",
    )


def test_the_last_archive_has_the_run_with_its_end(trained, end_of, monkeypatch, tmp_path_factory):
    kept = []

    def archive(folder, place):
        kept.append((place, trained.asked.get("finished")))
        return folder

    monkeypatch.setattr("tasks.tracking.archive.archive", archive)
    monkeypatch.setenv("CPB_KEEP", str(tmp_path_factory.mktemp("drive")))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    code, _, _ = end_of("BTCUSDT", "1h", "--source", "sim")
    assert (code, kept) == (0, [(trained.home, "parent")])


def test_ctrl_c_says_once_how_to_continue(monkeypatch, end_of):
    """The same command alone would start over, so nothing may say that it continues."""

    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.train_one.train_one", interrupted)
    monkeypatch.setattr("os._exit", sys.exit)  # the real one would end the test's process
    code, told, err = end_of("BTC", "1h", "--source", "sim")
    sentence = (
        "interrupted; add --resume latest to continue from the last checkpoint instead of starting over"
    )
    assert (code, told["error"]) == (130, sentence)
    assert err.splitlines()[-1] == f"cpb: {sentence}"
    assert "run the same command" not in err


@pytest.mark.parametrize(
    ("preset", "architecture"),
    [("seed-gru", "gru"), ("seed-lstm-tuned", "lstm"), ("smoke", "har"), ("default", "har"), ("auto", "har")],
)
def test_a_preset_of_one_architecture_says_which(trained, end_of, preset, architecture):
    words = ("BTC", "1h", "--source", "sim", "--preset", preset)
    assert end_of(*words)[0] == 0
    implied = trained.asked["spec"]
    end_of(*words, "--arch", architecture)
    assert implied == trained.asked["spec"]
    assert implied.architectures == architecture


def test_people_read_the_verdict_the_loss_the_cost_and_the_next_command(trained, cpb_here):
    _, out, err = cpb_here("train", "BTC", "1h", "--arch", "gru", "--source", "sim")
    assert out == ""
    folder = trained.home / "sim/fleets/0f/members/sim-BTCUSDT-1h/model"
    assert err.splitlines() == [
        "gru on BTCUSDT 1h is better than the random walk",
        "  train   █▁  loss 2.0000 -> 1.0000",
        "  valid.  █▁  loss 3.0000 -> 2.5000",
        "  best    validation loss 2.5000 in epoch 2 of 2; no better validation loss for 2 epochs",
        "  cost    66.5 s, 10 windows/s on cpu, at most 5 MB of memory, best epoch 2 of 2",
        f"  model   {folder}",
        "  run     r1 (`cpb ui` shows it)",
        "  next    cpb train-all --coins BTC --timeframes 1h --source sim --architectures gru --preset seed-gru   "
        "(trains the same, lets the gate decide, and forecasts with the champion)",
    ]


CLASSES = {"test_accuracy": 0.412, "test_macro_f1": 0.3811, "test_majority_accuracy": 0.45}


def test_of_a_classifier_its_accuracy_is_told_and_no_forecast_is_promised(trained, cpb_here, end_of):
    judged = trained.judged
    (judgement,) = judged.judgements
    judgement = judgement.model_copy(update={"metrics": METRICS | CLASSES})
    trained.judged = judged.model_copy(update={"judgements": (judgement,)})
    words = ["BTC", "1h", "--arch", "classifier-gru", "--source", "sim"]
    lines = cpb_here("train", *words)[2].splitlines()
    assert lines[1] == (
        "  classes accuracy 0.4120, macro-F1 0.3811; always the most frequent class: accuracy 0.4500"
    )
    assert lines[-1].endswith(
        "(trains and judges the same again; a classifier forecasts no prices and never serves)"
    )
    told = end_of(*words)[1]
    assert {name: told[name] for name in CLASSES} == CLASSES


def test_a_run_of_classifiers_alone_has_no_board_and_is_no_failure(cpb_here, monkeypatch):
    """The leaderboard ranks by CRPS, which classifiers have not."""
    asked = []
    monkeypatch.setattr("tasks.tracking.leaderboard.read_board", lambda run: asked.append(run) or [])
    monkeypatch.setattr("flows.cli.train.print_board", lambda rows: None)
    forecasting, failed = {"fleet": "gru", "seconds": 1.0}, {"fleet": "gru"}
    classifying = {"fleet": "classifier-gru", "seconds": 1.0} | CLASSES
    for fleets in ([classifying], [classifying, failed], [classifying, forecasting]):
        result = Run("train-all", print, run_id=str(len(fleets[-1])), fleets=fleets).as_json()
        monkeypatch.setattr("flows.cli.train._train_all", lambda *_, given=result: given)
        assert cpb_here("train-all", "--source", "sim")[0] == 0
    assert asked == ["2"]


def test_without_epochs_there_is_no_loss_to_follow(trained, cpb_here):
    shard = trained.shard
    (member,) = shard.members
    report = member.report | {"stopped": "closed_form", "epochs_run": 1, "best_epoch": 1}
    member = member.model_copy(update={"history": member.history[:1], "report": report})
    trained.shard = shard.model_copy(update={"members": (member,)})
    lines = cpb_here("train", "BTC", "1h", "--arch", "robust-har", "--source", "sim")[2].splitlines()
    assert lines[1] == "  cost    66.5 s, 10 windows/s on cpu, at most 5 MB of memory"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([1.0, 1.0], "▁▁"),
        ([1.0, 2.0, 8.0], "▁▂█"),
        ([2.0, float("nan"), 1.0], "█ ▁"),
    ],
)
def test_a_sparkline_spans_the_losses(values, shown):
    from flows.train_one import sparkline

    assert sparkline(values) == shown
    assert len(sparkline([float(i) for i in range(200)])) == 32


TABLE = "open_time,open,high,low,close,volume\n" + "".join(
    f"2024-01-01 {hour:02}:00:00,1.5,2.5,0.5,1.5,9\n" for hour in range(24)
)

GIVEN = {
    "plain": "BTC 1h",
    "preset": "BTC 1h --arch gru --preset seed-gru-tuned",
    "own preset of the architecture": "ETHUSDT 15m --arch lstm --source sim",
    "overrides": "BTC 1h --arch gru --preset smoke --set epochs=5 --set head=quantile --set mixed_precision=false "
    """--set 'features=["abs_return","log_sigma"]' --set lr=1e-05""",
    "data": "BTC 1h --market um --since 2024-01 --as-of 2025-06-06T12:00 --offline",
    "run": "BTC 1h --seeds 3 --set seed=7 --set dtype=float64 --set kernels=false --set train_timeout_s=99.5 "
    "--device cpu --profile gpu-6gb --engine local --wandb",
    "sizes of a profile": "BTC 1h --arch gru --preset seed-gru --profile gpu-6gb --set batch_size=8",
    "mirror": "BTC 1h --source https://mirror.example/data",
    "folder": "BTC 1h --source 'of klines'",
    "table": "--source 'a folder/EURUSD_1h.csv' --arch gru --columns time=open_time --decimal point --rewrite",
    "preset file": "BTC 1h --preset mine.toml --set epochs=2",
    "average": "BTC 1h --arch average-universal --set members=har,line",
    "classifier": "BTC 1h --arch classifier-gru --source sim",
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_the_next_command_gives_the_same_options(given, trained, cpb_here, monkeypatch, tmp_path):
    """The line is typed as it stands: the specification that it makes is compared in every field."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "a folder"
    folder.mkdir()
    (tmp_path / "of klines").mkdir()
    (folder / "EURUSD_1h.csv").write_text(TABLE)
    (tmp_path / "mine.toml").write_text(
        'architectures = ["gru"]\nbase = "smoke"\nseeds = 2\n[options]\nhidden_dim = 8\n'
    )
    code, _, err = cpb_here("train", *shlex.split(given))
    assert code == 0, err
    command = err.splitlines()[-1].removeprefix("  next    ").partition("   (")[0]
    made = []

    def train_all(spec, *_):
        made.append(spec)
        return Run("train-all", print, run_id="r").as_json()

    monkeypatch.setattr("flows.cli.train._train_all", train_all)
    program, *words = shlex.split(command)
    assert program == "cpb"
    assert cpb_here(*words, "--json")[0] == 0
    assert made[0].model_dump() == trained.asked["spec"].model_dump()


def test_the_next_command_shows_no_password(trained, cpb_here):
    err = cpb_here("train", "BTC", "1h", "--source", "https://me:secret@mirror.example/data")[2]
    assert "--source https://mirror.example/data" in err
    assert "secret" not in err


def test_resume_latest_keeps_what_was_trained(trained, end_of):
    end_of("BTC", "1h", "--source", "sim", "--resume", "latest")
    assert trained.asked["resume"] == "expect"
    assert trained.asked["spec"].preset == "default"  # har has no preset of its own


def checkpoint_in(folder, part, epoch, content):
    """The path below `folder` of a checkpoint, whose name holds the CRC-32 of its content."""
    name = f"{part}/epoch-{epoch:06d}-{zlib.crc32(content):08x}.safetensors"
    path = folder / "checkpoints" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return name


def test_resume_from_a_path_takes_the_newest_undamaged_checkpoint_of_each_part(trained, end_of, tmp_path):
    shard = tmp_path / "0123456789abcdef"
    checkpoint_in(shard, "fleet-0000", 1, b"first")
    newest = {
        checkpoint_in(shard, part, 2, part.encode()): part.encode() for part in ("fleet-0000", "fleet-0002")
    }
    damaged = checkpoint_in(shard, "fleet-0002", 3, b"whole")
    (shard / "checkpoints" / damaged).write_bytes(b"who")
    assert progress_so_far(shard) == "from its last checkpoint on, of epoch 2"
    end_of("BTC", "1h", "--source", "sim", "--resume", str(shard))
    checkpoint = trained.asked["resume"]
    checkpoint.put_into(tmp_path / "new")
    put = tmp_path / "new" / "checkpoints"
    assert {str(file.relative_to(put)): file.read_bytes() for file in put.rglob("*.safetensors")} == newest
    checkpoint.take_out_of(tmp_path / "new")
    assert not list(put.rglob("*.safetensors"))


def test_a_damaged_checkpoint_alone_is_refused_and_tells_of_no_progress(end_of, tmp_path):
    file = tmp_path / "0f" / "checkpoints" / checkpoint_in(tmp_path / "0f", "fleet-0000", 7, b"whole")
    file.write_bytes(b"who")
    assert progress_so_far(tmp_path / "0f") == ""
    for path in (file, tmp_path / "0f"):
        code, told, _ = end_of("BTC", "1h", "--source", "sim", "--resume", str(path))
        assert (code, told["code"]) == (2, "resume")
        assert told["error"].startswith(f"resume {str(path)!r} holds damaged checkpoints alone")
