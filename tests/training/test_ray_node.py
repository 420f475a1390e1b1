"""What a node refuses, sends and leaves behind, what the board keeps, and what the driver writes; without a cluster."""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from shard_tools import SERIES, home_with_job, trained_shard

from cpbmodels.errors import ModelError
from schemas.errors import CpbError, DamagedError
from tasks.storage.locks import locked
from tasks.training import ray_node, trainer
from tasks.training.files import EPOCHS, RESULT, prepare, read_result
from tasks.training.ray_executor import keep_result, shard_inputs
from tasks.training.ray_node import Board, Order, difference, read_files, train_on_node, versions, write_files
from tasks.training.runner import TrainerDied


class Sent:
    """A board whose methods note what they are called with."""

    def __init__(self):
        self.said = []
        for name in ("start", "progress", "line", "keep"):
            setattr(self, name, self)

    def remote(self, *given):
        self.said.append(given)


KEY = "fleets/0123456789abcdef"


def order(home, **changes):
    values = {
        "key": KEY, "home": str(home), "versions": versions(), "threads": 1, "gpu": False, "timeout_s": 60.0,
        "checkpoint_s": 0.0,
    }  # fmt: skip
    return Order(**values | changes)


def test_a_node_with_other_versions_trains_nothing(tmp_path):
    board = Sent()
    others = versions() | {"torch": "1.0", "python": "2.7"}
    with pytest.raises(CpbError, match=r"has torch .* instead of 1\.0; python .* instead of 2\.7") as caught:
        train_on_node(order(tmp_path, versions=others), {}, board)
    assert caught.value.code == "versions"
    assert not board.said
    assert difference(versions(), versions()) == ""


def test_builds_of_one_torch_for_cpu_and_gpu_are_equal(monkeypatch):
    found = {}
    for build in ("2.9.1+cpu", "2.9.1+cu130"):
        monkeypatch.setattr(ray_node, "version", lambda name, build=build: build if name == "torch" else "1")
        found[build] = versions()
    assert found["2.9.1+cpu"] == found["2.9.1+cu130"]


def test_what_cpb_logs_on_a_node_reaches_the_board(tmp_path):
    board = Sent()
    reports = ray_node._Reports(board, order(tmp_path, key="k"))
    with reports.hearing_log():
        logging.getLogger("cpb").info("waiting for %s", "a GPU")
    logging.getLogger("cpb").info("not of this shard")
    ((key, level, text),) = board.said
    assert (key, level) == ("k", logging.INFO)
    assert text.endswith(": waiting for a GPU")


def test_the_board_keeps_every_line_and_the_newest_progress(tmp_path):
    board = Board(str(tmp_path))
    board.start("a")
    for share in (0.1, 0.2):
        board.progress("a", {"share": share})
        board.line("a", logging.WARNING, f"{share}")
    board.start("b")
    found = board.take()
    assert found["b"] == [("start", None)]
    assert found["a"][0] == ("start", None)
    assert [value for kind, value in found["a"] if kind == "progress"] == [{"share": 0.2}]
    assert [value[1] for kind, value in found["a"] if kind == "line"] == ["0.1", "0.2"]
    assert board.take() == {}


def files(**contents):
    return {name: np.frombuffer(text.encode(), np.uint8) for name, text in contents.items()}


def checkpoint(epoch, part="fleet-0000"):
    return f"checkpoints/{part}/epoch-{epoch:06d}-0a1b2c3d.safetensors"


def write_checkpoint(folder, epoch, **where):
    path = folder / checkpoint(epoch, **where)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"epoch {epoch}")


def test_the_board_keeps_checkpoints_in_the_home_and_gives_them_to_the_next_try(tmp_path):
    folder = prepare(tmp_path, home_with_job(tmp_path))
    key, board = folder.relative_to(tmp_path).as_posix(), Board(str(tmp_path))
    assert board.begun(key) == {}
    for epoch in (1, 2, 3):
        board.keep(key, files(**{checkpoint(epoch): f"epoch {epoch}", EPOCHS: "{}\n" * epoch}))
    found = board.begun(key)
    assert sorted(found) == [checkpoint(2), checkpoint(3), EPOCHS]
    assert bytes(found[checkpoint(3)]) == b"epoch 3"
    assert bytes(found[EPOCHS]).count(b"\n") == 3
    assert board.take() == {}


def test_the_board_drops_a_checkpoint_that_comes_too_late(tmp_path):
    job = home_with_job(tmp_path)
    folder = trained_shard(tmp_path, job)
    board = Board(str(tmp_path))
    for key in (folder.relative_to(tmp_path).as_posix(), "fleets/removed"):
        board.keep(key, files(**{checkpoint(1): "late"}))
    assert not (folder / "checkpoints").exists()
    assert not (tmp_path / "fleets/removed").exists()


def test_a_home_that_takes_no_checkpoint_is_told_and_ends_nothing(tmp_path):
    folder = prepare(tmp_path, home_with_job(tmp_path))
    (folder / "checkpoints").write_text("no folder")
    board, key = Board(str(tmp_path)), folder.relative_to(tmp_path).as_posix()
    board.keep(key, files(**{checkpoint(1): "x"}))
    ((kind, (level, text)),) = board.take()[key]
    assert (kind, level) == ("line", logging.WARNING)
    assert "is not kept" in text


def test_a_node_sends_the_newest_checkpoint_of_each_part_once(tmp_path):
    board = Sent()
    reports = ray_node._Reports(board, order(tmp_path))
    reports._folder = tmp_path
    (tmp_path / EPOCHS).write_text("{}\n")
    state = {"share": 0.5}
    reports(state)
    assert board.said == [(KEY, state)]  # there is no checkpoint yet
    board.said.clear()
    write_checkpoint(tmp_path, 1)
    write_checkpoint(tmp_path, 2)
    write_checkpoint(tmp_path, 7, part="fold-1-1h/fleet-0000")
    reports(state)
    reports(state)
    ((key, sent),) = [said for said in board.said if said[1] != state]
    assert key == KEY
    assert sorted(sent) == [checkpoint(2), checkpoint(7, "fold-1-1h/fleet-0000"), EPOCHS]


def test_a_shard_goes_to_a_node_and_back_whole_or_not_at_all(tmp_path):
    driver, node = tmp_path / "driver", tmp_path / "node"
    job = home_with_job(driver)
    folder = prepare(driver, job)
    key = folder.relative_to(driver).as_posix()
    write_files(node, shard_inputs(driver, key, job))
    features = job.members[0].features.path
    assert (node / features).read_bytes() == (driver / features).read_bytes()
    there = trained_shard(node, job)
    (there / "worker.log").touch()
    names = [path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()]
    sent = read_files(there, names)

    write_checkpoint(folder, 1)
    spoilt = sent | files(**{f"members/{SERIES.name}/model/config.json": '{"spoilt": 1}'})
    with pytest.raises(DamagedError, match="arrived damaged from its node"):
        keep_result(folder, spoilt)
    assert not (folder / RESULT).exists()
    assert (folder / checkpoint(1)).exists()

    keep_result(folder, sent)
    assert read_result(folder) == read_result(there)
    for name in names:
        assert (folder / name).read_bytes() == (there / name).read_bytes()
    assert not (folder / "checkpoints").exists()
    keep_result(folder, spoilt)  # another process was faster: what it has written stays
    assert read_result(folder) == read_result(there)


def test_features_that_are_gone_are_left_to_the_trainer_to_name(tmp_path):
    job = home_with_job(tmp_path)
    folder = prepare(tmp_path, job)
    (tmp_path / job.members[0].features.path).unlink()
    key = folder.relative_to(tmp_path).as_posix()
    assert list(shard_inputs(tmp_path, key, job)) == [f"{key}/job.json"]


def test_a_model_to_start_from_goes_to_the_node(tmp_path, monkeypatch):
    champion, node = tmp_path / "elsewhere/champion", tmp_path / "node"
    champion.mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        (champion / name).write_text(name)
    job = home_with_job(tmp_path)
    member = job.members[0].model_copy(update={"continues": str(champion)})
    job = job.model_copy(update={"members": (member,)})
    folder = prepare(tmp_path, job)
    write_files(node, shard_inputs(tmp_path, folder.relative_to(tmp_path).as_posix(), job))
    loaded = []

    def load(place):
        loaded.append(place)
        raise ModelError("enough")

    monkeypatch.setattr(trainer.cpbmodels, "load", load)
    for home in (node, tmp_path):
        with pytest.raises(ModelError):
            trainer._earlier_rows(job, [(member, None)], home)
    assert loaded[0].is_relative_to(node)
    assert loaded[1] == champion
    assert (loaded[0] / "config.json").read_text() == "config.json"


def test_the_log_of_a_failed_trainer_is_named_where_it_lies_afterwards(tmp_path, monkeypatch):
    def die(folder, *_):
        raise TrainerDied(f"training process ended with code 1 (log: {folder / 'worker.log'})")

    monkeypatch.setattr(ray_node, "run_trainer", die)
    called = []
    reports = SimpleNamespace(fetch=called.append, send_last=lambda: called.append("sent"))
    with pytest.raises(TrainerDied, match=r"\(log: /srv/data/fleets/0123456789abcdef/worker\.log\)"):
        ray_node._train(tmp_path, order("/srv/data"), reports)
    assert called == [tmp_path / KEY, "sent"]


@pytest.mark.parametrize("named", ["", "/elsewhere"])
def test_a_node_keeps_compiled_kernels_beside_its_shards(tmp_path, monkeypatch, named):
    monkeypatch.setenv("TRITON_CACHE_DIR", named)
    given = []
    monkeypatch.setattr(ray_node, "run_trainer", lambda *args: given.append(args[4]))
    reports = SimpleNamespace(fetch=lambda folder: None)
    for name in ("shard-1", "shard-2"):
        ray_node._train(tmp_path / name, order("/srv/data"), reports)
    assert given == [{"TRITON_CACHE_DIR": named or str(tmp_path / "triton")}] * 2


ABANDON = """
import os
from tasks.training.ray_node import _own_home
with _own_home() as home:
    (home / "features").touch()
    print(home, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_task_removes_its_folder_and_those_of_killed_tasks_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    killed = subprocess.run(
        [sys.executable, "-c", ABANDON], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )  # fmt: skip
    left = Path(killed.stdout.strip())
    assert (left / "features").exists(), killed.stderr
    with locked(left.parent / "shard-of-another.lock"):
        (left.parent / "shard-of-another").mkdir()
        foreign = left.parent / "notes"
        foreign.mkdir()
        with ray_node._own_home() as home:
            assert not left.exists()
            assert home.parent == left.parent
            (home / "x").touch()
        assert sorted(path.name for path in left.parent.iterdir()) == [
            "notes", "shard-of-another", "shard-of-another.lock", "shards.lock",
        ]  # fmt: skip
