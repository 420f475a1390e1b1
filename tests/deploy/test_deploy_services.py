import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from flows.deploy import services
from flows.deploy.services import run
from schemas.errors import CpbError, UsageError
from tasks.tracking.home_store import HomeStore, write_home_store


@pytest.fixture
def asked(monkeypatch):
    """The runs that were asked for; Prefect's client is a stand-in."""
    runs = []

    def run_deployment(name, **given):
        if name.endswith("/nothing"):
            raise ObjectNotFound(ValueError())
        runs.append((name, given))
        return FlowRun.model_construct(name="quick-fox")

    monkeypatch.setattr("prefect.deployments.run_deployment", run_deployment)
    monkeypatch.setattr(services, "last_port", lambda: 4200)
    monkeypatch.setattr(services, "client_of", lambda port: nullcontext())
    return runs


def test_a_short_name_is_a_deployment_and_values_are_json_where_they_can_be_else_text(asked):
    given = ["coins=BTC,ETH", "seeds=3", "tail=true", "repo=null", 'overrides={"epochs": 2}', "since=2024-01"]
    assert run("train-all", given).name == "quick-fox"
    run("anything/mine", ["url=a=b", "x="], watch=True)
    values = {
        "coins": "BTC,ETH",
        "seeds": 3,
        "tail": True,
        "repo": None,
        "overrides": {"epochs": 2},
        "since": "2024-01",
    }
    assert [(name, given["parameters"], given["timeout"]) for name, given in asked] == [
        ("train-all/train-all", values, 0),
        ("anything/mine", {"url": "a=b", "x": ""}, None),
    ]


@pytest.mark.parametrize(
    ("name", "parameters", "code", "field"),
    [
        ("train-all", ["coins"], "parameter", "param"),
        ("train-all", ["=3"], "parameter", "param"),
        ("nonsense", [], "deployment", "name"),
        ("train-all", ["timeframes=7h"], "timeframes", "timeframes"),
    ],
)
def test_wrong_words_are_refused_before_a_server_is_asked(asked, name, parameters, code, field):
    with pytest.raises(UsageError) as error:
        run(name, parameters)
    assert (error.value.code, error.value.field) == (code, field)
    assert asked == []


def test_what_the_server_does_not_have_and_no_server_are_said(asked, monkeypatch):
    with pytest.raises(CpbError, match="has no deployment 'train-all/nothing'"):
        run("train-all/nothing")
    monkeypatch.setattr(services, "last_port", lambda: None)
    monkeypatch.setattr("flows.prefect.server_in_use", lambda: False)
    with pytest.raises(CpbError, match="cpb deploy up"):
        run("hourly")


def test_only_processes_with_this_deployments_mark_are_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_DEPLOY_STATE", str(tmp_path / "mine"))
    marked = {"CPB_DEPLOYED": str(tmp_path / "mine")}
    sleepers = [
        subprocess.Popen(["sleep", "60"], env=env) for env in (marked, {"CPB_DEPLOYED": "/theirs"}, {})
    ]
    try:
        assert [process.pid for process in services.processes()] == [sleepers[0].pid]
        services._stop("worker")  # all but the server
        assert [sleeper.poll() for sleeper in sleepers[1:]] == [None, None]
        assert sleepers[0].wait(10) == -2
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "sqlite:////code/mlruns/mlflow.db"),
        ({"CPB_HOME": "mine"}, "sqlite:///{cwd}/mine/mlruns/mlflow.db"),
        ({"MLFLOW_TRACKING_URI": "sqlite:///runs.db"}, "sqlite:///{cwd}/runs.db"),
        ({"MLFLOW_TRACKING_URI": "http://host:5000"}, "http://host:5000"),
    ],
)
def test_flows_use_the_store_that_the_commands_of_a_shell_use(variables, expected, tmp_path, monkeypatch):
    for name in ("CPB_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (variables | {"PREFECT_HOME": str(tmp_path / "prefect")}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(services, "ROOT", Path("/code"))
    given = services._environment(4200)
    assert given["MLFLOW_TRACKING_URI"] == expected.format(cwd=tmp_path)


def test_flows_use_the_store_of_the_home_that_has_one(tmp_path, monkeypatch):
    for name, value in (("CPB_HOME", "home"), ("PREFECT_HOME", "prefect")):
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write_home_store(tmp_path / "home", HomeStore(store_id="1", address="http://host:5000"))
    assert "MLFLOW_TRACKING_URI" not in services._environment(4200)
