"""Weights & Biases gets a copy of a run's params and metrics, and can end no training."""

import json
import subprocess
import sys

import pytest

from schemas.identity import ModelId, SeriesId
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
            key=symbol, model=ModelId("gru", "smoke", SeriesId("spot", symbol, "1h"), 1), device="cpu", preset="smoke",
            data_digest="d", as_of="newest", config={"hidden_dim": 8, "own": symbol},
            metrics={"test_crps_ratio": 0.9}, history=history,
        )
        for symbol in ("BTCUSDT", "ETHUSDT")
    ]  # fmt: skip
    log_members(fleet, records)
    log_metrics(fleet, {"test_crps_ratio": 0.95})
    finish(flow, COMPLETE)
    return flow


def test_a_missing_package_is_said_before_the_training(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(module.UsageError, match=r"run `.* pip install .*'wandb<1,>=.*'`, or"):
        module.check_installed()


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
