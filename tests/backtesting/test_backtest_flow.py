"""The whole backtest in one process: planned, trained by the trainer's own code, judged and written."""

import json

import polars as pl
import pytest

import flows.backtest
from flows.backtest import run_backtest
from schemas.backtesting import BacktestSpec
from schemas.errors import CpbError
from tasks.backtesting import audit
from tasks.storage.records import file_digest
from tasks.training.shard import prepare, read_result
from tasks.training.shard_training import train_job
from tests.tools.in_process import serve_here
from tests.tools.known_markets import TINY, A, B, busy_hours

KLINES = {A: busy_hours(4000, 0), B: busy_hours(4000, 1)}


def in_process(spec, engine, job, progress):
    """Train in this process, without a trainer process and its slot."""
    folder = prepare(spec.scope.root, job)
    if not (folder / "result.json").exists():
        train_job(folder)
    return read_result(folder)


def broken(spec, engine, job, progress):
    """Train by a trainer that dies with every fleet."""
    raise RuntimeError("killed")


@pytest.fixture
def asked(home, records, monkeypatch, tmp_path):
    """Return what runs a backtest of the records: (the step train, options) -> (answer, lines for people).

    processes: judge in processes of their own, as a user's backtest does.
    """
    monkeypatch.setenv("CPB_HOME", str(home))
    monkeypatch.setattr(audit, "read_klines", lambda home, series, since, as_of: KLINES[series])

    def run(train, series=records, *, processes=False, **options):
        if not processes:  # which start in two seconds each
            serve_here(monkeypatch)
        monkeypatch.setattr(flows.backtest, "ingest_scope", lambda *_: ())
        monkeypatch.setattr(flows.backtest, "write_columns", lambda *_: series)
        monkeypatch.setattr(flows.backtest, "train", train)
        said = []
        spec = BacktestSpec(
            coins="AUSDT,BUSDT,TINYUSDT",
            folds=2,
            preset="smoke",
            out=str(tmp_path / "out"),
            device="cpu",
            **{"architectures": "har,har-universal", **options},
        )
        return run_backtest(spec, said.append), said

    return run


def test_everything_promised_is_written_and_a_series_without_folds_is_named(asked, tmp_path):
    answer, said = asked(in_process, processes=True)
    out = tmp_path / "out"
    assert set(answer["pooled"]) == {"random-walk", "robust-har", "har", "har-universal"}
    assert [(f["symbol"], f["step"]) for f in answer["failures"]] == [("TINYUSDT", "plan")]
    assert answer["exit"] == 3
    assert len(answer["folds_incomplete"]) == 2
    assert any(TINY.symbol in line and line.startswith("FAILED") for line in said)
    for name in ("report.html", "result.json"):
        assert (out / name).stat().st_size > 100
    board = pl.read_csv(out / "leaderboard.csv")
    assert set(board["architecture"]) == set(answer["pooled"])
    members = pl.read_csv(out / "members.csv")
    assert members.height == len(answer["members"])
    assert members["crps_ratio"].dtype == pl.Float64
    written = json.loads((out / "result.json").read_text())
    assert written["config"]["folds"] == 2
    assert written["members"] == answer["members"]
    for name in ("har", "har-universal"):
        rows = pl.read_parquet(out / f"forecasts/model={name}/interval=1h/symbol=AUSDT/*.parquet")
        assert set(rows["fold"]) == {1, 2}
        assert rows.height == answer["members"][f"{name}/AUSDT/1h"]["n"] * 10
    assert not (out / "forecasts" / "model=random-walk").exists()


def test_a_repeated_backtest_finds_its_fleets_and_gives_the_same_figures(asked):
    first, _ = asked(in_process, architectures="har")
    again, _ = asked(in_process, architectures="har")
    assert again == first


def test_forecasts_that_no_repetition_reads_are_deleted_with_the_report(asked, home):
    first, _ = asked(in_process)
    kept = {path.name for path in home.glob("fleets/*/members/*/*.npz")}
    again, _ = asked(in_process)
    assert kept == {"test.npz"}
    assert again["pooled"] == first["pooled"]


def test_a_training_that_ends_in_an_error_costs_its_own_models_only(asked):
    answer, said = asked(broken, architectures="har")
    assert set(answer["pooled"]) == {"random-walk", "robust-har"}
    failed = [f for f in answer["failures"] if f["architecture"] == "har"]
    assert {(f["symbol"], f["step"], f["reason"]) for f in failed} == {
        ("AUSDT", "train", "fold 1: killed"),
        ("BUSDT", "train", "fold 1: killed"),
    }
    assert answer["exit"] == 3
    assert any("har/AUSDT/1h (smoke) in train: fold 1: killed" in line for line in said)


def test_a_causal_pipeline_passes_the_look_ahead_check(asked, records):
    answer, said = asked(in_process, records[:2], architectures="har", check_lookahead=True)
    assert answer["lookahead"].startswith("no look-ahead found: columns and windows of 2 coins, training")
    assert "har trained on shuffled features: ratio" in answer["lookahead"]
    assert answer["exit"] == 0
    assert answer["lookahead"] in said


def test_a_stored_column_that_knows_the_next_candle_is_found(asked, home, records):
    record = records[0]
    frame = pl.read_parquet(home / record.path).with_columns(
        pl.col("log_range_mean_1").shift(-1, fill_value=0.0)
    )
    frame.write_parquet(home / "leaky.parquet")
    leaky = record.model_copy(
        update={"path": "leaky.parquet", "file_digest": file_digest(home / "leaky.parquet")}
    )
    answer, _ = asked(in_process, [leaky], architectures="robust-har", check_lookahead=True)
    assert "LOOK-AHEAD: AUSDT 1h: log_range_mean_1 differ" in answer["lookahead"]
    assert answer["exit"] == 3


def test_a_series_that_cannot_be_checked_for_look_ahead_is_named(asked, records, monkeypatch):
    def klines(home, series, since, as_of):
        if series == A:
            raise CpbError("no klines")
        return KLINES[series]

    monkeypatch.setattr(audit, "read_klines", klines)
    answer, _ = asked(in_process, records[:2], architectures="robust-har", check_lookahead=True)
    assert answer["lookahead"].startswith("no look-ahead found: columns and windows of 1 coin, training")
    assert "AUSDT 1h could not be checked: no klines" in answer["lookahead"]
    assert [(f["symbol"], f["step"]) for f in answer["failures"]] == [("AUSDT", "evaluate")]
    assert answer["exit"] == 3


def test_no_series_at_all_is_an_error_with_the_reasons(asked, records):
    with pytest.raises(CpbError) as failed:
        asked(in_process, records[2:])
    assert failed.value.code in ("no-series", "history")


def test_the_flow_takes_every_option_of_the_specification():
    parameters = flows.backtest.backtest.parameters.properties
    assert set(parameters) == set(BacktestSpec.model_fields)
    assert parameters["folds"]["default"] == 4
