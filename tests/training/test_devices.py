"""Slots: which GPUs are visible, and that no two trainings share one."""

import os
import sys
import threading
import time
from contextlib import closing
from importlib.machinery import ModuleSpec
from types import ModuleType

import psutil
import pytest

from schemas.errors import UsageError
from tasks.storage import locks
from tasks.training import gpus as discovery
from tasks.training import trainers
from tasks.training.gpu_locks import gpu_held
from tasks.training.gpus import check_device, visible_gpus
from tasks.training.trainers import Slots, Trainers, plan_slots
from tests.tools.other_user import as_nobody, let_others_pass
from tests.tools.trainer_tools import wait_until

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
    monkeypatch.setattr(discovery, "torch_cuda", lambda: "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(**uuids):
        devices.clear()
        devices.update({name.replace("_", "-"): tuple(parts) for name, parts in uuids.items()})

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
    assert visible_gpus() == plan_slots("auto", 1).gpus == ()


DIVIDED = {"GPU_aa11": ("MIG-x1", "MIG-x2"), "GPU_aa22": ()}


@pytest.mark.parametrize(
    ("visible", "expected", "machine"),
    [
        (None, UUIDS, {}),
        ("", (), {}),
        ("-1", (), {}),
        ("2,0", ("GPU-bb33", "GPU-aa11"), {}),
        (" 1 , 2 ", ("GPU-aa22", "GPU-bb33"), {}),
        ("0,7,1", ("GPU-aa11",), {}),  # CUDA stops at the first that is none
        ("GPU-bb33,GPU-aa11", ("GPU-bb33", "GPU-aa11"), {}),
        ("GPU-b", ("GPU-bb33",), {}),
        ("GPU-a", (), {}),  # two begin so
        ("0,GPU-aa11,2", ("GPU-aa11", "GPU-bb33"), {}),
        ("NoDevFiles", (), {}),
        (None, ("MIG-x1", "MIG-x2", "GPU-aa22"), DIVIDED),
        ("0,1", ("MIG-x1", "GPU-aa22"), DIVIDED),  # CUDA takes the first instance
        ("MIG-x2", ("MIG-x2",), DIVIDED),
        ("MIG-x", (), DIVIDED),
        ("GPU-aa1", ("MIG-x1",), DIVIDED),
    ],
)
def test_visible_gpus_and_their_instances(driver, gpus, monkeypatch, visible, expected, machine):
    if machine:
        driver(**machine)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == expected


def test_slots(gpus, monkeypatch):
    monkeypatch.setattr(trainers, "usable_cores", lambda: 8)
    for shards, workers, threads in ((5, 5, 1), (2, 2, 1), (1, 1, 8), (20, 8, 1)):
        assert plan_slots("cpu", shards) == Slots((), workers, threads)
    monkeypatch.setattr(trainers.os, "cpu_count", lambda: 7)
    assert plan_slots("auto", 5) == Slots(UUIDS, 3, 2)
    assert plan_slots("cuda", 5) == Slots(UUIDS, 3, 2)
    assert plan_slots("cuda:1", 5) == Slots(UUIDS[1:2], 1, 7)


def test_a_device_that_is_not_there_is_refused(gpus, monkeypatch):
    for name in ("auto", "cpu", "cuda", "cuda:2"):
        check_device(name)
    for name, visible in (("cuda:3", "0,1,2"), ("cuda:1", "2"), ("cuda", "")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with pytest.raises(UsageError) as refused:
            check_device(name)
        assert (refused.value.code, refused.value.field) == ("device", "device")


def test_a_cpu_build_of_torch_beside_a_gpu_trains_on_every_core_and_says_why(gpus, monkeypatch, caplog):
    for module in (discovery, trainers):
        monkeypatch.setattr(module, "torch_cuda", lambda: None)
    monkeypatch.setattr(trainers, "usable_cores", lambda: 8)
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


def test_the_build_of_torch_is_read_without_importing_it(tmp_path, monkeypatch):
    import torch

    assert discovery.torch_cuda() == torch.version.cuda
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(discovery, "find_spec", lambda name: spec)
    for line, expected in (("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = None", None)):
        (tmp_path / "version.py").write_text(f"{line}\ngit_version = 'cuda'\nhip = None\n")
        assert discovery.torch_cuda.__wrapped__() == expected


def test_a_gpu_is_held_by_one_at_a_time_and_without_gpus_nothing_waits(locks_in):
    two, waited = UUIDS[:2], []

    def hold_shortly():
        with gpu_held(two):
            waited.append(True)

    with gpu_held(()), gpu_held(()), gpu_held(two), gpu_held(two):
        assert all(locks.is_locked(locks_in / f"cpb-{uuid}.lock") for uuid in two)
        thread = threading.Thread(target=hold_shortly)
        thread.start()
        time.sleep(0.7)
        assert not waited
    thread.join(60)
    assert waited


def test_a_trainer_locks_its_gpu_for_a_shard_and_takes_the_free_one(locks_in, worker, tmp_path):
    """Between two shards another command may train; while it holds one of two GPUs, all shards go to the other."""
    worker(
        "(folder / 'device').write_text(os.environ['CUDA_VISIBLE_DEVICES']); (folder / 'result.json').touch()",
        locking_in(locks_in),
    )
    folders = [tmp_path / name for name in "abc"]
    for shard in folders:
        shard.mkdir()
    two = UUIDS[:2]
    with closing(Trainers(Slots(two, 2, 1))) as trainers:
        trainers.start()
        assert not any(locks.is_locked(locks_in / f"cpb-{uuid}.lock") for uuid in two)
        with locks.locked(locks_in / f"cpb-{two[0]}.lock"):
            for shard in folders[:2]:
                trainers.train(shard, 30)
            with locks.locked(locks_in / f"cpb-{two[1]}.lock"):
                last = threading.Thread(target=trainers.train, args=(folders[2], 30))
                last.start()
                time.sleep(0.5)
                assert not (folders[2] / "device").exists()
            last.join(60)
    assert [(shard / "device").read_text() for shard in folders] == [two[1]] * 3
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


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_users_of_the_machine_share_the_lock(locks_in):
    locks_in.chmod(0o1777)
    let_others_pass(locks_in)
    mask = os.umask(0o077)
    try:
        path = locks.machine_lock("cpb-GPU-aa11.lock")
        locks.open_lock(path).close()
    finally:
        os.umask(mask)

    def ask():
        assert locks.machine_lock("cpb-GPU-aa11.lock") == path
        return locks.is_locked(path)

    with locks.locked(path):
        assert as_nobody(ask) == "True"
    assert as_nobody(ask) == "False"
