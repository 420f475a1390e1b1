"""What cannot serve is trained once a week: the rule as a table, and its look at a real registry."""

import json
import sys
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta

import pytest
from promotion_tools import BTC, ETH, SECOND, SPEC, night, only, widened

from flows import cli
from schemas.errors import UsageError
from schemas.run import BacktestSpec, RunSpec
from tasks.promotion.weekly import decide, plan_night
from tasks.tracking.connection import search
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.registry import register
from tasks.tracking.tags import LEFT_OUT
from tasks.tracking.versions import CHALLENGER
from tasks.training.plan import preset_label

TODAY = date(2025, 6, 8)
NAMES = ("robust-har", "har", "har-universal")


@pytest.mark.parametrize(
    ("serving", "days_ago", "idle", "why"),
    [
        # No champion yet: nothing can be told from anything.
        ({"1h": ()}, None, {}, "none of them"),
        ({"1h": ()}, 1, {}, "none of them"),
        # All serve.
        ({"1h": NAMES}, 1, {}, "each serves"),
        # Champions, and no full night yet, or one that is a week old: everything.
        ({"1h": ("har-universal",)}, None, {}, "no such night is on record"),
        ({"1h": ("har-universal",)}, 7, {}, "the last such night was 2025-06-01"),
        ({"1h": ("har-universal",)}, 30, {}, "the last such night was 2025-05-09"),
        # A full night within the week: champions and challengers alone.
        ({"1h": ("har-universal",)}, 6, {"1h": ("robust-har", "har")}, "again on 2025-06-09"),
        ({"1h": ("har-universal",)}, 1, {"1h": ("robust-har", "har")}, "again on 2025-06-14"),
        ({"1h": ("har-universal", "har")}, 1, {"1h": ("robust-har",)}, "robust-har at 1h"),
        # Each timeframe by itself; one without champions is trained whole.
        (
            {"15m": ("har",), "1h": ("har-universal",)},
            1,
            {"15m": ("robust-har", "har-universal"), "1h": ("robust-har", "har")},
            "robust-har, har-universal at 15m; robust-har, har at 1h",
        ),
        ({"15m": (), "1h": ("har",)}, 1, {"1h": ("robust-har", "har-universal")}, "at 1h"),
    ],
)
def test_the_rule(serving, days_ago, idle, why):
    last = None if days_ago is None else TODAY - timedelta(days=days_ago)
    found = decide(NAMES, serving, last, TODAY)
    assert found.idle == idle
    assert why in found.reason
    for timeframe in serving:
        for name in NAMES:
            assert found.trains(name, timeframe) == (name not in idle.get(timeframe, ()))
        assert any(found.trains(name, timeframe) for name in NAMES)


def spec(as_of, **options):
    values = {"as_of": as_of, "architectures": "linear,har", "weekly_challengers": True}
    return RunSpec(**SPEC.model_dump() | values | options)


def idle(as_of, **options):
    asked = spec(as_of, **options)
    return plan_night(asked, asked.scope.series).idle


def asked_for_plan(monkeypatch, capsys, as_of, *words):
    options = {"coins": "BTC,ETH", "timeframes": "1h", "preset": "smoke", "source": "sim", "as-of": as_of}
    argv = [part for name, value in options.items() for part in (f"--{name}", value)]
    argv += ["--architectures", "linear,har", "--set", "epochs=1", "--plan", *words]
    monkeypatch.setattr(sys, "argv", ["cpb", "train-all", *argv])
    with suppress(SystemExit):
        cli.main()
    return capsys.readouterr().out


def test_a_night_trains_what_serves_and_once_a_week_the_rest(trainer, monkeypatch, capsys):
    trainer.after = only("har", widened(3, "validation"))  # no challenger
    assert idle(SECOND) == {}, "no full night is on record"
    options = {"architectures": "linear,har", "weekly_challengers": True}
    full, said = night(SECOND, **options)
    assert full.members == 4
    assert any("as once a week: no such night" in line for line in said)
    assert idle(SECOND) == {}, "repeated on its day, it decides the same"

    third, said = night("2025-01-03", **options)
    assert third.members == 2
    reason = "not trained tonight: har at 1h (no champion or challenger there; last on 2025-01-02, again on 2025-01-09)"
    assert reason in said
    tags = [open_store().client.get_run(one.run_id).data.tags for one in (full, third)]
    assert [one.get(LEFT_OUT) for one in tags] == [None, reason]

    for day in range(3, 9):
        assert idle(f"2025-01-0{day}") == {"1h": ("har",)}
    assert idle("2025-01-09") == idle("2025-01-20") == {}
    assert idle("2025-01-01") == {}, "a replay of an earlier day knows no later night"
    assert idle("2025-01-05", weekly_challengers=False) == {}, "on demand everything is trained"
    assert idle("2025-01-05", coins="BTC") == {}, "that scope had no full night"
    assert idle("2025-01-05", seed=2) == {"1h": ("har",)}
    assert idle("2025-01-05", overrides={"epochs": 2}) == {}, "no champion is of such a recipe"

    shown = asked_for_plan(monkeypatch, capsys, "2025-01-05", "--weekly-challengers")
    assert shown == f"1h: linear on 2 coins\n{reason}\n"
    shown = asked_for_plan(monkeypatch, capsys, "2025-01-05")
    assert shown == (
        "1h: linear, har on 2 coins\nnothing is left out: only --weekly-challengers leaves anything out\n"
    )
    shown = asked_for_plan(monkeypatch, capsys, "2025-01-05", "--json")
    lines = [{"timeframe": "1h", "coins": 2, "architectures": ["linear", "har"]}]
    assert json.loads(shown) == {"trained": lines, "reason": "", "exit": 0}

    made = search(open_store(), f"tags.architecture = 'har' and tags.symbol = '{BTC.symbol}'")[0]
    tags = {"architecture": "har", "recipe": preset_label(spec(SECOND), "har")}
    version = register(BTC, made.info.run_id, tags=tags)
    open_store().client.set_registered_model_alias(BTC.registered, CHALLENGER, version.version)
    assert idle("2025-01-05") == {}, "what is on trial is trained every night"
    asked = spec("2025-01-05")
    assert plan_night(asked, [ETH]).idle == {"1h": ("har",)}, "the trial is of another series"


def test_a_night_that_failed_is_no_full_night(trainer):
    trainer.after = only("har", widened(3, "validation"))
    full, _ = night(SECOND, architectures="linear,har", weekly_challengers=True)
    assert idle("2025-01-03") == {"1h": ("har",)}
    open_store().client.set_terminated(full.run_id, "FAILED")
    assert idle("2025-01-03") == {}


def test_without_a_store_everything_is_planned_and_none_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    shown = asked_for_plan(monkeypatch, capsys, f"{datetime.now(UTC):%Y-%m-%d}", "--weekly-challengers")
    assert shown.splitlines()[0] == "1h: linear, har on 2 coins"
    assert list(tmp_path.iterdir()) == []


def test_a_backtest_leaves_nothing_out():
    with pytest.raises(UsageError) as error:
        BacktestSpec(weekly_challengers=True)
    assert error.value.field == "weekly_challengers"
