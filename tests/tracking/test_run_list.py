"""The newest runs: what each was asked for, and how it ended."""

import json
from datetime import UTC, datetime
from types import SimpleNamespace

from schemas.fleets import FleetSpec
from schemas.handover import SeriesRecord
from schemas.identity import SeriesId
from schemas.run import RunSpec
from schemas.tuning import TuneSpec
from tasks.storage.process_ids import ProcessId
from tasks.tracking.flow_log import start_flow
from tasks.tracking.flow_runs import newest_flow_runs
from tasks.tracking.runs import finish, start_parent
from tasks.tracking.tags import PROCESS, param_texts, spec_params

LAST_US = int(datetime(2025, 6, 5, 23, tzinfo=UTC).timestamp() * 1e6)


def records(market, *names):
    series = [SeriesId(market, *name.split("-")) for name in names]
    return [
        SeriesRecord(series=s, path="f", digest="d", file_digest="f", rows=9, first_us=0, last_us=LAST_US)
        for s in series
    ]


def fleets(*architectures):
    """Planned fleets, of which the run records what they are."""
    made = [FleetSpec(architecture=name, preset="smoke") for name in architectures]
    return [SimpleNamespace(name=fleet.architecture, spec=fleet) for fleet in made]


def test_each_run_says_what_it_was_and_how_it_ended(store):
    spec = RunSpec(coins="BTC,ETH", timeframes="1h,15m", preset="smoke", source="sim", as_of="2025-06-06")
    of = records("sim", "BTCUSDT-1h", "ETHUSDT-1h", "BTCUSDT-15m")
    run = start_flow(spec, of, fleets("gru", "har"), "train-all")
    finish(run, "partial")
    start_parent("k", {"coins": "all", "timeframes": "1h", "architectures": ["har"]}, name="train")

    old, made = newest_flow_runs(store, 5)

    assert (made.market, made.coins, made.timeframes) == ("sim", ["BTC", "ETH"], ["1h", "15m"])
    assert (made.preset, made.outcome, made.status) == ("smoke", "partial", "FINISHED")
    assert made.architectures == ["gru", "har"]
    assert made.name == "train-all · BTC, ETH · 15m 1h · smoke · 2025-06-06"
    assert (old.coins, old.architectures, old.status) == (["all"], ["har"], "RUNNING")


def test_a_run_without_an_end_that_was_asked_for_says_its_newest_candle(store):
    spec = RunSpec(coins="BTC", timeframes="1h", preset="smoke", source="sim")
    start_flow(spec, records("sim", "BTCUSDT-1h"), fleets("gru"), "train-all")
    start_parent("old", {}, {"as_of": "newest"})
    assert {run.as_of for run in newest_flow_runs(store, 5)} == {"2025-06-05", "newest"}


def test_the_params_of_every_command_show_no_password_of_a_source():
    """Whole, although a quote in it ends the URL for a reader of texts."""
    spec = TuneSpec(
        coins="BTC", timeframes="1h", architectures="gru", source="https://me:pass'word@example.org/k"
    )
    assert "word" not in json.dumps(param_texts(spec_params(spec)))


def test_a_run_whose_process_died_is_listed_as_killed_before_anybody_has_marked_it(store, monkeypatch):
    run = start_parent("k", {})
    store.client.set_tag(run.run_id, PROCESS, str(ProcessId.current()))
    monkeypatch.setattr(ProcessId, "is_alive", lambda self: False)
    (listed,) = newest_flow_runs(store, 5)
    assert (listed.status, "died" in listed.reason) == ("KILLED", True)
    assert store.client.get_run(run.run_id).info.status == "RUNNING"  # a list only reads
