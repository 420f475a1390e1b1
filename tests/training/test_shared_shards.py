"""Shards, features and checkpoints between homes and the store that they share."""

import logging
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
from shard_tools import SERIES, home_with_job, trained_shard

from schemas.errors import CpbError, DamagedError, UsageError
from tasks.storage import store_faults
from tasks.storage.locks import locked
from tasks.storage.shared import SharedStore
from tasks.training.fleet_files import RESULT, fleet_folder, prepare, read_result
from tasks.training.process import TrainerDied, run_trainer
from tasks.training.shared_shards import SharedShards, check_shared_store, checkpoint_setting, sharing
from tasks.training.slots import Slots

ROOT = Path(__file__).resolve().parents[2]
CPU = Slots((), 1, 1)


@pytest.fixture
def url(tmp_path, monkeypatch):
    """The URL of a store on a folder, in `CPB_STORE`."""
    monkeypatch.setattr(store_faults, "WAIT_S", 0.0)
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("CPB_STORE", f"file://{tmp_path}/store")
    return f"file://{tmp_path}/store"


@pytest.fixture
def job(tmp_path):
    """A job whose features lie in home `a`."""
    return home_with_job(tmp_path / "a")


def shards(home):
    found = SharedShards.of(home)
    assert found is not None
    return found


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def checkpoint(folder, epoch, data=b"", part="fleet-0000"):
    data = data or b"epoch %d" % epoch
    path = folder / "checkpoints" / part / f"epoch-{epoch:06d}-{zlib.crc32(data):08x}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_trained_shard_comes_to_another_home_whole(url, job, tmp_path):
    folder = trained_shard(tmp_path / "a", job)
    (folder / "members/BTCUSDT-1h/.test.npz.0123456789ab").touch()
    (folder / "worker.log").touch()
    assert not shards(tmp_path / "a").has_result(folder)
    shards(tmp_path / "a").put_result(folder)
    other = prepare(tmp_path / "b", job)
    (other / "members/BTCUSDT-1h").mkdir(parents=True)
    (other / "members/BTCUSDT-1h/validation.npz").touch()  # of a training that did not end
    checkpoint(other, 3)
    assert shards(tmp_path / "b").get_result(other)
    assert read_result(other) == read_result(folder)
    kept = {n: b for n, b in content(folder).items() if n != "worker.log" and not n.endswith("0123456789ab")}
    assert {n: b for n, b in content(other).items() if n != "lock"} == kept


def test_keys_hold_no_machine_path_and_lie_as_in_the_home(url, job, tmp_path):
    folder = trained_shard(tmp_path / "a", job)
    found = shards(tmp_path / "a")
    found.put_features(job)
    found.put_result(folder)
    record = job.members[0].features
    names = set(found.store.names(""))
    assert {f"fleets/{folder.name}/job.json", f"fleets/{folder.name}/result.json"} <= names
    assert f"{record.path}.{record.file_digest[:16]}" in names
    assert not any(str(tmp_path) in name for name in names)
    stored = b"".join(p.read_bytes() for p in (tmp_path / "store").rglob("*.json"))
    assert str(tmp_path).encode() not in stored


def test_features_of_two_homes_do_not_collide(url, tmp_path):
    one, other = home_with_job(tmp_path / "a"), home_with_job(tmp_path / "b", hours=400)
    assert one.members[0].features.path == other.members[0].features.path
    shards(tmp_path / "a").put_features(one)
    shards(tmp_path / "b").put_features(other)
    for job, home in ((one, "a"), (other, "b")):
        path = job.members[0].features.path
        node = shards(tmp_path / f"node-{home}")
        node.get_features(job)
        assert (tmp_path / f"node-{home}" / path).read_bytes() == (tmp_path / home / path).read_bytes()


def test_features_are_checked_fetched_anew_where_damaged_and_missed_in_a_sentence(url, job, tmp_path):
    found, node = shards(tmp_path / "a"), shards(tmp_path / "node")
    with pytest.raises(DamagedError, match="run the same command again"):
        node.get_features(job)
    found.put_features(job)
    path = tmp_path / "node" / job.members[0].features.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("damaged")
    node.get_features(job)
    assert path.read_bytes() == (tmp_path / "a" / job.members[0].features.path).read_bytes()
    (key,) = [name for name in found.store.names("") if name.startswith("features")]
    (tmp_path / "store" / key).write_text("damaged")
    with pytest.raises(DamagedError, match="sha256"):
        shards(tmp_path / "other").get_features(job)
    assert not (tmp_path / "other" / job.members[0].features.path).exists()


def test_a_job_comes_to_a_node(url, job, tmp_path):
    folder = prepare(tmp_path / "a", job)
    shards(tmp_path / "a").put_job(folder)
    assert shards(tmp_path / "node").get_job(fleet_folder(tmp_path / "node", job)) == job


def test_a_damaged_shard_is_said_not_used_and_put_again(url, job, tmp_path, caplog):
    folder = trained_shard(tmp_path / "a", job)
    shards(tmp_path / "a").put_result(folder)
    (weights,) = (tmp_path / "store").rglob("model.safetensors.*")
    weights.write_text("waights")
    other = prepare(tmp_path / "b", job)
    with sharing(other, CPU) as fetch:
        fetch()
        assert not (other / RESULT).exists()
        shutil.rmtree(other)
        trained_shard(tmp_path / "b", job)
    assert "is not used" in caplog.text
    assert "sha256 differs" in caplog.text
    third = prepare(tmp_path / "c", job)
    assert shards(tmp_path / "c").get_result(third)


def test_a_result_that_does_not_fit_its_files_is_not_used(url, job, tmp_path, caplog):
    folder = trained_shard(tmp_path / "a", job)
    (folder / "members" / SERIES.name / "model/model.safetensors").write_text("changed")
    shards(tmp_path / "a").put_result(folder)
    other = prepare(tmp_path / "b", job)
    assert not shards(tmp_path / "b").get_result(other)
    assert not (other / RESULT).exists()
    assert "is not taken from the store" in caplog.text


def test_a_folder_in_which_a_trainer_is_at_work_is_left_to_it(url, job, tmp_path):
    shards(tmp_path / "a").put_result(trained_shard(tmp_path / "a", job))
    other = prepare(tmp_path / "b", job)
    with locked(other / "lock"):
        assert not shards(tmp_path / "b").get_result(other)
    assert shards(tmp_path / "b").get_result(other)


def test_the_newest_checkpoint_of_each_part_is_shared_and_old_ones_go(url, job, tmp_path):
    folder = prepare(tmp_path / "a", job)
    (folder / "epochs.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')
    found = shards(tmp_path / "a").checkpoints(folder, "cpu-1")
    for epoch in (1, 2, 3, 4):
        checkpoint(folder, epoch)
        checkpoint(folder, 2 * epoch, part="fold-1-1h/fleet-0001")
        found.put()
    names = sorted(n for n in found.store.names(found.prefix) if "epoch-" in n)
    assert [n.split("-")[-2] for n in names] == ["000003", "000004", "000006", "000008"]
    other = prepare(tmp_path / "b", job)
    assert shards(tmp_path / "b").checkpoints(other, "cpu-2").get() == []  # other bits
    got = shards(tmp_path / "b").checkpoints(other, "cpu-1").get()
    assert sorted(p.read_bytes() for p in got) == [b"epoch 4", b"epoch 8"]
    assert (other / "epochs.jsonl").read_text() == '{"epoch": 1}\n{"epoch": 2}\n'
    assert shards(tmp_path / "b").checkpoints(other, "cpu-1").get() == []  # it has them
    found.remove()
    assert found.store.names(found.prefix) == {}


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(url, job, tmp_path, caplog):
    folder = prepare(tmp_path / "a", job)
    found = shards(tmp_path / "a").checkpoints(folder, "cpu-1")
    for epoch in (1, 2):
        checkpoint(folder, epoch)
        found.put()
    (newest,) = (tmp_path / "store").rglob("epoch-000002*")
    newest.write_bytes(b"epoch X")
    other = prepare(tmp_path / "b", job)
    (got,) = shards(tmp_path / "b").checkpoints(other, "cpu-1").get()
    assert got.read_bytes() == b"epoch 1"
    assert "CRC-32" in caplog.text


def test_new_checkpoints_go_up_beside_the_training_and_once_more_when_it_dies(url, job, tmp_path):
    folder = prepare(tmp_path / "a", job)
    found = shards(tmp_path / "a").checkpoints(folder, "cpu-1")

    def stored():
        return [n for n in found.store.names(found.prefix) if "epoch-" in n]

    def training():
        with found.kept(every_s=0.05):
            checkpoint(folder, 1)
            end = time.monotonic() + 20
            while not stored():
                assert time.monotonic() < end
                time.sleep(0.02)
            with found._lock:  # the watch does not see the last one
                checkpoint(folder, 2)
                raise TrainerDied("killed")

    with pytest.raises(TrainerDied):
        training()
    assert len(stored()) == 2


def test_a_store_that_fails_stops_no_training(url, job, tmp_path, caplog, monkeypatch):
    def fails(*_args, **_how):
        raise OSError("the server is gone")

    folder = prepare(tmp_path / "a", job)
    monkeypatch.setattr(SharedStore, "_call", fails)
    monkeypatch.setattr(SharedStore, "_copy", fails)
    with sharing(folder, CPU) as fetch:
        fetch()
        shutil.rmtree(folder)
        trained_shard(tmp_path / "a", job)
    assert "is not looked for in the store" in caplog.text
    assert "is not shared" in caplog.text
    assert "the server is gone" in caplog.text
    monkeypatch.undo()
    monkeypatch.setenv("CPB_STORE", url)
    with sharing(folder, CPU):  # the same command again
        pass
    assert shards(tmp_path / "a").has_result(folder)


def test_what_is_to_be_trained_anew_is_not_fetched(url, job, tmp_path):
    shards(tmp_path / "a").put_result(trained_shard(tmp_path / "a", job))
    other = prepare(tmp_path / "b", job)
    with sharing(other, CPU, use=False) as fetch:
        fetch()
        assert not (other / RESULT).exists()
        shutil.rmtree(other)
        trained_shard(tmp_path / "b", job)
    with sharing(prepare(tmp_path / "c", job), CPU) as fetch:
        assert (fleet_folder(tmp_path / "c", job) / RESULT).exists()


def test_without_a_store_nothing_is_copied(job, tmp_path, monkeypatch):
    monkeypatch.delenv("CPB_STORE", raising=False)
    before = content(prepare(tmp_path / "a", job))
    with sharing(fleet_folder(tmp_path / "a", job), CPU) as fetch:
        fetch()
    assert content(fleet_folder(tmp_path / "a", job)) == before
    check_shared_store(tmp_path / "a")


def test_a_store_that_cannot_be_used_is_refused(tmp_path, monkeypatch, url):
    check_shared_store(tmp_path / "a")
    with pytest.raises(UsageError, match="lies in CPB_HOME"):
        check_shared_store(tmp_path)
    monkeypatch.setenv("CPB_STORE", "s3:/bucket")
    with pytest.raises(UsageError, match="is no store"):
        check_shared_store(tmp_path / "a")
    monkeypatch.setenv("CPB_STORE", url)
    monkeypatch.setattr(
        SharedStore, "_copy", lambda *_: (_ for _ in ()).throw(PermissionError("Permission denied"))
    )
    with pytest.raises(CpbError, match="give this user the right"):
        check_shared_store(tmp_path / "a")


def test_machines_exchange_checkpoints_where_their_bits_agree():
    assert checkpoint_setting(CPU) == "cpu-1"
    assert checkpoint_setting(Slots((), 2, 4)) == "cpu-4"
    assert checkpoint_setting(Slots(("GPU-1",), 1, 4)) == "gpu"


TRAIN = """\
import pathlib, sys
from tasks.training import shared_checkpoints
from tasks.training.process import run_trainer
from tasks.training.shared_shards import sharing
from tasks.training.slots import Slots
shared_checkpoints.EVERY_S = 0.05
folder, slots = pathlib.Path(sys.argv[1]), Slots((), 1, 1)
with sharing(folder, slots) as fetch:
    run_trainer(folder, slots, 600, None, fetch)
"""


@pytest.mark.slow
def test_a_training_that_one_machine_began_ends_on_another_with_the_same_bits(
    url, tmp_path, caplog, monkeypatch
):
    job = home_with_job(tmp_path / "a", "linear", epochs=300, patience=1000)
    folder = prepare(tmp_path / "a", job)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    first = subprocess.Popen([sys.executable, "-c", TRAIN, str(folder)])
    checkpoints = shards(tmp_path / "a").checkpoints(folder, "cpu-1")
    try:
        end = time.monotonic() + 120
        while not any("epoch-" in name for name in checkpoints.store.names(checkpoints.prefix)):
            assert time.monotonic() < end, "no checkpoint came into the store"
            assert first.poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
    finally:
        first.kill()
        first.wait()
    assert not (folder / RESULT).exists()
    shutil.rmtree(tmp_path / "a/fleets")  # the machine is lost

    def train(home):
        shutil.copytree(tmp_path / "a/features", tmp_path / home / "features")
        there = prepare(tmp_path / home, job)
        with sharing(there, CPU) as fetch:
            run_trainer(there, CPU, 600, None, fetch)
        return read_result(there)

    with caplog.at_level(logging.INFO, "cpb"):
        second = train("b")
    assert "goes on from 1 checkpoint of the store" in caplog.text
    assert checkpoints.store.names(checkpoints.prefix) == {}
    monkeypatch.delenv("CPB_STORE")
    alone = train("c")
    (one,), (other,) = second.members, alone.members
    assert one.files["model.safetensors"] == other.files["model.safetensors"]
    assert one.history == other.history
    assert len(second.epochs) == len(alone.epochs) == 300
    monkeypatch.setenv("CPB_STORE", url)
    monkeypatch.setattr("tasks.training.process.WORKER", "no_such_module")
    assert train("d") == second  # from the store: nothing is trained twice
