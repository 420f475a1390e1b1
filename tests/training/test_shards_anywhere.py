"""The same shards one by one, side by side, on several devices or after a loss: the same models to the last bit."""

import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_shards import SPEC, copied, models, planned_in
from trainer_tools import wait_until

from flows.runner import Runner
from flows.training import train_fleets
from schemas.handover import FleetResult
from schemas.run import RunSpec
from tasks.judging.fleet import read_scores
from tasks.storage import locks
from tasks.training import process
from tasks.training.devices import Slots
from tasks.training.files import RESULT, TRAINED, fleet_folder, read_result
from tasks.training.runner import LocalExecutor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A home with the simulator's candles, and a fleet of two shards planned in it."""
    home = tmp_path_factory.mktemp("planned") / "data"
    return home, planned_in(home, overrides={"epochs": 2})


@pytest.fixture
def train(planned, tmp_path, monkeypatch):
    """Train the fleet in a copy of the home: `train(slots)` -> the home."""
    monkeypatch.setattr(locks, "SHARED_FOLDER", tmp_path)
    monkeypatch.setattr("tasks.train.RETRY_WAIT_S", 0.0)

    def run(slots, name):
        home = tmp_path / name
        if not home.exists():
            copied(planned[0], home)
        monkeypatch.setenv("CPB_HOME", str(home))
        engine = SimpleNamespace(executor=lambda number: LocalExecutor(slots), leave=lambda: None)
        (found,) = train_fleets(RunSpec(**SPEC), Runner(), engine, [planned[1]])
        assert [len(one.members) for one in found if isinstance(one, FleetResult)] == [1, 1]
        return home / "sim"

    return run


def test_one_slot_two_slots_two_devices_and_a_killed_trainer_give_the_same_models(
    train, planned, monkeypatch
):
    fleet = planned[1]
    started = []
    popen = subprocess.Popen

    def count(command, **how):
        made = popen(command, **how)
        folder = command[-1]
        started.append(
            (folder.rpartition("/")[2], how["env"]["CPB_THREADS"], how["env"]["CUDA_VISIBLE_DEVICES"])
        )
        if len(started) == killed:
            threading.Thread(target=kill_at_work, args=(made, folder)).start()
        return made

    def kill_at_work(made, folder):
        wait_until(lambda: (Path(folder) / "progress.json").exists(), 120)
        made.kill()

    monkeypatch.setattr(process.subprocess, "Popen", count)
    keys = [fleet_folder(planned[0], shard).name for shard in fleet.shards]

    killed = 0
    expected = models(train(Slots((), 1, 1), "one"), fleet)
    assert [one[1:] for one in started] == [("1", "")] * 2
    started.clear()
    assert models(train(Slots((), 2, 1), "two"), fleet) == expected
    assert sorted(one[0] for one in started) == sorted(keys)
    started.clear()
    assert models(train(Slots(("GPU-a", "GPU-b"), 2, 1), "devices"), fleet) == expected
    assert sorted(one[2] for one in started) == ["GPU-a", "GPU-b"]
    started.clear()
    killed = 1
    lost = train(Slots((), 1, 1), "lost")
    assert models(lost, fleet) == expected
    first = started[0][0]
    assert [one[0] for one in started] == [first, first, next(key for key in keys if key != first)]
    started.clear()
    killed = 0
    train(Slots((), 1, 1), "lost")
    assert not started

    # Killed while it judges: what is trained stays, the score is made.
    folder = fleet_folder(lost, fleet.shards[0])
    (folder / RESULT).rename(folder / TRAINED)
    weights = next(folder.rglob("model.safetensors"))
    before = weights.stat().st_mtime_ns
    next(folder.rglob("score-*.npz")).unlink()
    train(Slots((), 1, 1), "lost")
    assert [one[0] for one in started] == [folder.name]
    assert weights.stat().st_mtime_ns == before
    assert models(lost, fleet) == expected
    assert len(read_scores(lost, [read_result(fleet_folder(lost, s)) for s in fleet.shards])) == 2
