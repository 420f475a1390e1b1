import base64
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qsl

import psutil
import pytest

from flows.ops.mlflow_ui import serve_ui
from schemas.errors import CpbError
from tasks.tracking.calls import search
from tasks.tracking.runs import finish, log_metrics, start_fleet, start_parent
from tasks.tracking.views import runs_page, views
from tests.tools.mlflow_interface import interface
from tests.tools.ports import free_port


def test_a_taken_port_names_the_remedy(store):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CpbError) as caught:
            serve_ui(port=taken.getsockname()[1])
    assert (caught.value.code, caught.value.field) == ("port", "port")


def test_without_a_store_it_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    with pytest.raises(CpbError) as caught:
        serve_ui(port=free_port())
    assert caught.value.code == "no-store"


def test_the_experiments_page_is_that_of_its_runs(store):
    page = runs_page("http://127.0.0.1:5000", store)
    assert (
        page
        == f"http://127.0.0.1:5000/#/experiments/{store.experiment_id}/runs?workflowType=machine_learning"
    )


def test_a_store_without_a_scored_run_has_no_views(store):
    assert views(store) == []
    flow = start_parent("flow", {}, {"coins": "BTC"}).run_id
    finish(start_fleet(flow, "gru", "fleet").run_id)
    finish(flow)
    assert views(store) == []


def test_the_first_address_is_the_table_of_the_fleets_once_there_are_some(store, monkeypatch):
    def reported():
        found = []
        monkeypatch.setattr(
            "flows.ops.mlflow_ui.run_server",
            lambda _ui, _app, _host, _port, ready, auth: ready("http://here"),
        )
        serve_ui(ready=found.append)
        return found[0]

    assert reported().runs == runs_page("http://here", store)
    flow = start_parent("flow", {}, {"coins": "BTC"}).run_id
    fleet = start_fleet(flow, "gru", "fleet", tags={"coins": "BTC"}).run_id
    log_metrics(fleet, {"crps_skill_percent_1h": 1.0})
    finish(fleet)
    finish(flow)
    address = reported()
    page, query = address.runs.split("?")
    asked = dict(parse_qsl(query))
    assert page == runs_page("http://here", store).split("?")[0]
    assert "compareRunsMode" not in asked
    assert [run.info.run_id for run in search(store, asked["searchFilter"])] == [fleet]
    assert (asked["orderByKey"], asked["orderByAsc"]) == ("metrics.`crps_skill_percent_1h`", "false")
    assert all("compareRunsMode=CHART" in link for link in address.views.values())


def test_views_of_real_candles_come_first(store):
    """A later run on simulated candles, and one that has not ended, are not the newest run."""
    for market, ends in (("sim", True), ("spot", True), ("sim", True), ("spot", False)):
        key = f"{len(list(search(store)))}"
        flow = start_parent(key, {}, {"coins": "BTC", "market": market}, name=f"a {market} run").run_id
        for architecture in ("gru", "har"):
            fleet = start_fleet(flow, architecture, f"{key} {architecture}", tags={"coins": "BTC"}).run_id
            log_metrics(fleet, {"crps_skill_percent_15m": 2.0, "crps_skill_percent_1h": 1.0})
            finish(fleet)
        if ends:
            finish(flow)
    architectures, alike = views(store)
    assert architectures.about == "the architectures of a spot run"
    assert architectures.sort_by == alike.sort_by == "crps_skill_percent_1h"
    assert {run.data.tags["market"] for run in search(store, alike.filter)} == {"spot"}
    assert len(list(search(store, alike.filter))) == 4  # of the run that has not ended, too


def test_two_presets_of_one_architecture_are_several_fleets(store):
    for number, presets in enumerate((("default", "seed-gru"), ("default",))):
        flow = start_parent(f"{number}", {}, {"coins": "BTC"}, name=f"{len(presets)} presets").run_id
        for preset in presets:
            tags = {"coins": "BTC", "preset": preset}
            fleet = start_fleet(flow, "gru", f"{number} {preset}", tags=tags).run_id
            log_metrics(fleet, {"crps_skill_percent_1h": 1.0})
            finish(fleet)
        finish(flow)
    assert [view.about for view in views(store)] == [
        "the architectures of 2 presets",
        "all runs of gru on BTC",
    ]


def command_lines(pid):
    """What `ps` shows of a process and its descendants."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return [Path(f"/proc/{p.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for p in processes]


def ask(url, password="", data=None):
    """Ask as the user cpb."""
    basic = base64.b64encode(f"cpb:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {basic}", "Content-Type": "application/json"} if password else {}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read()


@pytest.mark.slow
def test_the_interface_serves_and_ctrl_c_ends_it(store, tmp_path):
    """Other signals: tests/ops/test_listeners.py."""
    port = free_port()
    run = store.client.create_run(store.experiment_id)
    (tmp_path / "forecast.png").write_bytes(b"a picture")
    store.client.log_artifact(run.info.run_id, str(tmp_path / "forecast.png"))
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # as a shell's background command
    with interface(tmp_path, port, ignored) as (process, password):
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(url)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(url, "guess")
        assert b"MLflow" in ask(url, password)[1]
        (line,) = command_lines(process.pid)  # it is the server itself
        assert "sqlite" not in line  # nor, hence, a database's password
        assert password not in line
        experiment = f"{url}/api/2.0/mlflow/experiments/get-by-name?experiment_name=cpb"
        assert ask(experiment, password)[0] == 200  # it is this store all the same
        picture = f"{url}/get-artifact?run_id={run.info.run_id}&path=forecast.png"
        assert ask(picture, password)[1] == b"a picture"
        made = ask(f"{url}/api/2.0/mlflow/runs/create", password, b'{"experiment_id": "1"}')[1]
        assert store.artifacts.encode() in made
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
