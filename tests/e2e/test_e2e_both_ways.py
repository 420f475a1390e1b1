"""The same small job, directly and through a real Prefect server: the same records, runs and files."""

import hashlib
import json
import re
import shutil

import numpy as np
import polars as pl
import pytest
from mlflow.tracking import MlflowClient
from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

JOB = ("train-all", "--source", "sim", "--coins", "BTC,ETH", "--timeframes", "1h", "--preset", "smoke",
       "--architectures", "linear,robust-har", "--since", "2024-09", "--as-of", "2025-01-01")  # fmt: skip

CLOCK = (
    "since",
    "eta",
    "seconds",
    "per_s",
    "_mb",
    "_ms",
    "util",
    "power",
    "started",
    "ended",
    "time",
    "host",
    "pid",
    "busy",
    "work",
)
"""Parts of the names of figures and tags that are the machine's and the moment's."""


@pytest.fixture(scope="module")
def server():
    from prefect.testing.utilities import prefect_test_harness  # imports Prefect's server, for 3 s

    with prefect_test_harness(server_startup_timeout=180):
        yield get_current_settings().api.url


def flow_runs():
    """How many runs of flows the server knows."""
    with get_client(sync_client=True) as client:
        return len(client.read_flow_runs())


@pytest.fixture
def homes(cpb, server, tmp_path):
    """The folders of both runs, and what each printed."""
    found = {}
    for way, env in {"direct": {}, "prefect": {"PREFECT_API_URL": server}}.items():
        before = flow_runs()
        cpb.folder = tmp_path / "here"  # the same place for both: no path may differ
        cpb.folder.mkdir()
        done = cpb(*JOB, "--json", **env)
        assert done.returncode == 0, done.stderr
        assert flow_runs() - before == (way == "prefect")
        shutil.move(cpb.folder, tmp_path / way)
        found[way] = (tmp_path / way, json.loads(done.stdout.strip().splitlines()[-1]), done.stderr)
    return found["direct"], found["prefect"]


def test_the_same_job_both_ways_leaves_the_same(homes):
    (direct, printed, said), (prefect, printed_there, said_there) = homes
    assert without(printed, "run_id") == without(printed_there, "run_id")
    assert sentences(said) == sentences(said_there)
    assert files(direct) == files(prefect)
    assert records(direct) == records(prefect)
    assert contents(direct) == contents(prefect)
    assert runs(direct) == runs(prefect)
    assert champions(direct) == champions(prefect)


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


def sentences(said):
    """The lines for people, without times and without the names of runs; fleets end in any order."""
    found = [
        re.sub(r"--run \w+", "--run RUN", line)
        for line in said.splitlines()
        if line.startswith(("trained", "judged", "2 champions", "FAILED"))
    ]
    return sorted(found)


def files(folder):
    """Every file of the home but the cache's, whose names hold times of files."""
    found = (path.relative_to(folder) for path in sorted((folder / "data").rglob("*")) if path.is_file())
    return [str(path) for path in found if "cache" not in path.parts]


def timeless(value):
    """A record's content without the clock's and the machine's figures."""
    if isinstance(value, dict):
        return {
            k: timeless(v)
            for k, v in value.items()
            if not any(part in k for part in CLOCK) and k not in ("digest", "config_sha256")
        }
    if isinstance(value, list):
        return [timeless(one) for one in value]
    return value


def records(folder):
    found = {}
    for path in sorted((folder / "data").rglob("*.json")):
        value = json.loads(path.read_text())
        if path.name == "result.json":  # config.json of a model holds its report, with times in it
            for member in value["body"]["members"]:
                del member["files"]["config.json"]
        found[str(path.relative_to(folder))] = timeless(value)
    assert any(name.endswith("result.json") for name in found)
    assert any(name.endswith("job.json") for name in found)
    return found


def contents(folder):
    """Digest of every file whose bytes are results: candles, features, weights, forecasts on the test span."""
    found = {}
    for path in sorted((folder / "data").rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                found[name] = {key: hashlib.sha256(arrays[key].tobytes()).hexdigest() for key in arrays.files}
        elif path.suffix == ".parquet":
            frame = pl.read_parquet(path, hive_partitioning=False).drop("made_at", strict=False)
            found[name] = (frame.schema, frame.hash_rows(seed=1).to_list())
    kinds = {name.rpartition(".")[2] for name in found}
    assert kinds == {"safetensors", "npz", "parquet"}
    return found


def client(folder):
    return MlflowClient(f"sqlite:///{folder}/mlruns/mlflow.db")


def runs(folder):
    """Every run: name, status, params, tags and metrics, without ids, times and places."""
    mlflow = client(folder)
    ids = [one.experiment_id for one in mlflow.search_experiments()]
    found = {}
    for run in mlflow.search_runs(ids, max_results=1000):
        tags = {k: v for k, v in run.data.tags.items() if not moment(k)}
        tags["cpb.key"] = tags["cpb.key"].rpartition("/")[2]  # a fleet's begins with the id of the flow's run
        for tag in {
            "files",
            "mlflow_files",
        } & tags.keys():  # config.json and MLmodel hold times and ids of their run
            digests = json.loads(tags[tag])
            tags[tag] = {k: v for k, v in digests.items() if k not in ("config.json", "MLmodel")}
        metrics = {k: v for k, v in run.data.metrics.items() if not any(part in k for part in CLOCK)}
        key = (run.data.tags["cpb.kind"], run.info.run_name)
        assert key not in found
        found[key] = (run.info.status, run.data.params, tags, metrics)
    assert [kind for kind, _ in found].count("member") == 4
    return found


def moment(name):
    """Whether a tag names a run, a place, a process or a time."""
    ids = ("fleet", "mlflow.parentRunId", "cpb.process", "cpb.opened", "git_commit")
    return name in ids or any(part in name for part in CLOCK)


def champions(folder):
    mlflow = client(folder)
    found = {}
    for model in mlflow.search_registered_models():
        version = mlflow.get_model_version_by_alias(model.name, "champion")
        tags = {k: v for k, v in version.tags.items() if not any(part in k for part in (*CLOCK, "files"))}
        decision = json.loads(tags.pop("decision"))  # it names the run and the moment, too
        found[model.name] = (str(version.version), tags, decision["rule"], decision["reason"])
    assert set(found) == {"cpb-sim-BTCUSDT-1h", "cpb-sim-ETHUSDT-1h"}
    return found
