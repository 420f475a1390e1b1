"""`cpb leaderboard --list`: what each run was asked for, and how it ended."""

import sys
from datetime import UTC, datetime

import pytest
from test_runs import member

from flows import cli
from flows.training import start_run
from schemas.handover import SeriesRecord
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.storage.processes import ProcessId
from tasks.tracking.leaderboard import leaderboard
from tasks.tracking.records import run_name
from tasks.tracking.run_list import RUN_COLUMNS, list_runs, newest_flow_runs
from tasks.tracking.runs import finish, log_members, log_metrics, start_fleet, start_parent
from tasks.tracking.tags import PROCESS

LAST_US = int(datetime(2025, 6, 5, 23, tzinfo=UTC).timestamp() * 1e6)


def records(market, *names):
    series = [SeriesId(market, *name.split("-")) for name in names]
    return [
        SeriesRecord(series=s, path="f", digest="d", file_digest="f", rows=9, first_us=0, last_us=LAST_US)
        for s in series
    ]


def test_each_run_says_what_it_was_and_how_it_ended(store):
    spec = RunSpec(coins="BTC,ETH", timeframes="1h,15m", preset="smoke", source="sim", as_of="2025-06-06")
    run = start_run(spec, records("sim", "BTCUSDT-1h", "ETHUSDT-1h", "BTCUSDT-15m"), "train-all")
    log_metrics(run.run_id, {"members": 10, "failed": 1})
    finish(run.run_id, "partial")
    start_parent("k", {"coins": "all", "timeframes": "1h", "architectures": ["har"]}, name="train")

    old, made = list_runs()

    assert list(made) == list(RUN_COLUMNS)
    assert made | {"started_at": "", "ended_at": ""} == {
        "id": run.run_id, "started_at": "", "ended_at": "", "command": "train-all", "market": "sim",
        "source": "simulated", "coins": "BTC, ETH", "timeframes": "15m 1h",
        "architectures": "transformer gru lstm linear har", "preset": "smoke",
        "as_of": "2025-06-06T00:00:00+00:00", "candles_until": "2025-06-06",
        "members": 10, "failed": 1, "outcome": "partial", "reason": None,
    }  # fmt: skip
    assert (old["command"], old["coins"], old["architectures"], old["outcome"]) == (
        "train",
        "all",
        "har",
        "running",
    )
    (name,) = {store.client.get_run(made["id"]).info.run_name}
    assert name == "train-all · BTC, ETH · 15m 1h · smoke · 2025-06-06"


def test_the_list_and_the_name_say_the_same_day_where_no_end_was_asked_for(store):
    spec = RunSpec(coins="BTC", timeframes="1h", preset="smoke", source="sim")
    run = start_run(spec, records("sim", "BTCUSDT-1h"), "train-all")
    start_parent("old", {}, {"as_of": "newest"})
    found = {row["id"]: row["candles_until"] for row in list_runs()}
    assert found.pop(run.run_id) == "2025-06-05"
    assert list(found.values()) == [None]
    assert {one.as_of for one in newest_flow_runs(store, 5)} == {"2025-06-05", "newest"}


def test_the_list_and_the_board_name_one_as_of_for_a_run(store):
    for key, architecture, as_of in (
        ("now", "har", {"as_of": "newest", "candles_until": "2025-06-05"}),
        ("asked", "gru", {"as_of": "2024-06-06T00:00:00+00:00", "candles_until": "2024-06-06"}),
    ):
        parent = start_parent(key, {}, as_of)
        fleet = start_fleet(parent.run_id, architecture, key)
        log_members(fleet.run_id, [member(key=key, architecture=architecture)])
        finish(parent.run_id)
    board = {row["flow_run"]: row["as_of"] for row in leaderboard()}
    assert len(board) == 2
    assert {row["id"]: row["as_of"] for row in list_runs()} == board


def test_a_run_whose_process_died_is_listed_as_killed_before_anybody_has_marked_it(store, monkeypatch):
    run = start_parent("k", {})
    store.client.set_tag(run.run_id, PROCESS, str(ProcessId.current()))
    assert list_runs()[0]["outcome"] == "running"
    monkeypatch.setattr(ProcessId, "is_alive", lambda self: False)
    (found,) = list_runs()
    assert (found["outcome"], "died" in found["reason"]) == ("killed", True)
    assert store.client.get_run(run.run_id).info.status == "RUNNING"  # a list only reads


def test_the_name_ends_with_the_last_candle_where_no_end_was_asked_for():
    spec = RunSpec(coins="BTC", timeframes="1h", preset="default", architectures="har")
    assert run_name("har", spec, records("spot", "BTCUSDT-1h")) == "har · BTC · 1h · default · 2025-06-05"
    coins = [f"C{i}USDT-1h" for i in range(20)]
    timed = RunSpec(coins="BTC", timeframes="1h", as_of=(datetime(2025, 6, 6, 6)).isoformat())
    assert (
        run_name("har", timed, records("spot", *coins)) == "har · 20 coins · 1h · default · 2025-06-06T06:00"
    )


@pytest.mark.parametrize(("words", "code"), [(["--list"], 0), (["--list", "--market", "um"], 2)])
def test_the_command_lists_runs_and_takes_no_filter_then(store, capsys, monkeypatch, words, code):
    finish(start_parent("k", {}).run_id)
    monkeypatch.setattr(sys, "argv", ["cpb", "leaderboard", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code
    shown = capsys.readouterr()
    assert ("train-all" in shown.out) == (code == 0)
