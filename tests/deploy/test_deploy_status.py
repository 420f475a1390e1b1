"""What `cpb deploy status` prints for people: on stdout, with the runs at work, those that wait, and what is paused."""

from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from flows.cli.serve import _print_status
from flows.deploy.services import _pause_as
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
