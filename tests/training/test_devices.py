"""Slots: which GPUs are visible, and that no two trainings share one."""

import os
import sys
import threading
import time
from importlib.machinery import ModuleSpec
from types import ModuleType

import psutil
import pytest
from other_user import as_nobody, let_others_pass
from trainer_tools import wait_until

from schemas.errors import UsageError
from tasks.storage import locks
from tasks.training import devices as module
from tasks.training.devices import Slots, check_device, gpu_held, plan_slots, visible_gpus
from tasks.training.local import Trainers, run_trainer

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33")


@pytest.fixture
def driver(monkeypatch):
    """Install a fake driver: `driver(uuid=(MIG uuids, …), …)`; without a call there is none."""
    fake = ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    devices = {}

    def init():
        if not devices:
            raise NVMLError("no driver")

    def instance(handle, index):
        if index >= len(devices[handle]):
            raise NVMLError("not found")
        return devices[handle][index]

    def mig_mode(handle):
        if handle == "GPU-bb33":  # an old GPU
            raise NVMLError("not supported")
        return bool(devices[handle]), True

    fake.NVMLError = NVMLError
    fake.nvmlInit = init
    fake.nvmlShutdown = lambda: None
    fake.nvmlDeviceGetCount = lambda: len(devices)
    fake.nvmlDeviceGetHandleByIndex = lambda index: list(devices)[index]
    fake.nvmlDeviceGetUUID = lambda handle: handle
    fake.nvmlDeviceGetMigMode = mig_mode
    fake.nvmlDeviceGetMaxMigDeviceCount = lambda handle: 7
    fake.nvmlDeviceGetMigDeviceHandleByIndex = instance
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(module, "torch_cuda", lambda: "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(**found):
        devices.clear()
        devices.update({name.replace("_", "-"): tuple(parts) for name, parts in found.items()})

    return install


@pytest.fixture
def gpus(driver):
    driver(GPU_aa11=(), GPU_aa22=(), GPU_bb33=())


@pytest.fixture
def locks_in(tmp_path, monkeypatch):
    """Put the lock files for all users of the machine there."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(locks, "SHARED_FOLDER", folder)
    return folder


def locking_in(folder):
    """Code that lets a trainer lock GPUs in this folder."""
    return f"import pathlib; from tasks.storage import locks; locks.SHARED_FOLDER = pathlib.Path({str(folder)!r})\n"


def test_without_a_driver_there_is_no_gpu_whatever_the_environment_says(driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert len(visible_gpus()) == 0
    assert plan_slots("auto", 1).gpus == ()


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, UUIDS),
        ("", ()),
        ("-1", ()),
        ("2,0", ("GPU-bb33", "GPU-aa11")),
        (" 1 , 2 ", ("GPU-aa22", "GPU-bb33")),
        ("0,7,1", ("GPU-aa11",)),  # CUDA stops at the first that is none
        ("GPU-bb33,GPU-aa11", ("GPU-bb33", "GPU-aa11")),
        ("GPU-b", ("GPU-bb33",)),
        ("GPU-a", ()),  # two begin so
        ("0,GPU-aa11,2", ("GPU-aa11", "GPU-bb33")),
        ("NoDevFiles", ()),
    ],
)
def test_visible_gpus(gpus, monkeypatch, visible, expected):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == expected
    assert len(visible_gpus()) == len(expected)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ("MIG-x1", "MIG-x2", "GPU-aa22")),
        ("0,1", ("MIG-x1", "GPU-aa22")),  # CUDA takes the first instance
        ("MIG-x2", ("MIG-x2",)),
        ("MIG-x", ()),
        ("GPU-aa1", ("MIG-x1",)),
    ],
)
def test_instances_of_a_divided_gpu_are_devices_of_their_own(driver, monkeypatch, visible, expected):
    driver(GPU_aa11=("MIG-x1", "MIG-x2"), GPU_aa22=())
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == expected


def test_slots_without_a_gpu(monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert plan_slots("cpu", 5) == Slots((), 5, 1)
    assert plan_slots("cpu", 2) == Slots((), 2, 1)
    assert plan_slots("cpu", 1) == Slots((), 1, 8)
    assert plan_slots("cpu", 20) == Slots((), 8, 1)


def test_slots_with_gpus(gpus, monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 7)
    assert plan_slots("auto", 5) == Slots(UUIDS, 3, 2)
    assert plan_slots("cuda", 5) == Slots(UUIDS, 3, 2)
    assert plan_slots("cuda:1", 5) == Slots(UUIDS[1:2], 1, 7)
    assert plan_slots("cpu", 1).gpus == ()


def test_a_device_that_is_not_there_is_refused(gpus, monkeypatch):
    for name in ("auto", "cpu", "cuda", "cuda:2"):
        check_device(name)
    for name, visible in (("cuda:3", "0,1,2"), ("cuda:1", "2"), ("cuda", "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(UsageError) as refused:
            check_device(name)
        assert (refused.value.code, refused.value.field) == ("device", "device")


def test_a_cpu_build_of_torch_beside_a_gpu_trains_on_every_core_and_says_why(gpus, monkeypatch, caplog):
    monkeypatch.setattr(module, "torch_cuda", lambda: None)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert plan_slots("auto", 5) == Slots((), 5, 1)
    assert "CPU build" in caplog.text
    caplog.clear()
    assert plan_slots("cpu", 5) == Slots((), 5, 1)
    assert not caplog.text
    for name in ("auto", "cpu"):
        check_device(name)
    with pytest.raises(UsageError, match="CPU build") as refused:
        check_device("cuda")
    assert (refused.value.code, refused.value.field) == ("device", "device")


def test_the_build_of_torch_is_read_without_importing_it():
    import torch

    assert module.torch_cuda() == torch.version.cuda


@pytest.mark.parametrize(
    ("line", "expected"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = '12.6'", "12.6"), ("cuda = None", None)],
)
def test_builds_of_torch_as_they_say_it(line, expected, tmp_path, monkeypatch):
    (tmp_path / "version.py").write_text(f"__version__ = '2.9'\n{line}\ngit_version = 'cuda'\nhip = None\n")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    assert module.torch_cuda.__wrapped__() == expected


def test_without_a_gpu_nothing_is_held_and_nothing_waits():
    with gpu_held(()), gpu_held(()):
        pass


def test_a_gpu_is_held_by_one_at_a_time(locks_in):
    two = UUIDS[:2]
    with gpu_held(two), gpu_held(two):
        assert [locks.is_locked(locks_in / f"cpb-{uuid}.lock") for uuid in two] == [True, True]
        waited = []
        thread = threading.Thread(target=lambda: waited.append(_hold_shortly(two)))
        thread.start()
        time.sleep(0.7)
        assert not waited
    thread.join(60)
    assert waited


def _hold_shortly(gpus):
    with gpu_held(gpus):
        return True


def test_a_trainer_locks_its_gpu_for_a_shard_and_takes_the_free_one(locks_in, worker, tmp_path):
    """Between two shards another command may train; while it holds one of two GPUs, all shards go to the other."""
    worker(
        "(folder / 'device').write_text(os.environ['CUDA_VISIBLE_DEVICES']); (folder / 'result.json').touch()",
        locking_in(locks_in),
    )
    folders = [tmp_path / name for name in "abc"]
    for one in folders:
        one.mkdir()
    two = UUIDS[:2]
    trainers = Trainers(Slots(two, 2, 1))
    try:
        trainers.start()
        assert not any(locks.is_locked(locks_in / f"cpb-{uuid}.lock") for uuid in two)
        with locks.locked(locks_in / f"cpb-{two[0]}.lock"):
            for one in folders[:2]:
                trainers.train(one, 30)
            with locks.locked(locks_in / f"cpb-{two[1]}.lock"):
                last = threading.Thread(target=trainers.train, args=(folders[2], 30))
                last.start()
                time.sleep(0.5)
                assert not (folders[2] / "device").exists()
            last.join(60)
    finally:
        trainers.stop()
    assert [(one / "device").read_text() for one in folders] == [two[1]] * 3
    assert not any(locks.is_locked(locks_in / f"cpb-{uuid}.lock") for uuid in two)


def test_processes_that_number_the_gpus_otherwise_meet_at_the_same_lock(gpus, locks_in, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    alone = plan_slots("cuda", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb,0")
    both = plan_slots("cuda", 2)
    assert set(alone.gpus) < set(both.gpus)
    with gpu_held(alone.gpus), gpu_held(both.gpus):
        assert all(locks.is_locked(locks_in / f"cpb-{uuid}.lock") for uuid in ("GPU-bb33", "GPU-aa11"))


def test_the_trainer_sees_its_gpu_alone_and_holds_its_lock_past_its_parents_death(
    folder, worker, start_parent, locks_in
):
    worker(
        "(folder / 'device').write_text(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(600)",
        locking_in(locks_in),
    )
    parent = start_parent("Slots = lambda *_, _make=Slots: _make(('GPU-aa11',), 1, 1)")
    wait_until(lambda: (folder / "device").exists() and (folder / "device").read_text())
    assert (folder / "device").read_text() == "GPU-aa11"
    trainer = int((folder / "pid").read_text())
    os.kill(trainer, 19)  # stopped, so that it does not see its parent die
    wait_until(lambda: psutil.Process(trainer).status() == psutil.STATUS_STOPPED)
    parent.kill()
    parent.wait()
    assert locks.is_locked(locks_in / "cpb-GPU-aa11.lock")
    os.kill(trainer, 18)
    wait_until(lambda: not locks.is_locked(locks_in / "cpb-GPU-aa11.lock"))


def test_a_trainer_on_a_cpu_slot_sees_no_gpu(folder, worker, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    worker("(folder / 'result.json').write_text(os.environ['CUDA_VISIBLE_DEVICES'])")
    run_trainer(folder, Slots((), 1, 1), 30)
    assert (folder / "result.json").read_text() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_users_of_the_machine_share_the_lock(locks_in):
    locks_in.chmod(0o1777)
    let_others_pass(locks_in)
    mask = os.umask(0o077)
    try:
        path = locks.machine_lock("cpb-GPU-aa11.lock")
    finally:
        os.umask(mask)

    def ask():
        assert locks.machine_lock("cpb-GPU-aa11.lock") == path
        return locks.is_locked(path)

    with locks.locked(path):
        assert as_nobody(ask) == "True"
    assert as_nobody(ask) == "False"
