"""What Prefect's own page tells of a run: names of task runs, their states, log lines, leaderboard and failures."""

import time

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, LogFilter, TaskRunFilter
from prefect.settings import get_current_settings

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


def test_the_main_jobs_run_shows_the_whole_story(server, tmp_path, monkeypatch):
    from flows.prefect import in_prefect
    from flows.train_all import train_all
    from schemas.run import RunSpec

    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
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
        "train linear",
        "train robust-har",
        "evaluate linear",
        "evaluate robust-har",
    }
    page = Page("train-all", names)
    assert page.run.state.name == "Partial"
    assert "prefect.flow-run.Partial" in page.events  # on which an automation may hang
    assert set(page.tasks) >= names
    lines = page.log(
        "ingested 1 series", "trained linear: 1 member", "1 champion, 10 forecast rows", "cost: "
    )
    for wanted in (
        "ingested 1 series",
        "linear  epoch 1/1  train ",
        "robust-har  fitted without epochs  train ",
        "cost: ",
        "trained linear: 1 member",
        "1 champion, 10 forecast rows",
        "FAILED sim NOPE",
    ):
        assert any(line.startswith(wanted) for line in lines), (wanted, lines)
