"""What commands hand to the functions that do the work."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from flows.run import Run
from schemas.backtesting import BacktestSpec
from schemas.failure import Failure
from schemas.forecasting import ForecastSpec
from schemas.handover import Publication
from schemas.run import RunSpec


def test_publish_without_a_repository_says_what_was_written_and_what_publishes_it(
    monkeypatch, cpb_here, tmp_path
):
    monkeypatch.setenv("CPB_HOME", str(tmp_path))
    monkeypatch.setattr("tasks.steps.publish", lambda *given, private: Publication(place="data/hub"))
    assert (
        cpb_here("publish")[2]
        == "written to data/hub; `cpb publish --market spot --repo USER/NAME` publishes it\n"
    )


@pytest.fixture
def cpb(monkeypatch, cpb_here, tmp_path):
    """Run a command in this process; give its exit code and the last line of stdout as JSON."""
    monkeypatch.setenv("CPB_HOME", str(tmp_path))

    def run(*words):
        code, out, _ = cpb_here(*words, "--json")
        return code, json.loads(out.splitlines()[-1])

    return run


def test_serve_allows_the_hosts_of_the_option_or_else_of_the_environment(cpb, monkeypatch):
    monkeypatch.setenv("CPB_ALLOWED_HOSTS", " a.local , b.local,")
    seen = []

    def serve(listener, _make_app, host, port, ready, *, hosts):
        seen.append((listener.name, hosts))
        ready(f"http://{host}:{port}")

    monkeypatch.setattr("flows.ops.serve.run_server", serve)
    assert cpb("serve") == (0, {"url": "http://127.0.0.1:8000", "docs": "http://127.0.0.1:8000/docs"})
    cpb("serve", "--allowed-hosts", "box.local,10.0.0.5")
    assert seen == [("page", ["a.local", "b.local"]), ("page", ["box.local", "10.0.0.5"])]


@pytest.mark.parametrize(
    ("words", "market", "repo", "private"),
    [
        ([], "spot", None, False),
        (["--repo", "alice/models", "--market", "um"], "um", "alice/models", False),
        (["--repo", "alice/models", "--private"], "spot", "alice/models", True),
        (["--repo", "alice/models", "--dry-run"], "spot", None, False),
    ],
)
def test_publish_takes_one_market(cpb, monkeypatch, words, market, repo, private):
    seen = []
    monkeypatch.setattr("tasks.steps.check_publishable", lambda _spec: None)
    monkeypatch.setattr(
        "tasks.steps.publish",
        lambda *given, private: seen.append((*given, private)) or Publication(place="there"),
    )
    code, told = cpb("publish", *words)
    assert (code, seen) == (0, [(market, repo, private)])
    assert (told["published"], told["dry_run"], told["exit"]) == ("there", repo is None, 0)


@pytest.mark.parametrize(
    ("words", "asked", "published", "dry_run"),
    [
        (["--out", "site"], {"out": Path("site")}, "page", True),
        (["--space", "alice/prices"], {"space": "alice/prices"}, "page", False),
        (["--space", "a/b", "--private"], {"space": "a/b", "private": True}, "page", False),
        (
            ["--out", "site", "--space", "a/b", "--repo", "a/c", "--market", "um"],
            {"out": Path("site"), "space": "a/b"},
            "models and page",
            False,
        ),
    ],
)
def test_publish_writes_and_sends_the_page_it_is_asked_for(
    cpb, monkeypatch, words, asked, published, dry_run
):
    failure = Failure(step="publish", reason="it is damaged", code="damaged")
    pages = []

    def publish_page(market, **given):
        pages.append((market, given))
        return Publication(place="page", failures=(failure,))

    monkeypatch.setattr("flows.page.publish_page", publish_page)
    monkeypatch.setattr("tasks.steps.publish", lambda *_, private: Publication(place="models"))
    code, told = cpb("publish", *words)
    assert pages == [
        ("um" if "um" in words else "spot", {"out": None, "space": None, "private": False} | asked)
    ]
    assert (code, told["exit"], len(told["failures"])) == (3, 3, 1)
    assert (told["published"], told["dry_run"]) == (published, dry_run)


def test_publish_says_how_a_folder_is_looked_at_and_refuses_a_dry_run_of_a_page(cpb, cpb_here, monkeypatch):
    monkeypatch.setattr("flows.page.publish_page", lambda *_, **__: Publication(place="my site (new)"))
    assert cpb_here("publish", "--out", "my site")[2] == (
        "page: my site (new); look at it with `python3 -m http.server -b 127.0.0.1 -d 'my site'`\n"
    )
    for option in (("--out", "site"), ("--space", "a/b")):
        assert cpb("publish", "--dry-run", *option)[1].items() >= {"exit": 2, "field": "dry_run"}.items()


def test_publish_refuses_a_persons_folder_before_it_reads_or_sends_anything(cpb, monkeypatch, tmp_path):
    begun = []
    monkeypatch.setattr("flows.page.publish_page", lambda *_, **__: begun.append("page"))
    monkeypatch.setattr("tasks.steps.publish", lambda *_, **__: begun.append("models"))
    (tmp_path / "thesis.txt").write_text("years")
    for out, said in ((tmp_path, "neither empty nor"), (tmp_path / "thesis.txt", "is a file")):
        code, told = cpb("publish", "--repo", "alice/models", "--out", str(out))
        assert (code, told["code"], told["field"]) == (1, "foreign-folder", str(out))
        assert said in told["error"]
    assert begun == []


def test_forecast_takes_the_scope(cpb, monkeypatch):
    seen = []

    def run_forecast(spec, report):
        seen.append(spec)
        return {"exit": 3}

    monkeypatch.setattr("flows.forecast.run_forecast", run_forecast)
    code, _ = cpb("forecast", "--coins", "BTC", "--market", "um", "--as-of", "2024-01-02T03:04:05", "--tail")
    assert code == 3
    assert seen == [ForecastSpec(coins="BTC", market="um", as_of="2024-01-02T03:04:05", tail=True)]


def test_the_board_takes_markets_coins_and_timeframes(cpb, monkeypatch):
    seen = []
    module = import_module("tasks.tracking.leaderboard")
    monkeypatch.setattr(module, "read_board", lambda run, **options: seen.append((run, options)) or [])
    cpb("leaderboard")
    cpb("leaderboard", "--run", "r1")
    cpb("leaderboard", "--market", "um", "--coins", "btc,eth", "--timeframes", "1h")
    nothing = {"market": None, "symbols": None, "timeframes": None}
    some = {"market": "um", "symbols": {"BTCUSDT", "ETHUSDT"}, "timeframes": ["1h"]}
    assert seen == [(None, nothing), ("r1", nothing), (None, some)]


@pytest.mark.parametrize(
    ("words", "code", "field"),
    [
        (["--market", "mars"], "literal-error", "market"),
        (["--coins", ","], "coins", "coins"),
        (["--timeframes", "7h"], "timeframes", "timeframes"),
        (["--run", "r1", "--coins", "BTC"], "run", "coins"),
    ],
)
def test_a_board_that_cannot_be_is_one_sentence(cpb, words, code, field):
    exit_code, told = cpb("leaderboard", *words)
    assert (exit_code, told["code"], told["field"]) == (2, code, field)


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize(
    ("words", "module", "spec"),
    [
        (["demo"], "train_all", RunSpec(coins="BTC,ETH", preset="smoke", source="sim")),
        (
            ["train-all", "--preset", "smoke", "--set", "dtype=float64", "--set", "epochs=5"],
            "train_all",
            RunSpec(preset="smoke", dtype="float64", overrides={"epochs": 5}),
        ),
        (["backtest", "--folds", "2"], "backtest", BacktestSpec(folds=2)),
    ],
)
def test_a_command_runs_directly_or_on_the_server_in_use_and_demo_always_directly(
    cpb, monkeypatch, words, module, spec, server
):
    seen = []

    def directly(spec, report):
        seen.append(("directly", spec))
        return Run("train-all", report, run_id="r1") if module == "train_all" else {"run_id": "r1", "exit": 0}

    def in_prefect(_flow, spec):
        seen.append(("on the server", spec))
        return {"run_id": "r2", "exit": 3}

    monkeypatch.setattr(f"flows.{module}.run_{module}", directly)
    monkeypatch.setattr("flows.prefect.in_prefect", in_prefect)
    monkeypatch.setattr("flows.prefect.server_in_use", lambda: server)
    code, told = cpb(*words)
    if server and words != ["demo"]:
        assert (code, told["run_id"], seen) == (3, "r2", [("on the server", spec)])
    else:
        assert (code, told["run_id"], seen) == (0, "r1", [("directly", spec)])
