"""What an epoch has cost: kept through a kill, and joined over fleets that train side by side or in turn."""

import json

import pytest

from cpbmodels import EpochRecord
from schemas.handover import DeviceWork
from tasks.training import progress
from tasks.training.progress import EpochReports, busy_share, epoch_costs


def record(epoch, first=0, losses=(1.0,), **changes):
    members = [
        {"index": first + i, "train_loss": x, "val_loss": 2 * x, "stopped": ""} for i, x in enumerate(losses)
    ]
    values = {
        "lr": 0.1,
        "windows_per_s": 100.0,
        "seconds": 2.0,
        "memory": {"rss_mb": 300.0, "cpu_util": 50.0},
    }
    return EpochRecord(epoch=epoch, epochs=9, members=members, **(values | changes))


def told(path, monkeypatch, *records_and_ends):
    reports = EpochReports(path)
    for one, ended in records_and_ends:
        monkeypatch.setattr(progress.time, "time", lambda ended=ended: ended)
        reports.add(one)
    return reports


def test_fleets_side_by_side_count_their_common_time_once(tmp_path, monkeypatch):
    usage = {"memory": {"rss_mb": 400.0, "cpu_util": 90.0}}
    other = record(1, 1, (3.0, float("nan")), **usage)
    (cost,) = told(tmp_path / "e", monkeypatch, (record(1), 10.0), (other, 11.0)).costs()
    assert cost["epoch_seconds"] == pytest.approx(3.0)  # 8 to 10 and 9 to 11
    assert cost["epoch_windows_per_s"] == pytest.approx(400 / 3)
    assert (cost["members_training"], cost["rss_mb"], cost["cpu_util"]) == (3, 400.0, 70.0)
    assert cost["train_loss"] == pytest.approx((1.0 + 2 * 3.0) / 3)


def test_fleets_in_turn_add_their_time(tmp_path, monkeypatch):
    (cost,) = told(tmp_path / "e", monkeypatch, (record(1), 10.0), (record(1, 1), 20.0)).costs()
    assert (cost["epoch_seconds"], cost["epoch_windows_per_s"]) == (4.0, 100.0)


def test_a_killed_training_that_goes_on_has_every_epoch_once(tmp_path, monkeypatch):
    path = tmp_path / "epochs.jsonl"
    told(path, monkeypatch, (record(1), 10.0), (record(2, seconds=1.0), 12.0))
    with path.open("a") as file:
        file.write(json.dumps({"epoch": 3})[:-4])  # killed while it wrote
    costs = told(path, monkeypatch, (record(2), 110.0), (record(3), 112.0)).costs()
    assert [(c["epoch"], c["epoch_seconds"]) for c in costs] == [(1, 2.0), (2, 2.0), (3, 2.0)]
    assert epoch_costs(map(json.loads, path.read_text().splitlines())) == costs


def test_devices_are_busy_while_a_kernel_runs_or_their_processes_compute():
    def work(device, begin, end, busy_s):
        return DeviceWork(device=device, begin=begin, end=end, busy_s=busy_s, cpu_s=3.0)

    gpus = [work("GPU-a", 0.0, 8.0, 6.0), work("GPU-b", 1.0, 10.0, 4.0)]
    assert busy_share(gpus, 4) == {"device_busy_share": 0.5}
    assert busy_share([*gpus, work("GPU-a", 8.0, 10.0, None)], 4) == {}
    assert busy_share([work("", 0.0, 10.0, None)], 2) == {"device_busy_share": 0.15}
