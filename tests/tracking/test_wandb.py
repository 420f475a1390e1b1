"""Weights & Biases gets a copy of a run's params and metrics, and can end no training."""

import json
import subprocess
import sys

import pytest

from flows import train_all
from schemas.identity import ModelId, SeriesId
from schemas.run import RunSpec
from tasks.tracking import wandb as module
from tasks.tracking.runs import MemberRecord, finish, log_members, log_metrics, start_fleet, start_parent
from tasks.tracking.tags import COMPLETE

SECRET = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def run_id(store):
    flow = start_parent("flow", {"preset": "smoke", "seed": 1}, name="train-all").run_id
    fleet = start_fleet(flow, "gru", "fleet", {"lr": 0.01}).run_id
    history = [{"epoch": n, "train_loss": 3.0 / n, "val_loss": 4.0 / n} for n in (1, 2)]
    records = [
        MemberRecord(
            key=symbol,
            model=ModelId("gru", "smoke", SeriesId("spot", symbol, "1h"), 1),
            device="cpu",
            preset="smoke",
            data_digest="d",
            as_of="newest",
            config={"hidden_dim": 8, "own": symbol},
            metrics={"test_crps_ratio": 0.9},
            history=history,
        )
        for symbol in ("BTCUSDT", "ETHUSDT")
    ]
    log_members(fleet, records)
    log_metrics(fleet, {"test_crps_ratio": 0.95})
    finish(flow, COMPLETE)
    return flow


def test_a_missing_package_is_said_before_the_training(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(module.UsageError, match=r"run `.* pip install .*'wandb<1,>=.*'`, or"):
        module.check_usable()


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """An account without W&B's key, settings or mode."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("key", "why"), [("", "it has no API key"), ("tooshort", "WANDB_API_KEY invalid: API key must have")]
)
def test_a_missing_or_impossible_key_is_said_before_the_training(nobody, monkeypatch, key, why):
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
    with pytest.raises(module.UsageError, match=why) as refused:
        module.check_usable()
    assert all(
        word in str(refused.value) for word in ("wandb login", "WANDB_MODE=offline", "leave --wandb out")
    )
    assert not key or key not in str(refused.value)
    assert {path.name for path in nobody.iterdir()} <= {".cache"}  # W&B's own log: no key, no run


@pytest.mark.parametrize(
    "said", [{"WANDB_API_KEY": SECRET}, {"WANDB_MODE": "offline"}, {"WANDB_MODE": "disabled"}]
)
def test_a_key_or_no_need_of_one_lets_it_train(nobody, monkeypatch, said):
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    module.check_usable()
    assert {path.name for path in nobody.iterdir()} <= {".cache"}  # W&B's own log: no key, no run


def test_it_is_checked_before_anything_is_downloaded(store, nobody, monkeypatch):
    monkeypatch.setattr(train_all, "opened_engine", lambda spec: pytest.fail("it went on"))
    spec = RunSpec(coins="BTC", timeframes="1h", architectures="har", source="sim", wandb=True)
    with pytest.raises(module.UsageError, match="no API key"):
        train_all.run_train_all(spec, lambda line: None)


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_the_environment_can_ask_for_it(monkeypatch, value, wanted):
    monkeypatch.setenv("CPB_WANDB", value)
    assert module.is_wanted(asked=False) is wanted
    assert module.is_wanted(asked=True)


def test_what_goes_wrong_is_one_sentence_without_the_key_and_ends_nothing(store, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setattr(
        module, "open_store", lambda: (_ for _ in ()).throw(OSError(f"key {SECRET}\nis refused"))
    )
    said = module.mirror("r", tmp_path)
    assert said.startswith("Weights & Biases has no complete copy of this run (OSError: key … is refused)")
    assert SECRET not in said


@pytest.mark.slow
def test_the_files_that_wandb_wrote_offline_hold_params_and_metrics(run_id, monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.delenv("WANDB_DIR", raising=False)
    assert module.mirror(run_id, tmp_path / "w") == ""
    (file,) = (tmp_path / "w" / "wandb").glob("offline-run-*/run-*.wandb")
    copied = json.loads(
        subprocess.run([sys.executable, "-c", _READ, str(file)], capture_output=True, check=True).stdout
    )
    assert copied["config"]["preset"] == "smoke"
    assert (copied["config"]["lr"], copied["config"]["hidden_dim"]) == ("0.01", "8")
    assert copied["config"]["members"]["gru/ETHUSDT/1h"]["own"] == "ETHUSDT"
    assert copied["history"]["gru/BTCUSDT/1h/val_loss"] == [4.0, 2.0]
    assert copied["history"]["epoch"] == [1, 2]
    assert copied["summary"]["test_crps_ratio"] == 0.95
    assert copied["summary"]["gru/ETHUSDT/1h/test_crps_ratio"] == 0.9
    for path in (p for p in (tmp_path / "w").rglob("*") if p.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path


_READ = """
import collections, json, struct, sys
from wandb.proto import wandb_internal_pb2 as pb

def records(data, at=7, whole=b""):  # after the header: LevelDB's log, blocks of 32 KiB
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield whole
            whole = b""

out = {"config": {}, "summary": {}, "history": collections.defaultdict(list)}
for data in records(open(sys.argv[1], "rb").read()):
    record = pb.Record()
    record.ParseFromString(data)
    for item in [*record.run.config.update, *record.config.update]:
        out["config"][item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    for item in record.summary.update:
        out["summary"][item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    for item in record.history.item:
        out["history"][item.key or ".".join(item.nested_key)].append(json.loads(item.value_json))
print(json.dumps(out))
"""
