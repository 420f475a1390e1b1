"""The same shards one by one, side by side, on several devices or after a loss: the same models to the last bit."""

import threading
from functools import partial

import pytest

from schemas.handover import ShardResult
from schemas.run import RunSpec
from tasks import steps
from tasks.judging.fleet import judge_fleet
from tasks.judging.judges import Judges
from tasks.running.resident import WorkerProcess
from tasks.steps import opened_engine
from tasks.storage import locks
from tasks.training import local, trainers
from tasks.training.queue import train_fleets
from tasks.training.shard import shard_folder
from tasks.training.trainers import Slots
from tests.tools.small_shards import SPEC, copied, models, planned_in
from tests.tools.trainer_tools import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A home with the simulator's candles, and a fleet of two shards planned in it."""
    home = tmp_path_factory.mktemp("planned") / "data"
    return home, planned_in(home, overrides={"epochs": 2})


@pytest.fixture
def train(planned, tmp_path, monkeypatch):
    """Train and judge the fleet in a copy of the home: `train(slots)` -> the home."""
    monkeypatch.setattr(locks, "SHARED_FOLDER", tmp_path)
    monkeypatch.setattr("tasks.steps.RETRY_WAIT_S", 0.0)

    def run(slots, name):
        home, fleet = tmp_path / name, planned[1]
        if not home.exists():
            copied(planned[0], home)
        monkeypatch.setenv("CPB_HOME", str(home))
        monkeypatch.setattr(local, "plan_slots", lambda device, shards: slots)
        monkeypatch.setattr(local, "gpus_of", lambda device: slots.gpus)
        spec = RunSpec(**SPEC)
        with opened_engine(spec) as engine, Judges(engine.cores) as judges:
            (results,) = train_fleets(engine, [fleet], partial(steps.train, spec, engine))
            judge_fleet(home / "sim", fleet, zip(fleet.shards, results, strict=True), judges)
        assert [len(result.members) for result in results if isinstance(result, ShardResult)] == [1, 1]
        return home / "sim"

    return run


def test_one_slot_two_slots_two_devices_and_a_killed_trainer_give_the_same_models(
    train, planned, monkeypatch
):
    fleet = planned[1]
    ordered, judged = [], []
    call = WorkerProcess.call

    def count(resident, order, *how):
        name = order[0].name
        if resident.module == trainers.TRAINER:
            ordered.append((name, resident.env["CPB_THREADS"], resident.env["CUDA_VISIBLE_DEVICES"]))
            if len(ordered) == killed:
                threading.Thread(target=kill_at_work, args=(resident, order[0])).start()
        else:
            judged.append(name)
        return call(resident, order, *how)

    def kill_at_work(resident, folder):
        wait_until((folder / "progress.json").exists, 120)
        resident._process.kill()

    monkeypatch.setattr(WorkerProcess, "call", count)
    keys = [shard_folder(planned[0], shard).name for shard in fleet.shards]

    killed = 0
    expected = models(train(Slots((), 1, 1), "single"), fleet)
    assert [order[1:] for order in ordered] == [("1", "")] * 2
    ordered.clear()
    assert models(train(Slots((), 2, 1), "two"), fleet) == expected
    assert sorted(order[0] for order in ordered) == sorted(keys)
    ordered.clear()
    assert models(train(Slots(("GPU-of-a-test", "GPU-of-another"), 2, 1), "devices"), fleet) == expected
    assert sorted(order[2] for order in ordered) == ["GPU-of-a-test", "GPU-of-another"]
    ordered.clear()
    killed = 1
    lost = train(Slots((), 1, 1), "lost")
    assert models(lost, fleet) == expected
    first = ordered[0][0]
    assert [order[0] for order in ordered] == [first, first, next(key for key in keys if key != first)]
    ordered.clear()
    judged.clear()
    killed = 0
    train(Slots((), 1, 1), "lost")
    assert not ordered
    assert not judged

    # Killed before a score is there: what is trained stays, the score is made.
    folder = shard_folder(lost, fleet.shards[0])
    weights = next(folder.rglob("model.safetensors"))
    before = weights.stat().st_mtime_ns
    next(folder.rglob("score-*.npz")).unlink()
    train(Slots((), 1, 1), "lost")
    assert not ordered
    assert judged == [folder.name]
    assert weights.stat().st_mtime_ns == before
    assert models(lost, fleet) == expected
    assert len([*(lost / "fleets").rglob("score-*.npz")]) == 2
