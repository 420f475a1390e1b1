import fcntl
import json
import os

import pytest

from tasks.training.keep import KEPT, FleetsInUse, is_training


def fleet(home, name, architecture="har", coins=("BTCUSDT",), used=0.0, preset="smoke"):
    folder = home / "fleets" / name
    (folder / "members").mkdir(parents=True)
    members = [{"symbol": c, "timeframe": "1h"} for c in coins]
    (folder / "job.json").write_text(
        json.dumps({"architecture": architecture, "preset": preset, "members": members})
    )
    os.utime(folder / "job.json", (used, used))
    return folder


@pytest.fixture
def home(tmp_path):
    for night in range(KEPT + 2):
        fleet(tmp_path, f"night{night}", used=1000.0 + night)
    fleet(tmp_path, "other coins", coins=("BTCUSDT", "ETHUSDT"), used=1.0)
    fleet(tmp_path, "other architecture", architecture="gru", used=1.0)
    fleet(tmp_path, "other preset", preset="default", used=1.0)
    return tmp_path


def left(home):
    return {f.name for f in (home / "fleets").iterdir()}


def test_the_last_few_of_each_kind_are_kept(home):
    before = left(home)
    FleetsInUse(home).release()
    assert before - left(home) == {"night0", "night1"}
    assert FleetsInUse(home).release() == []


def test_an_older_fleet_that_was_used_again_is_kept(home):
    os.utime(home / "fleets/night0/job.json")
    FleetsInUse(home).release()
    assert {"night0", "night4", "night3"} <= left(home)


def test_nothing_goes_while_another_run_is_at_work(home):
    other = FleetsInUse(home)
    assert FleetsInUse(home).release() == []
    assert len(other.release()) == 2


def test_a_training_at_work_is_seen(home):
    folder = home / "fleets/night0"
    assert not is_training(folder)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_training(folder)
    assert not is_training(folder)
