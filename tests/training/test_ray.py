"""Shards on a Ray cluster of two nodes on this machine: the local engine's bits, whatever node is lost."""

import json
import os
import signal
import subprocess
import threading
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from schemas.errors import CpbError
from schemas.handover import ShardResult
from schemas.run import RunSpec
from tasks import steps
from tasks.running.progress import reports_to
from tasks.steps import opened_engine
from tasks.training import ray as engine_ray
from tasks.training.queue import train_fleets
from tasks.training.shard import RESULT, shard_folder
from tests.tools.ray_cluster import ATTACK, ENVIRONMENT, PYTHON, ROOT, SmallCluster
from tests.tools.small_shards import SPEC, copied, models, planned_in
from tests.tools.trainer_tools import children_with, wait_until

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
    lines = []
    with reports_to(SimpleNamespace(progress=lambda report: None, line=lines.append)):
        train(here, fleet, engine="local")
    assert ends(lines) == EPOCHS
    return home, fleet, models(here / "sim", fleet)


EPOCHS = ["gru  epoch 20/60", "gru  epoch 40/60", "gru  epoch 60/60"]


def ends(lines):
    """Of the lines about epochs, what is equal wherever they were trained."""
    return ["  ".join(line.split("  ")[:2]) for line in lines if line.startswith("gru  epoch ")]


def train(home, fleet, **options):
    """Train a fleet in a home; the shards' results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPB_HOME", str(home))
        spec = RunSpec(**SPEC | LONG | options)
        with opened_engine(spec) as engine:
            (results,) = train_fleets(engine, [fleet], partial(steps.train, spec, engine))
    return results


def trainers_of(node):
    """The trainers of the node with this temporary folder."""
    return children_with("TMPDIR", node)


def results(home, fleet):
    """When each shard's result was written."""
    return [(shard_folder(home / "sim", shard) / RESULT).stat().st_mtime_ns for shard in fleet.shards]


def test_two_nodes_train_the_models_of_this_machine_and_keep_nothing(cluster, planned, tmp_path):
    home, fleet, expected = planned
    for name in "ab":
        cluster.add(tmp_path / name)
    there, lines = copied(home, tmp_path / "home"), []
    with reports_to(SimpleNamespace(progress=lambda report: None, line=lines.append)):
        assert all(isinstance(result, ShardResult) and result.members for result in train(there, fleet))
    assert ends(lines) == EPOCHS  # of nodes, too
    assert models(there / "sim", fleet) == expected
    assert not [path for name in "ab" for path in (tmp_path / name).glob("cpb-shard-*")]
    written = results(there, fleet)
    train(there, fleet)  # nothing that is finished is trained again
    assert results(there, fleet) == written


def test_what_cannot_run_is_refused_in_one_sentence(cluster, planned, tmp_path, monkeypatch):
    home, fleet, _ = planned
    cluster.add(tmp_path / "a")
    there = copied(home, tmp_path / "home")
    for name, value, code in (
        ("memory_bytes", lambda job: 1e15, "ray-resources"),
        ("environment", lambda: "torch 1.0", "versions"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(engine_ray, name, value)
            failures = [failure for result in train(there, fleet) for failure in result.failures]
            assert {failure.code for failure in failures} == {code}
    with pytest.raises(CpbError, match="no node of the Ray cluster has CPU 1, GPU 1"):
        train(there, fleet, device="cuda")


def is_training(node):
    return any(node.glob("cpb-shard-*/sim/fleets/*/checkpoints/*/*.safetensors"))


def test_a_node_that_is_lost_costs_its_shard_alone(cluster, planned, tmp_path):
    home, fleet, expected = planned
    nodes = [tmp_path / name for name in "ab"]
    for node in nodes:
        cluster.add(node)
    there = copied(home, tmp_path / "home")
    killer = when(lambda: next(filter(is_training, nodes), None), cluster.kill)
    results = train(there, fleet)
    killer.join(300)
    assert len(cluster.nodes) == 1
    assert all(result.members for result in results), results
    assert models(there / "sim", fleet) == expected


def when(moment, do):
    """Start a thread that waits for what `moment` gives, then does something with it; `join` it."""
    thread = threading.Thread(target=lambda: do(wait_until(moment, 300)))
    thread.start()
    return thread


def test_a_trainer_that_is_killed_is_started_again(cluster, planned, tmp_path, caplog, capfd):
    home, fleet, expected = planned
    node = tmp_path / "a"
    cluster.add(node)
    there = copied(home, tmp_path / "home")
    killer = when(lambda: is_training(node), lambda _: [child.kill() for child in trainers_of(node)])
    results = train(there, fleet)
    killer.join(300)
    assert all(result.members for result in results), results
    assert models(there / "sim", fleet) == expected
    assert "train is tried again" in caplog.text
    assert "Traceback" not in "".join(capfd.readouterr())  # Ray's own words about it


@pytest.mark.parametrize(
    ("by", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_signal_ends_the_driver_and_its_trainers(cluster, tmp_path, by, code):
    node, home = tmp_path / "a", tmp_path / "home"
    cluster.add(node)
    home.mkdir()
    options = "--source sim --coins BTC --timeframes 1h --architectures gru --preset smoke --since 2025-01 "
    options += "--as-of 2025-04-01 --device cpu --engine ray --set epochs=400 --set patience=400 --json"
    driver = subprocess.Popen(
        [PYTHON, "-m", "flows.cli", "train-all", *options.split()],
        cwd=tmp_path,
        text=True,
        env=os.environ
        | ENVIRONMENT
        | {"CPB_HOME": str(home), "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_until(lambda: is_training(node) or driver.poll() is not None, 300)
    assert driver.poll() is None, driver.communicate()
    driver.send_signal(by)
    out, errors = driver.communicate(timeout=120)
    assert driver.returncode == code
    assert "Traceback" not in errors
    assert "SIGTERM received" not in out + errors  # Ray's stack of machine code
    wait_until(lambda: not trainers_of(node), 120)


def test_nobody_without_the_token_gets_in(cluster, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path)}
    tries = [
        subprocess.Popen(
            [PYTHON, "-c", ATTACK, cluster.address],
            env=clean | token,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for token in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64})
    ]
    options = "train-all --engine ray --source sim --coins BTC --json"
    command = [PYTHON, "-m", "flows.cli", *options.split()]
    place = {"CPB_HOME": str(tmp_path / "data"), "RAY_ADDRESS": cluster.address, "RAY_AUTH_TOKEN": "0" * 64}
    env = clean | place | {"PYTHONPATH": str(ROOT)}
    cpb = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    for attempt in tries:
        said, errors = attempt.communicate(timeout=200)
        assert "inside" not in said
        assert "refused" in said or attempt.returncode != 0, said + errors
    told = json.loads(cpb.communicate(timeout=200)[0])
    assert (told["code"], told["exit"]) == ("ray-unreachable", 1)
    assert "\n" not in told["error"]
    assert not list((tmp_path / "data").rglob("*.parquet"))
