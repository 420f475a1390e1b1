import json
import os
import time
from pathlib import Path

import pytest

from schemas.retention import SHARD_UNUSED_DAYS, SHARDS_PER_KIND
from tasks.storage.locks import locked
from tasks.storage.records import value_digest, write_record
from tasks.training.shard_retention import (
    ShardsInUse,
    are_in_use,
    remove_old_shards,
)
from tests.tools.planned import job, planned


def fleet(root, name, used=0.0, coins=("BTCUSDT",), market="spot", **options):
    """A trained shard, used so many seconds after the others, with drafts that a kill has left."""
    shard = job(*(planned(coin, market=market) for coin in coins), **options)
    folder = root / "fleets" / value_digest(name)[:16]
    write_record(folder / "job.json", shard)
    names = ["result.json", "lock", "worker.log", "progress.json", "checkpoints/17.safetensors"]
    names.append(".job.json.0123456789ab")
    for member in shard.members:
        files = ("model.safetensors", "config.json", "metrics.json", "loss.png")
        names += [f"members/{member.name}/model/{file}" for file in files]
        names += [
            f"members/{member.name}/{file}" for file in ("score-0123456789abcdef.npz", "test.npz", "lock")
        ]
        names.append(f".members.0123456789ab/{member.name}/model/.config.json.0123456789ab")
    for path in map(folder.joinpath, names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    at = time.time() - 10_000 + used
    os.utime(folder / "job.json", (at, at))
    return folder


def test_a_run_is_seen_by_its_lock_and_a_lock_that_may_not_be_opened_is_none(tmp_path):
    assert not are_in_use(tmp_path)
    with ShardsInUse(tmp_path):
        assert are_in_use(tmp_path)
    assert not are_in_use(tmp_path)
    (tmp_path / "fleets.lock").rename(tmp_path / "other")
    (tmp_path / "fleets.lock").symlink_to(tmp_path / "other")
    assert not are_in_use(tmp_path)


@pytest.fixture
def nights(tmp_path):
    """Fleets of one kind, oldest first, among fleets of other kinds."""
    made = [fleet(tmp_path, f"night {n}", used=1000.0 + n) for n in range(SHARDS_PER_KIND + 2)]
    fleet(tmp_path, "other coins", coins=("BTCUSDT", "ETHUSDT"), used=1.0)
    fleet(tmp_path, "other architecture", architecture="har", used=1.0)
    fleet(tmp_path, "other preset", preset="default", used=1.0)
    for n in range(SHARDS_PER_KIND):  # a run may train several changes of one preset
        fleet(tmp_path, f"other options {n}", overrides={"epochs": 2 + n}, used=1.0)
    fleet(tmp_path, "other type", dtype="float64", used=1.0)
    fleet(tmp_path, "other market", market="um", used=1.0)
    return made


def removed(nights):
    return [n for n, folder in enumerate(nights) if not folder.exists()]


def test_the_last_few_of_each_kind_are_kept(tmp_path, nights):
    everything = set((tmp_path / "fleets").iterdir())

    assert ShardsInUse(tmp_path).release() == sorted(nights[:2])

    assert everything - set((tmp_path / "fleets").iterdir()) == set(nights[:2])
    assert ShardsInUse(tmp_path).release() == []


def test_fleets_that_no_run_uses_any_more_go_whatever_their_kind(tmp_path, nights):
    others = set((tmp_path / "fleets").iterdir()) - set(nights)
    old = time.time() - (SHARD_UNUSED_DAYS + 1) * 86400
    gone = sorted(others)[0]
    os.utime(gone / "job.json", (old, old))

    assert set(remove_old_shards(tmp_path / "fleets")) == {gone, *nights[:2]}


def test_an_older_fleet_that_was_used_again_or_is_trained_is_kept(tmp_path, nights):
    os.utime(nights[0] / "job.json")
    with locked(nights[1] / "lock"):
        ShardsInUse(tmp_path).release()
    assert removed(nights) == [2]


def test_nothing_goes_while_another_run_is_at_work(tmp_path, nights):
    other = ShardsInUse(tmp_path)
    assert ShardsInUse(tmp_path).release() == []
    assert len(other.release()) == 2


@pytest.mark.parametrize(
    "place",
    [
        "notes.txt",
        "members/notes.txt",
        "members/BTCUSDT-1h/notes.txt",
        "members/BTCUSDT-1h/model/thesis.pdf",
        "members/MINE-1h/model/model.safetensors",
        "photos/a.png",
    ],
)
def test_a_file_of_the_users_stays_alone(tmp_path, nights, place):
    mine = nights[0] / place
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")

    assert remove_old_shards(tmp_path / "fleets") == [nights[1]]

    assert [path for path in nights[0].rglob("*") if path.is_file()] == [mine]
    assert mine.read_text() == "mine"


def test_what_a_killed_removal_left_goes_with_the_next(tmp_path, nights, monkeypatch):
    unlink, left = Path.unlink, iter(range(5))

    def killed(path, **options):
        if next(left, None) is None:
            raise KeyboardInterrupt
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        remove_old_shards(tmp_path / "fleets")
    monkeypatch.undo()
    assert removed(nights) == []
    remove_old_shards(tmp_path / "fleets")
    assert removed(nights) == [0, 1]


def test_a_link_is_never_followed_and_a_folder_of_another_name_stays(tmp_path, nights):
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "test.npz").write_text("mine")
    (nights[0] / "members/BTCUSDT-1h/model/linked").symlink_to(treasure)
    elsewhere = fleet(tmp_path / "elsewhere", "linked", used=2.0)
    (tmp_path / "fleets" / elsewhere.name).symlink_to(elsewhere)
    copy = nights[1].rename(nights[1].with_name("my-copy"))

    remove_old_shards(tmp_path / "fleets")

    assert copy.exists()
    assert (treasure / "test.npz").exists()
    assert elsewhere.exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"architecture": "har", "preset": "smoke", "members": []}', "changed"]
)
def test_a_folder_whose_job_cannot_be_read_is_left_alone(tmp_path, nights, content):
    path = nights[0] / "job.json"
    if content == "changed":
        record = json.loads(path.read_text())
        record["body"]["preset"] = "default"
        content = json.dumps(record)
    path.write_text(content)

    remove_old_shards(tmp_path / "fleets")

    assert removed(nights) == [1]
    assert path.read_text() == content
