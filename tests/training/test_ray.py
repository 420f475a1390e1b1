"""Shards on a Ray cluster of two nodes on this machine: the local engine's bits, whatever node is lost."""

import errno
import json
import os
import signal
import subprocess
import threading
from collections import Counter
from importlib.util import find_spec

import pytest
from ray_cluster import ATTACK, ENVIRONMENT, PYTHON, ROOT, SmallCluster, trainers_of
from small_shards import SPEC, copied, models, planned_in
from trainer_tools import wait_until

from flows.fleets import train_fleets
from flows.runner import Runner
from schemas.errors import CpbError
from schemas.handover import FleetResult
from schemas.run import RunSpec
from tasks.training import ray_executor, ray_node
from tasks.training.engine import opened_engine
from tasks.training.fleet_files import fleet_folder
from tasks.training.told import ShardTold

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # Found and not imported: Ray reads its environment when it is.
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
]

LONG = {"overrides": {"epochs": 60, "patience": 60}}
"""Epochs that take some seconds: time to lose a node."""


@pytest.fixture(scope="module")
def module_cluster():
    kept = dict(os.environ)
    made = SmallCluster()
    yield made
    made.close()
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture
def cluster(module_cluster, monkeypatch):
    """The cluster, with the head alone, to which runs of this test connect."""
    monkeypatch.setenv("RAY_ADDRESS", module_cluster.address)
    yield module_cluster
    module_cluster.clear()


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A home with candles, the fleet planned in it, and its models as this machine trains them."""
    home = tmp_path_factory.mktemp("planned") / "data"
    fleet = planned_in(home, **LONG)
    here = copied(home, tmp_path_factory.mktemp("local") / "data")
    train(here, fleet, engine="local")
    return home, fleet, models(here / "sim", fleet)


def train(home, fleet, **options):
    """Train a fleet in a home; the shards' results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPB_HOME", str(home))
        spec = RunSpec(**SPEC | LONG | options)
        with opened_engine(spec) as engine:
            (found,) = train_fleets(spec, Runner(), engine, [fleet])
    return found


@pytest.fixture
def starts(monkeypatch):
    """How often nodes have started on each shard."""
    found = Counter()
    starting = ShardTold.starting

    def count(told):
        found[told._key] += 1
        starting(told)

    monkeypatch.setattr(ShardTold, "starting", count)
    return found


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store that the nodes share."""
    folder = tmp_path / "store"
    folder.mkdir()
    monkeypatch.setenv("CPB_STORE", f"file://{folder}")
    return folder


def keys_of(fleet, home):
    return [fleet_folder(home, shard).name for shard in fleet.shards]


def test_two_nodes_that_see_the_home_train_what_this_machine_would(cluster, planned, tmp_path, starts):
    home, fleet, expected = planned
    for name in "ab":
        cluster.add(tmp_path / name)
    there = copied(home, tmp_path / "home")
    assert all(isinstance(one, FleetResult) and one.members for one in train(there, fleet))
    assert models(there / "sim", fleet) == expected
    assert sorted(starts) == sorted(keys_of(fleet, home))
    assert not list(there.glob(".cpb-ray-*"))
    starts.clear()
    train(there, fleet)
    assert not starts


def test_what_cannot_run_is_refused_in_one_sentence(cluster, planned, tmp_path, monkeypatch):
    home, fleet, _ = planned
    cluster.add(tmp_path / "a")
    there = copied(home, tmp_path / "home")
    with monkeypatch.context() as patch:
        patch.setattr(ray_executor, "memory_bytes", lambda job: 1e15)
        failures = [failure for one in train(there, fleet) for failure in one.failures]
        assert {one.code for one in failures} == {"ray-memory"}
    with monkeypatch.context() as patch:
        patch.setattr(ray_node, "versions", lambda own=ray_node.versions(): own | {"torch": "1.0"})
        with pytest.raises(CpbError, match=r"has torch .* instead of 1\.0") as caught:
            train(there, fleet)
        assert caught.value.code == "versions"
    with pytest.raises(CpbError) as caught:
        train(there, fleet, device="cuda")
    assert (caught.value.code, caught.value.field) == ("device", "device")


FULL = f"""
import shutil
def full(*args, **kwargs):
    raise OSError({errno.ENOSPC}, "No space left on device")
shutil.copyfile = full
"""
"""`sitecustomize` of a node whose disk is full: it can fetch nothing into its cache."""

SLOW = """
import shutil, time
copyfile = shutil.copyfile
def slow(*args, **kwargs):
    time.sleep(1)
    return copyfile(*args, **kwargs)
shutil.copyfile = slow
"""
"""`sitecustomize` of a node whose way to the store is slow: time to lose it while it writes a result."""


def site(folder, code):
    """The environment of a node that runs this code at the start of each process."""
    place = folder / "site"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": f"{place}{os.pathsep}{ROOT}"}


def is_training(cache, store):
    return [p for p in cache.glob("sim/fleets/*/checkpoints/*/*") if p.suffix == ".safetensors"]


def is_judging(cache, store):
    return list(cache.glob("sim/fleets/*/trained.json"))


def is_writing(cache, store):
    done = {p.parent.name for p in store.glob("sim/fleets/*/result.json")}
    return [
        p for p in store.glob("sim/fleets/*/members") if p.parent.name not in done and cache_has(cache, p)
    ]


def cache_has(cache, members):
    return (cache / "sim/fleets" / members.parent.name / "result.json").exists()


@pytest.mark.parametrize("moment", [is_training, is_judging, is_writing])
def test_a_node_that_is_lost_costs_its_shard_alone(cluster, planned, tmp_path, store, starts, moment):
    home, fleet, expected = planned
    caches = [tmp_path / name for name in "ab"]
    for cache in caches:
        cluster.add(cache, **site(tmp_path, SLOW if moment is is_writing else ""))
    killed = []

    def kill():
        def found():
            killed[:] = [cache for cache in caches if moment(cache, store)]
            return killed

        wait_until(found, 300)
        cluster.kill(killed[0])

    killer = threading.Thread(target=kill)
    killer.start()
    there = copied(home, tmp_path / "home")
    found = train(there, fleet)
    killer.join(300)
    assert killed
    assert all(one.members for one in found), found
    assert models(there / "sim", fleet) == expected
    assert set(starts) == set(keys_of(fleet, home))
    assert sorted(starts.values()) == [1, 2]
    starts.clear()
    train(there, fleet)  # nothing that is finished is trained again
    assert not starts


def test_a_node_without_space_gives_its_shards_to_others(cluster, planned, tmp_path, store, caplog):
    home, fleet, expected = planned
    cluster.add(tmp_path / "a", **site(tmp_path, FULL))
    cluster.add(tmp_path / "b")
    there = copied(home, tmp_path / "home")
    found = train(there, fleet)
    assert all(one.members for one in found), found
    assert models(there / "sim", fleet) == expected
    assert "goes to another node" in caplog.text
    assert not (tmp_path / "a/sim").exists() or not list((tmp_path / "a").rglob("result.json"))


def when(moment, do):
    """Start a thread that waits for a moment, then does something; `join` it."""

    def wait():
        wait_until(moment, 300)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_trainer_that_is_killed_is_started_again(cluster, planned, tmp_path, store, starts, caplog, capfd):
    home, fleet, expected = planned
    cache = tmp_path / "a"
    cluster.add(cache)
    killer = when(lambda: is_training(cache, store), lambda: [one.kill() for one in trainers_of(cache)])
    there = copied(home, tmp_path / "home")
    found = train(there, fleet)
    killer.join(300)
    assert all(one.members for one in found), found
    assert models(there / "sim", fleet) == expected
    assert sorted(starts.values()) == [1, 2]
    assert "is trained once more, from its newest checkpoint" in caplog.text
    assert "Traceback" not in "".join(capfd.readouterr())  # Ray's own words about it


def test_a_store_that_is_lost_fails_shards_in_one_sentence_and_loses_nothing(
    cluster, planned, tmp_path, store
):
    home, fleet, expected = planned
    cache = tmp_path / "a"
    cluster.add(cache)
    away = tmp_path / "away"
    taker = when(lambda: is_training(cache, store), lambda: store.rename(away))
    there = copied(home, tmp_path / "home")
    reasons = [failure.reason for one in train(there, fleet) for failure in one.failures]
    taker.join(300)
    assert len(reasons) == 2
    assert all("there is no folder" in one and "\n" not in one for one in reasons), reasons
    assert not store.exists()
    away.rename(store)
    assert all(one.members for one in train(there, fleet))
    assert models(there / "sim", fleet) == expected


def start_driver(home, store, epochs):
    """Start `cpb train-all` on the cluster, for two fleets of one shard each."""
    command = [
        "train-all", "--source", "sim", "--coins", "BTC,ETH", "--timeframes", "1h", "--architectures", "gru,linear",
        "--preset", "smoke", "--since", "2025-01", "--as-of", "2025-04-01", "--device", "cpu", "--engine", "ray",
        "--max-epochs", epochs, "--set", f"patience={epochs}", "--json",
    ]  # fmt: skip
    env = os.environ | ENVIRONMENT | {
        "CPB_HOME": str(home), "CPB_STORE": f"file://{store}", "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
    }  # fmt: skip
    home.mkdir(exist_ok=True)
    return subprocess.Popen(
        [PYTHON, "-m", "flows.cli", *map(str, command)], cwd=home.parent, env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


@pytest.mark.parametrize(("by", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_ctrl_c_or_sigterm_ends_the_driver_and_its_trainers(cluster, tmp_path, store, by, code):
    cache = tmp_path / "a"
    cluster.add(cache)
    driver = start_driver(tmp_path / "home", store, 400)
    wait_until(lambda: is_training(cache, store) or driver.poll() is not None, 300)
    assert driver.poll() is None, driver.communicate()
    driver.send_signal(by)
    out, said = driver.communicate(timeout=30)
    assert driver.returncode == code
    assert "Traceback" not in said
    assert "SIGTERM received" not in out + said  # Ray's stack of machine code
    wait_until(lambda: not trainers_of(cache), 30)


def test_a_killed_driver_repeated_trains_only_what_is_left(cluster, tmp_path, store):
    cache = tmp_path / "a"
    cluster.add(cache)
    home = tmp_path / "home"
    driver = start_driver(home, store, 60)
    wait_until(lambda: list(store.glob("sim/fleets/*/result.json")) or driver.poll() is not None, 300)
    assert driver.poll() is None, driver.communicate()
    driver.kill()
    driver.communicate(timeout=30)
    wait_until(lambda: not trainers_of(cache), 30)
    (first,) = store.glob("sim/fleets/*/result.json")
    before = first.stat().st_mtime_ns
    cluster.kill(cache)
    cluster.add(tmp_path / "b")  # what the first node kept is gone with it
    again = start_driver(home, store, 60)
    out, said = again.communicate(timeout=600)
    assert again.returncode == 0, said
    answer = json.loads(out)
    assert (answer["members"], answer["champions"], answer["failures"]) == (4, 2, [])
    assert len(list(store.glob("sim/fleets/*/result.json"))) == 2
    assert first.stat().st_mtime_ns == before
    trained = {path.parent.name for path in (tmp_path / "b").glob("sim/fleets/*/worker.log")}
    assert first.parent.name not in trained
    assert len(trained) == 1


def test_a_lost_head_ends_the_run_in_one_sentence_and_loses_nothing(tmp_path, store, monkeypatch):
    """Ray itself would end the driver by force, 60 s after its head."""
    kept = dict(os.environ)
    first, cache, home = SmallCluster(), tmp_path / "a", tmp_path / "home"
    try:
        monkeypatch.setenv("RAY_ADDRESS", first.address)
        first.add(cache)
        driver = start_driver(home, store, 200)
        wait_until(lambda: is_training(cache, store) or driver.poll() is not None, 300)
        assert driver.poll() is None, driver.communicate()
        first.cluster.head_node.kill_gcs_server(check_alive=False)
        out, said = driver.communicate(timeout=58)
        told = json.loads(out)
        assert (driver.returncode, told["exit"], told["code"]) == (1, 1, "engine-lost")
        assert "Traceback" not in said
    finally:
        first.close()
        os.environ.clear()
        os.environ.update(kept)
    wait_until(lambda: not trainers_of(cache), 90)
    second = SmallCluster()
    try:
        monkeypatch.setenv("RAY_ADDRESS", second.address)
        second.add(cache)
        again = start_driver(home, store, 200)
        out, said = again.communicate(timeout=600)
        assert again.returncode == 0, said
        answer = json.loads(out)
        assert (answer["members"], answer["champions"], answer["failures"]) == (4, 2, [])
    finally:
        second.close()
        os.environ.clear()
        os.environ.update(kept)


def test_nobody_without_the_token_gets_in(cluster, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path)}
    tries = [
        subprocess.Popen(
            [PYTHON, "-c", ATTACK, cluster.address], env=clean | token, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for token in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64})
    ]  # fmt: skip
    command = [
        PYTHON,
        "-m",
        "flows.cli",
        "train-all",
        "--engine",
        "ray",
        "--source",
        "sim",
        "--coins",
        "BTC",
        "--json",
    ]
    place = {"CPB_HOME": str(tmp_path / "data"), "RAY_ADDRESS": cluster.address, "RAY_AUTH_TOKEN": "0" * 64}
    cpb = subprocess.Popen(
        command,
        env=clean | place | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    for one in tries:
        said, errors = one.communicate(timeout=200)
        assert "inside" not in said
        assert "refused" in said or one.returncode != 0, said + errors
    told = json.loads(cpb.communicate(timeout=200)[0])
    assert (told["code"], told["exit"]) == ("ray-unreachable", 1)
    assert "token" in told["error"]
    assert "\n" not in told["error"]
    assert not list((tmp_path / "data").rglob("*.parquet"))
