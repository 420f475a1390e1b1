"""The backtest on known trainers: rows, folds, refits, failures, and what is written."""

from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from test_baselines import H, busy_hours

from flows.cli_train import config_of
from flows.fleet_trainer import FleetTrainer
from schemas.errors import MemberError
from schemas.records import SeriesRecord
from tasks.judging import backtest, baselines, pictures, report, rows, table
from tasks.judging.backtest import baseline_trainer, load_folds, run_backtest
from tasks.judging.robust_har import robust_har
from tasks.signals.columns import feature_frame
from tasks.signals.splits import folds

ROWS = 4000


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Feature files of two coins, and of one with 50 rows."""
    found = []
    for seed, symbol, n in ((0, "AUSDT", ROWS), (1, "BUSDT", ROWS), (2, "TINYUSDT", 50)):
        data = busy_hours(ROWS, seed).tail(n)
        path = tmp_path_factory.mktemp(symbol) / "x.parquet"
        feature_frame(data, "1h").write_parquet(path)
        us = data["open_time"].cast(pl.Int64)
        found.append(
            SeriesRecord(
                symbol=symbol,
                timeframe="1h",
                path=path,
                digest=symbol,
                rows=n,
                first_us=us[0],
                last_us=us[-1],
            )
        )
    return found


@pytest.fixture(scope="module")
def loaded(records):
    return load_folds(records, {"1h": folds(records, 2)}, [])


@pytest.fixture(scope="module")
def result(loaded):
    trainers = {"reference": baseline_trainer(baselines.ewma_walk), "har": baseline_trainer(robust_har)}
    return run_backtest(loaded, trainers)


def test_a_coin_too_young_for_any_fold_is_named_and_the_others_go_on(records):
    failures = []
    loaded = load_folds(records, {"1h": folds(records, 2)}, failures)
    assert [(o.fold, o.series.symbol) for o in loaded] == [(f, s) for f in (0, 1) for s in ("AUSDT", "BUSDT")]
    assert [f.symbol for f in failures] == ["TINYUSDT"]
    assert "only 50 rows" in failures[0].reason


def test_members_are_judged_over_all_folds(result, loaded):
    assert {(m.architecture, m.symbol) for m in result.members} == {
        (a, s) for a in ("reference", "har") for s in ("AUSDT", "BUSDT")
    }
    expected = sum(len(o.series.origins("test", 1, H)) for o in loaded if o.series.symbol == "AUSDT")
    assert result.members[0].metrics["test_n"] == expected
    assert (np.diff(result.members[0].times) > 0).all()
    assert all("test_p_holm" in m.metrics for m in result.members)


def test_the_reference_scores_one_and_the_hours_score_less(result):
    pools = {p.architecture: p for p in result.pools}
    assert pools["reference"].metrics["test_crps_ratio"] == pytest.approx(1)
    assert pools["har"].metrics["test_crps_ratio_high"] < 1
    assert pools["har"].verdict.startswith("better than")


@pytest.mark.parametrize("refit", [True, False])
def test_mase_of_each_fold_is_scaled_by_the_training_span_it_was_learnt_on(loaded, refit):
    found = run_backtest(loaded, {"reference": baseline_trainer(baselines.ewma_walk)}, refit=refit)
    own = [o.series for o in loaded if o.series.symbol == "AUSDT"]
    scaled = []
    for one, learnt in zip(own, own if refit else [own[0], own[0]], strict=True):
        close = np.log(one.prices[:, 3])
        origins = one.origins("test", 1, H)
        known = baselines.reference(learnt, learnt.origins("train", 1, H), origins, H)
        start, end = learnt.spans["train"]
        scale = np.abs(np.diff(close[start:end])).mean()
        scaled += [
            np.abs(close[i + 1 : i + 1 + H] - close[i] - q[:, 9]) / scale
            for i, q in zip(origins, known, strict=True)
        ]
    member = next(m for m in found.members if m.symbol == "AUSDT")
    assert member.metrics["test_mase"] == pytest.approx(np.mean(scaled), rel=1e-9)


def test_each_fold_learns_from_its_own_past_alone(loaded):
    seen = []

    def spy(members):
        seen.append([(o.fold, o.series.symbol, o.series.spans["train"]) for o in members])
        return baseline_trainer(baselines.ewma_walk)(members)

    run_backtest(loaded, {"x": spy})
    assert seen == [[(o.fold, o.series.symbol, o.series.spans["train"]) for o in loaded]]
    for one in loaded:
        assert one.series.spans["train"][1] < one.series.spans["test"][0]


def test_no_refit_trains_once_on_the_first_fold(loaded):
    seen = []

    def spy(members):
        seen.append([(o.fold, o.series.symbol) for o in members])
        return baseline_trainer(robust_har)(members)

    once = run_backtest(loaded, {"x": spy}, refit=False)
    assert seen == [[(0, "AUSDT"), (0, "BUSDT")]]
    again = run_backtest(loaded, {"x": baseline_trainer(robust_har)})
    assert once.members[0].metrics["test_n"] == again.members[0].metrics["test_n"]
    assert once.members[0].metrics["test_crps"] != again.members[0].metrics["test_crps"]


def test_one_broken_member_stops_no_other(loaded):
    def broken(members):
        good = baseline_trainer(baselines.ewma_walk)(members)

        def forecast(series, split):
            found = good(series, split)
            for one, forecasts in zip(series, found, strict=True):
                if one.symbol == "AUSDT":
                    forecasts.quantiles[0] = np.nan
            return found

        return forecast

    result = run_backtest(loaded, {"x": broken})
    assert [m.symbol for m in result.members] == ["BUSDT"]
    assert [(f.symbol, f.architecture) for f in result.failures] == [("AUSDT", "x")]
    assert "not finite" in result.failures[0].reason


def test_a_member_that_could_not_be_trained_is_named_with_its_reason(loaded):
    def choosy(members):
        good = baseline_trainer(baselines.ewma_walk)(members)

        def forecast(series, split):
            found = good(series, split)
            unable = [
                (o.fold, o.series.symbol) in ((0, "AUSDT"), (1, "AUSDT"), (0, "BUSDT")) for o in members
            ]
            return [MemberError("too short") if no else f for no, f in zip(unable, found, strict=True)]

        return forecast

    result = run_backtest(loaded, {"x": choosy})
    assert [m.symbol for m in result.members] == ["BUSDT"]  # by its second fold
    assert [(f.symbol, f.reason) for f in result.failures] == [("AUSDT", "too short")]


def test_a_series_without_a_window_of_the_architecture_stops_no_other(loaded):
    config = config_of("AUSDT,BUSDT", "1h", "gru", "smoke", "sim", None, None)
    first = [one for one in loaded if one.fold == 0]
    rows = np.arange(len(first[0].series.segments))
    holed = replace(first[0].series, segments=rows // 35)  # enough for 1 + 10 candles, not for 30 + 10
    forecaster = FleetTrainer("gru", config)([replace(first[0], series=holed), first[1]])
    bad, good = forecaster([holed, first[1].series], "test")
    assert "no window of 30 + 10 candles" in str(bad)
    assert len(good.origins) > 100


def test_a_fold_without_origins_is_left_out(loaded, tmp_path):
    def empty(members):
        def forecast(series, split):
            nothing = SimpleNamespace(origins=np.empty(0, int), quantiles=np.empty((0, H, 19)), candle=None)
            return [nothing for _ in series]

        return forecast

    told = []
    result = run_backtest(loaded, {"x": empty}, keep=lambda *what: told.append(what))
    assert not result.members
    assert not told
    assert {f.reason for f in result.failures} == {"no test origin to judge; the test span is too short"}


def test_json_has_the_documented_keys(result):
    found = backtest.as_json(result)
    pooled = found["pooled"]["har"]["1h"]
    for name in (
        "crps_ratio",
        "p",
        "mae_ratio",
        "directional_accuracy",
        "coverage_80",
        "tail_pinball_ratio",
        "n",
    ):
        assert name in pooled
        assert name in found["members"]["har/AUSDT/1h"]
    low, high = pooled["interval"]
    assert low < pooled["crps_ratio"] < high


def test_rows_keep_the_forecast_contract_and_small_prices(loaded, tmp_path):
    one = loaded[0].series
    origins = one.origins("test", 1, H)[:7]
    quantiles = baselines.reference(one, one.origins("train", 1, H), origins, H)
    candle = np.zeros((7, H, 4))
    frame = rows.backtest_rows(one, origins, quantiles, candle, model="har", fold=2)
    assert frame.height == 7 * H
    first = frame.row(12, named=True)
    row = origins[1]
    assert first["step"] == 3
    assert first["issued_at"] == datetime.fromtimestamp(one.times[row] / 1e6 + 3600, UTC)
    assert (first["target_time"] - first["issued_at"]).total_seconds() == 3 * 3600
    assert first["realised_close"] == one.prices[row + 3, 3]
    assert first["q50"] == pytest.approx(one.prices[row, 3] * np.exp(quantiles[1, 2, 9]))
    assert first["q50_open"] == first["last_close"] == one.prices[row, 3]
    path = rows.write_rows(tmp_path, frame)
    assert path.relative_to(tmp_path).as_posix() == "model=har/interval=1h/symbol=AUSDT/fold-2.parquet"
    assert pl.read_parquet(path).equals(frame)


class Pictures(HTMLParser):
    """Counts pictures and collects what a page would fetch."""

    def __init__(self):
        super().__init__()
        self.inlined, self.fetched = 0, []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("src", "href"):
                if value.startswith("data:image/png;base64,"):
                    self.inlined += 1
                else:
                    self.fetched.append(value)


def test_the_report_is_one_file_that_fetches_nothing(result, tmp_path):
    report.write_report(tmp_path / "r.html", "A <title>", result.pools, result.members, notes=["A & B"])
    text = (tmp_path / "r.html").read_text()
    page = Pictures()
    page.feed(text)
    assert (page.inlined, page.fetched) == (4, [])
    assert "A &lt;title&gt;" in text
    assert "A &amp; B" in text
    assert "<b>har 1h</b> is better than the random walk" in text


def test_the_table_is_ordered_and_round_trips_as_csv(result):
    board = table.leaderboard_rows(result.pools)
    assert [r["architecture"] for r in board] == ["har", "reference"]
    assert set(table.COLUMNS) == set(board[0])
    lines = table.as_csv(board).splitlines()
    assert lines[0] == ",".join(table.COLUMNS)
    assert len(lines) == 3
    assert "har" in table.as_text(board)
    assert table.as_text([]) == "nothing was judged"
    assert len(table.member_rows(result.members)) == 4


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")


def test_pictures_are_drawn_for_long_and_empty_input(loaded, tmp_path):
    one = loaded[-1].series
    origins = one.origins("test", 1, H)
    quantiles = baselines.reference(one, one.origins("train", 1, H), origins, H)
    pictures.forecast_png(tmp_path / "f.png", one, SimpleNamespace(origins=origins, quantiles=quantiles))
    early = SimpleNamespace(origins=np.array([5]), quantiles=quantiles[:1])
    pictures.forecast_png(tmp_path / "e.png", one, early)
    pictures.loss_png(tmp_path / "l.png", [{"train_loss": 1.0, "val_loss": 1.1}, {"train_loss": 0.9}])
    pictures.loss_png(tmp_path / "n.png", [])
    assert all(is_png(p) for p in tmp_path.iterdir())
    blank = pictures.heat_figure(["A"], ["x"], np.full((1, 1), np.nan))
    assert pictures.png(blank).startswith(b"\x89PNG")


def test_the_loss_of_a_single_epoch_is_a_dot_one_can_see():
    shown = [
        line.get_marker()
        for line in pictures.loss_figure([{"train_loss": 1.0, "val_loss": 1.1}]).axes[0].lines
    ]
    assert shown == ["o", "o"]
    two = pictures.loss_figure([{"train_loss": 1.0, "val_loss": 1.1}] * 2)
    assert two.axes[0].lines[0].get_marker() == "None"


def test_coins_missing_in_a_fold_are_told(loaded):
    newest = [one for one in loaded if one.fold == max(o.fold for o in loaded)]
    names = {one.series.symbol for one in newest}
    records = [SimpleNamespace(symbol=name, timeframe="1h") for name in sorted(names)]
    assert backtest.missing(records, loaded, max(o.fold for o in loaded) + 1) == []
    (text,) = backtest.missing(records, newest, 2)
    assert text.startswith(f"Fold 1 of 2 at 1h is without {len(names)} of {len(names)} coins")
    assert sorted(names)[0] in text
