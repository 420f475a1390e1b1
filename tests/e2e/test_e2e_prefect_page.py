"""What Prefect's own page tells of a run: the picture of its steps, their names and states, log lines, leaderboard."""

import time
from itertools import pairwise, takewhile
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, LogFilter, TaskRunFilter
from prefect.flow_engine import run_flow
from prefect.settings import get_current_settings

from schemas.errors import CpbError
from tasks.tracking.store import open_store
from tasks.tracking.store_errors import UNUSABLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server():
    """The address of a real server with an empty database."""
    from prefect.testing.utilities import prefect_test_harness  # imports Prefect's server, for 3 s

    with prefect_test_harness(server_startup_timeout=180):
        yield get_current_settings().api.url


class Page:
    """What the server knows of the newest run of a flow, as soon as it knows of all of the named task runs."""

    def __init__(self, name, task_runs):
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs(limit=200)
            flows = {f.id: f.name for f in client.read_flows(limit=200)}
            self.run = max((r for r in runs if flows[r.flow_id] == name), key=lambda r: r.created)
            only = FlowRunFilter.model_validate({"id": {"any_": [self.run.id]}})
            self.tasks = {t.name: t for t in self._ended_tasks(client, only, task_runs)}
            self.events = self._events(client)
            graph = client.request("GET", f"/flow_runs/{self.run.id}/graph-v2").json()
            names = {id_: node["label"] for id_, node in graph["nodes"]}
            arrows = [(names[p["id"]], node["label"]) for _, node in graph["nodes"] for p in node["parents"]]
            self.arrows = {tuple(name.split()[0] for name in arrow) for arrow in arrows}
            self.artifacts = client.request("POST", "/artifacts/filter", json={}).json()

    def _ended_tasks(self, client, only, names):
        """Task runs reach the server as events, each a moment after it has ended."""
        deadline = time.monotonic() + 60
        while True:
            task_runs = client.read_task_runs(
                flow_run_filter=only, task_run_filter=TaskRunFilter(), limit=200
            )
            ended = {task.name for task in task_runs if task.state and task.state.is_final()}
            if names <= ended or time.monotonic() > deadline:
                return task_runs
            time.sleep(0.3)

    def _events(self, client):
        """The names of the run's events: what an automation is triggered by."""
        resource = {"id": [f"prefect.flow-run.{self.run.id}"]}
        deadline = time.monotonic() + 60
        while True:
            answer = client.request("POST", "/events/filter", json={"filter": {"resource": resource}}).json()
            names = {event["event"] for event in answer["events"]}
            if f"prefect.flow-run.{self.run.state.name}" in names or time.monotonic() > deadline:
                return names
            time.sleep(0.3)

    def log(self, *wanted):
        """Return the log's lines as soon as all of `wanted` are among them."""
        only = LogFilter.model_validate({"flow_run_id": {"any_": [self.run.id]}})
        deadline = time.monotonic() + 60
        with get_client(sync_client=True) as client:
            while True:
                lines = [line.message for line in client.read_logs(log_filter=only, limit=200)]
                if all(any(text in line for line in lines) for text in wanted) or time.monotonic() > deadline:
                    return lines
                time.sleep(0.3)


def steps_of_the_table():
    """The steps in the table of docs/architecture.md, in its order."""
    lines = (Path(__file__).parents[2] / "docs/architecture.md").read_text().splitlines()
    table = lines[lines.index("| step | what it does | reads | leaves |") + 2 :]
    return [line.split("|")[1].strip() for line in takewhile(lambda line: line.startswith("|"), table)]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home and a store of a test's own."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)


def test_the_main_jobs_run_shows_the_whole_story(server, home):
    from flows.hourly import forecast_flow
    from flows.prefect import in_prefect
    from flows.train_all import train_all
    from schemas.forecasting import ForecastSpec
    from schemas.run import RunSpec

    spec = RunSpec(
        coins="BTC,NOPECOIN",
        timeframes="1h",
        architectures="linear,robust-har",
        preset="smoke",
        source="sim",
        since="2024-09",
        as_of="2025-01-01",
        overrides={"epochs": 1},
    )
    result = in_prefect(train_all, spec)
    assert result["exit"] == 3
    names = {
        "features sim-BTCUSDT-1h",
        "ingest BTC, NOPECOIN 1h",
        "plan BTC, NOPECOIN 1h",
        "train linear 1h",
        "train robust-har 1h",
        "evaluate linear",
        "evaluate robust-har",
        "promote 1h",
        "publish sim",
        "forecast BTC, NOPECOIN 1h",
    }
    page = Page("train-all", names)
    assert page.run.state.name == "Partial"
    assert "prefect.flow-run.Partial" in page.events  # on which an automation may hang
    assert set(page.tasks) >= names
    assert page.run.name == "train-all smoke BTC, NOPECOIN 1h"
    steps = steps_of_the_table()
    *train_all_steps, score = steps
    # and another: forecasts follow the decisions also where nothing is published
    assert page.arrows == {*pairwise(train_all_steps), ("promote", "forecast")}
    (board,) = [artifact for artifact in page.artifacts if artifact["key"] == "train-all"]
    assert f"/runs/{result['run_id']}" in board["data"]
    assert "| 1h | robust-har |" in board["data"]
    lines = page.log("ingested 1 series", "trained linear: 1 model", "1 champion packaged in ", "cost: ")
    for wanted in (
        "ingested 1 series",
        "linear  epoch 1/1  train ",
        "robust-har  fitted without epochs  train ",
        "cost: ",
        "trained linear: 1 model",
        "1 champion packaged in ",
        "FAILED sim NOPE",
    ):
        assert any(line.startswith(wanted) for line in lines), (wanted, lines)
    forecast = in_prefect(
        forecast_flow, ForecastSpec(coins="BTC", timeframes="1h", source="sim", as_of="2025-01-01T02:00")
    )
    assert forecast["exit"] == 0
    page = Page("forecast", {"watch BTC 1h"})
    assert page.run.name == "forecast BTC 1h"
    assert page.arrows == {
        ("champions", "ingest"),
        ("champions", "forecast"),
        ("ingest", "forecast"),
        ("forecast", score),
        (score, "watch"),
    }


def test_a_deployed_night_that_lost_its_store_goes_on_with_the_same_mlflow_run(server, home, monkeypatch):
    import flows.train_all
    from flows.train_all import leave_results, train_all

    started = []

    def away(run, *given):
        started.append(run.run_id)
        if len(started) == 1:
            raise CpbError("the MLflow store cannot be used", code=UNUSABLE)
        leave_results(run, *given)

    monkeypatch.setattr(flows.train_all, "leave_results", away)
    monkeypatch.setattr(flows.train_all, "NIGHT_WAITS_S", (0, 0))
    parameters = {
        "coins": "ETH",
        "timeframes": "1h",
        "architectures": "robust-har",
        "preset": "smoke",
        "source": "sim",
        "since": "2024-09",
        "as_of": "2025-01-01",
    }
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(train_all)
        deployment = client.create_deployment(flow_id, "night")
        made = client.create_flow_run_from_deployment(deployment, parameters=parameters)
        run_flow(train_all, flow_run=made)
        assert client.read_flow_run(made.id).state.name == "Completed"
    assert started == [started[0]] * 2
    assert open_store().client.get_run(started[0]).info.status == "FINISHED"
