"""What `cpb deploy status` prints for people: on stdout, with the runs at work, those that wait, and what is paused."""

from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import uuid4

import pytest
import yaml

from flows.cli.serve import _deployment_row, _print_status
from flows.deploy.services import ROOT, _pause_as, log_file
from flows.deploy.status import Deployment, Status, _is_paused, read_status
from schemas.identity import SeriesId
from tests.tools.forecast_tools import BTC, PEPE, append, rows_at, write_candles

NIGHT = datetime(2026, 1, 2, 6, 30, tzinfo=UTC)


def test_the_table_shows_running_queued_and_paused(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    status = Status(
        4200,
        {"server": 1, "worker": 2},
        5_000_000_000,
        [
            Deployment(
                "train-all/train-all", "Failed", "no space", NIGHT, None, ["train-all BTC 1h"], [], False
            ),
            Deployment("train-all/nightly", None, "", None, NIGHT, [], ["quick-fox"], False),
            Deployment("forecast/hourly", None, "", None, None, [], [], True),
        ],
        ["the last run of train-all/train-all ended Failed"],
    )
    _print_status(status)
    out, err = capsys.readouterr()
    assert err == ""
    rows = {line.split()[0]: line for line in out.splitlines() if "/" in line}
    assert "train-all BTC 1h" in rows["train-all/train-all"]
    assert "Failed 2026-01-02 06:30 UTC" in rows["train-all/train-all"]
    assert "quick-fox" in rows["train-all/nightly"]
    assert rows["train-all/nightly"].rstrip().endswith("2026-01-02 06:30 UTC")
    assert rows["forecast/hourly"].rstrip().endswith("paused")
    assert "WRONG: the last run" in out


def deployment(paused=False, active=True):
    schedules = [SimpleNamespace(id="schedule", active=active)]
    return SimpleNamespace(id="hourly", paused=paused, schedules=schedules, work_queue_id="queue")


@pytest.mark.parametrize(
    ("given", "pool", "queue", "expected"),
    [
        ({}, False, False, False),
        ({"paused": True}, False, False, True),
        ({"active": False}, False, False, True),
        ({}, True, False, True),
        ({}, False, True, True),
    ],
)
def test_a_deployment_is_paused_by_itself_its_schedules_the_pool_or_its_queue(given, pool, queue, expected):
    client = Mock()
    client.read_work_pool.return_value.is_paused = pool
    client.read_work_queue.return_value.is_paused = queue
    assert _is_paused(client, deployment(**given)) is expected


@pytest.mark.parametrize(
    ("earlier", "asked"),
    [
        ({}, []),
        ({"paused": True}, ["pause_deployment"]),
        ({"active": False}, ["update_deployment_schedule"]),
    ],
)
def test_what_deploying_made_active_is_paused_again_in_its_own_kind(earlier, asked):
    client = Mock()
    _pause_as(deployment(**earlier), deployment(), client)
    assert [name for name, *_ in client.method_calls] == asked


def test_stale_series_are_a_problem_for_each_market_with_a_command_for_all(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    monkeypatch.setattr("flows.deploy.status.find", lambda name: None)
    monkeypatch.setattr("flows.deploy.status.last_port", lambda: 4200)
    for series in (BTC, PEPE, SeriesId("um", "BTCUSDT", "1h")):
        write_candles(tmp_path, [1.0] * 4, series)
        append(tmp_path, series, rows_at(0, 1.0, series))

    told = [problem for problem in read_status().problems if "old" in problem]

    assert len(told) == 2
    assert (
        "; so it is with 1 more series; refresh them with `cpb forecast --coins BTCUSDT,PEPEUSDT " in told[0]
    )
    assert "refresh it with `cpb forecast --coins BTCUSDT --timeframes 1h --market um`" in told[1]


def status_of(monkeypatch, tmp_path, *, made, ran, message):
    """The status of a server with one deployment, whose last run ended as Partial; both with these tags."""
    client = Mock()
    flow = SimpleNamespace(id="flow")
    flow.name = "forecast"
    client.read_flows.return_value = [flow]
    one = deployment()
    one.id, one.name, one.flow_id, one.work_pool_name, one.tags = uuid4(), "hourly", "flow", "local-gpu", made
    client.read_deployments.return_value = [one]
    client.read_work_pool.return_value.is_paused = client.read_work_queue.return_value.is_paused = False
    state = SimpleNamespace(message=message, timestamp=NIGHT)
    state.name = "Partial"
    run = SimpleNamespace(state=state, tags=ran)
    client.read_flow_runs.side_effect = lambda flow_run_filter, **_: (
        [run] if "COMPLETED" in {state.value for state in flow_run_filter.state.type.any_} else []
    )
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    monkeypatch.setattr(
        "flows.deploy.status.find", lambda _: Mock(pid=1, environ=lambda: {"CPB_HOME": tmp_path})
    )
    monkeypatch.setattr("flows.deploy.status.last_port", lambda: 4200)
    monkeypatch.setattr("flows.deploy.status.client_of", lambda _: nullcontext(client))
    return read_status()


def test_a_run_that_another_folder_made_is_named_and_not_judged(tmp_path, monkeypatch):
    here, there = f"folder:{ROOT}", f"folder:{tmp_path / 'other'}"
    own = status_of(monkeypatch, tmp_path, made=[here], ran=["auto-scheduled", here], message="1 problem")
    assert own.problems == [
        "the last run of forecast/hourly ended Partial at 2026-01-02 06:30 UTC: 1 problem"
    ]

    taken = status_of(monkeypatch, tmp_path, made=[here], ran=["auto-scheduled", there], message="1 problem")
    assert taken.problems == []
    [row] = map(_deployment_row, taken.deployments)
    assert row["last"] == f"Partial 2026-01-02 06:30 UTC, a run of {tmp_path / 'other'}"

    lost = status_of(monkeypatch, tmp_path, made=[there], ran=[here], message="1 problem")
    assert lost.problems == [
        f"forecast/hourly is a deployment of {tmp_path / 'other'}, which has the same Prefect database; "
        "`cpb deploy down`, then `cpb deploy up`, takes it over"
    ]


def test_a_run_without_a_message_ends_its_sentence_with_where_to_look(tmp_path, monkeypatch):
    [problem] = status_of(monkeypatch, tmp_path, made=[], ran=[], message=None).problems
    assert problem.endswith(f"ended Partial at 2026-01-02 06:30 UTC. See its log: {log_file('worker')}")


def test_every_deployment_has_the_tag_of_its_folder():
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert [one["tags"] for one in deployments] == [["folder:{{ $PWD }}"]] * len(deployments)
