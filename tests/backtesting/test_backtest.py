"""Folds, judgement and output of a backtest, on models whose forecasts are known."""

import re
import subprocess
import sys
import weakref
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from cpbmodels.data.prediction import Prediction
from schemas.chances import SCORED
from schemas.failure import Failure
from schemas.identity import ModelId
from tasks.backtesting import report, rolling, rows
from tasks.backtesting.folds import load_folds, plan_bounds
from tasks.backtesting.methods import Baseline, robust_har
from tasks.backtesting.results import Backtest, as_json
from tasks.backtesting.rolling import TOO_SHORT, judge_methods
from tasks.figures.judged import COLUMNS
from tasks.judging import baselines, pool
from tasks.judging.judges import JudgeDied, Judges
from tasks.running.cores import Cores
from tests.tools.known_chances import forecasts, judged, market
from tests.tools.known_markets import A, B, H

REFERENCE = Baseline("reference", baselines.ewma_walk)
HAR = Baseline("har", robust_har)


class Spoiled:
    """The reference as a trained model, whose training (`failing`) or forecasts (`spoil`) can be made to fail."""

    name = "x"

    def __init__(self, *, failing=None, spoil=lambda fold, forecasts: forecasts):
        self._failing, self._spoil = failing or {}, spoil

    def on(self, series):
        return self

    def identity(self, fold):
        return ModelId("x", "default", fold.id, fold.fold)

    def training_failure(self, fold):
        if code := self._failing.get((fold.id, fold.fold)):
            return Failure(step="train", reason=code, code=code, series=fold.id, model=self.identity(fold))
        return None

    def forecast(self, fold):
        forecasts = REFERENCE.forecast(fold)
        return self._spoil(fold, forecasts)


@pytest.fixture(scope="module")
def loaded(folds):
    return folds.loaded


@pytest.fixture(scope="module")
def result(loaded):
    with Judges(Cores(2), rolling.JUDGE) as judges:
        return judge_methods([REFERENCE, HAR], loaded, judges, {})


def test_a_coin_too_young_for_any_fold_is_named_and_the_others_go_on(folds):
    assert [(o.fold, o.id) for o in folds.loaded] == [(f, s) for f in (1, 2) for s in (A, B)]
    (failure,) = folds.failures
    assert (failure.series.symbol, failure.step) == ("TINYUSDT", "plan")
    assert "only 50 rows" in failure.reason


def test_the_folds_of_a_coin_share_its_candles(folds):
    first, _, second, _ = folds.loaded
    assert first.id == second.id
    assert first.series.prices is second.series.prices


def test_a_damaged_feature_file_costs_its_own_series_only(home, records):
    broken = records[0].model_copy(update={"file_digest": "0"})
    folds = load_folds(home, [broken, records[1]], plan_bounds(records, 2))
    assert {fold.id for fold in folds.loaded} == {B}
    assert [(f.series, f.code) for f in folds.failures] == [(A, "damaged")]


def test_coins_missing_in_a_fold_are_named(home, records):
    whole = load_folds(home, records[:2], plan_bounds(records[:2], 2))
    assert whole.incomplete == ()
    assert whole.failures == ()
    bounds = plan_bounds(records, 2)
    with_young = load_folds(home, records, bounds).incomplete
    assert [text.split(" is without ")[0] for text in with_young] == [
        "Fold 1 of 2 at 1h",
        "Fold 2 of 2 at 1h",
    ]
    assert all("1 of 3 coins" in text and text.endswith("TINYUSDT") for text in with_young)


def test_members_are_judged_over_all_folds(result, loaded):
    assert [(m.architecture, m.symbol) for m in result.members] == [
        (a, s) for a in ("reference", "har") for s in ("AUSDT", "BUSDT")
    ]
    expected = sum(len(o.series.origins("test", 1, H)) for o in loaded if o.id == A)
    assert result.members[0].metrics["test_n"] == expected
    assert (np.diff(result.members[0].times) > 0).all()
    assert all("test_p_holm" in m.metrics for m in result.members)
    assert (result.failures, result.incomplete) == ([], [])


def test_the_reference_scores_one_and_the_hours_score_less(result):
    pools = {p.architecture: p for p in result.pools}
    assert pools["reference"].metrics["test_crps_ratio"] == pytest.approx(1)
    assert pools["har"].metrics["test_crps_ratio_high"] < 1
    assert pools["har"].verdict.startswith("better than")


def test_processes_on_all_cores_give_the_scores_of_this_process_to_the_last_bit(result, loaded, judges):
    again = judge_methods([REFERENCE, HAR], loaded, judges, {})
    for there, here in zip(result.members, again.members, strict=True):
        assert there.metrics == here.metrics
        assert {n: v.tobytes() for n, v in there.losses.items()} == {
            n: v.tobytes() for n, v in here.losses.items()
        }
    assert result.pairs == again.pairs


def test_a_method_that_ends_its_judge_is_a_failure_and_the_others_are_judged(loaded):
    def ask(request):
        if request[0].name == "x":
            raise JudgeDied("ended with code 9")
        return rolling.judge_series(*request)

    result = judge_methods([Spoiled(), REFERENCE], loaded, SimpleNamespace(number=2, ask=ask), {})
    assert {m.architecture for m in result.members} == {"reference"}
    assert [(f.series, f.step, f.code) for f in result.failures] == [
        (series, "evaluate", "judge-died") for series in (A, B)
    ]


def test_a_judge_of_a_backtest_loads_no_torch():
    code = "import sys, tasks.backtesting.rolling; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_mase_of_each_fold_is_scaled_by_its_training_span(loaded, judges):
    judged = judge_methods([REFERENCE], loaded, judges, {})
    of_a = [o.series for o in loaded if o.id == A]
    scaled = []
    for series in of_a:
        close = np.log(series.prices[:, 3])
        origins = series.origins("test", 1, H)
        walk = baselines.reference(series, series.origins("train", 1, H), origins, H)
        start, end = series.spans["train"]
        scale = np.abs(np.diff(close[start:end])).mean()
        scaled += [
            np.abs(close[i + 1 : i + 1 + H] - close[i] - q[:, 9]) / scale
            for i, q in zip(origins, walk, strict=True)
        ]
    member = next(m for m in judged.members if m.symbol == "AUSDT")
    assert member.metrics["test_mase"] == pytest.approx(np.mean(scaled), rel=1e-9)


@pytest.fixture
def written(monkeypatch):
    calls = []

    def write(folder, fold, forecasts, name):
        calls.append((name, fold.id, folder))

    monkeypatch.setattr(rolling, "write_rows", write)
    return calls


def test_one_forecast_that_is_not_finite_stops_no_other(loaded, judges, written, tmp_path):
    def spoil(fold, forecasts):
        if (fold.id, fold.fold) == (A, 2):
            forecasts.quantiles[0, 0, 0] = np.nan
        return forecasts

    result = judge_methods([Spoiled(spoil=spoil), REFERENCE], loaded, judges, {"x": tmp_path})
    assert [(m.architecture, m.symbol) for m in result.members] == [
        ("x", "BUSDT"),
        ("reference", "AUSDT"),
        ("reference", "BUSDT"),
    ]
    (failure,) = result.failures
    assert (failure.model.architecture, failure.series, failure.step) == ("x", A, "evaluate")
    assert failure.code == "non-finite"
    assert written == [("x", B, tmp_path), ("x", B, tmp_path)]


def test_an_unexpected_error_is_the_failure_of_one_model_on_one_series(loaded, judges):
    def spoil(fold, forecasts):
        if fold.id == B:
            raise RuntimeError("out of luck")
        return forecasts

    result = judge_methods([Spoiled(spoil=spoil)], loaded, judges, {})
    assert [m.symbol for m in result.members] == ["AUSDT"]
    assert [(f.series, f.code, f.reason) for f in result.failures] == [(B, "unexpected", "out of luck")]


def test_a_fold_too_short_for_an_architecture_is_left_out_and_named(loaded, judges):
    model = Spoiled(failing={(A, 1): TOO_SHORT, (A, 2): TOO_SHORT, (B, 1): TOO_SHORT})
    result = judge_methods([model], loaded, judges, {})
    (member,) = result.members
    assert (member.symbol, member.metrics["test_n"]) == (
        "BUSDT",
        sum(len(o.series.origins("test", 1, H)) for o in loaded if (o.id, o.fold) == (B, 2)),
    )
    assert [(f.series, f.step, f.code) for f in result.failures] == [(A, "train", TOO_SHORT)]
    (sentence,) = result.incomplete
    assert sentence.startswith("x on BUSDT 1h is judged without fold 1: ")


def test_a_model_that_diverged_in_one_fold_is_not_judged_on_the_others(loaded, judges):
    result = judge_methods([Spoiled(failing={(A, 1): "diverged"})], loaded, judges, {})
    assert [m.symbol for m in result.members] == ["BUSDT"]
    assert [(f.series, f.code) for f in result.failures] == [(A, "diverged")]
    assert result.failures[0].model.seed == 1


def test_a_series_without_a_test_origin_is_a_failure(loaded, judges, written, tmp_path):
    empty = Prediction(np.empty(0, np.int64), np.empty((0, H, 19)))
    result = judge_methods([Spoiled(spoil=lambda fold, forecasts: empty)], loaded, judges, {"x": tmp_path})
    assert (result.members, written) == ([], [])
    assert {(f.series, f.code) for f in result.failures} == {(A, "no-origin"), (B, "no-origin")}


def test_forecasts_of_one_series_at_most_are_in_memory(loaded, judges):
    made, alive = [], []

    def watch(fold, forecasts):
        made.append(weakref.ref(forecasts.quantiles))
        alive.append(sum(array() is not None for array in made))
        return forecasts

    assert len(judge_methods([Spoiled(spoil=watch)], loaded, judges, {}).members) == 2
    assert alive == [1, 2, 1, 2]  # two folds of one series, then those of the other


def test_json_has_the_documented_keys(result):
    answer = as_json(result, {"har": "smoke+1f0c2a3b"})
    assert answer["members"]["har/AUSDT/1h"]["preset"] == "smoke+1f0c2a3b"
    presets = {name: rows["1h"]["preset"] for name, rows in answer["pooled"].items()}
    assert len(presets) > 1
    assert presets == dict.fromkeys(presets) | {"har": "smoke+1f0c2a3b"}
    pooled = answer["pooled"]["har"]["1h"]
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
        assert name in answer["members"]["har/AUSDT/1h"]
    low, high = pooled["interval"]
    assert low < pooled["crps_ratio"] < high


@pytest.fixture
def chances():
    """Two coins whose forecasts have a table of extremes."""
    coins = [market(symbol=f"{name}USDT", seed=seed) for seed, name in enumerate("AB")]
    members = [judged(coin, forecasts(coin, spread=1.5), "har") for coin in coins]
    return Backtest(members=members, pools=pool.judge_pools(members))


def test_json_has_what_came_of_stated_chances(chances, result):
    answer = as_json(chances, {})
    pooled, member = answer["pooled"]["har"]["1h"], answer["members"]["har/AUSDT/1h"]
    for row in (pooled, member):
        for name in SCORED:
            low, high = row[f"{name}_interval"]
            assert low < row[f"{name}_brier_ratio"] < high
            assert 0 <= row[f"{name}_p"] <= 1
        assert row["first_outcomes_brier_ratio"] > 1
    for name, steps in (("touch", H), ("first", 1), ("above", H)):
        by_step = pooled[f"{name}_deciles_by_step"]
        assert [0 < len(of_step) <= 10 for of_step in by_step] == [True] * steps
        assert 8 <= len(pooled[f"{name}_deciles"]) <= 10
        # Forecasts of half the width again state too much at every step.
        if name == "touch":
            assert all(chance > came for of_step in by_step for chance, came in of_step)
    # A baseline has no table of extremes.
    of_baseline = as_json(result, {})["pooled"]["har"]["1h"]
    assert of_baseline["touch_deciles"] is of_baseline["first_deciles_by_step"] is None
    assert len(of_baseline["above_deciles_by_step"]) == H


def test_the_report_has_the_chances_in_deciles(chances, tmp_path):
    report.write_report(tmp_path / "r.html", "A", chances)
    text = (tmp_path / "r.html").read_text()
    for what in SCORED.values():
        assert f"Reliability of {what}, in deciles" in text
    for name in SCORED:
        assert COLUMNS[f"{name}_ratio"].title in text


def test_rows_keep_the_forecast_contract_and_small_prices(loaded, tmp_path):
    fold = replace(loaded[2], fold=2)
    series = fold.series
    origins = series.origins("test", 1, H)[:7]
    quantiles = baselines.reference(series, series.origins("train", 1, H), origins, H)
    candle = np.zeros((7, H, 4))
    candle[..., 1] = quantiles[..., 9].clip(min=0)
    candle[..., 2] = quantiles[..., 9].clip(max=0)
    forecasts = Prediction(origins, quantiles, candle)
    frame = rows.backtest_rows(fold, forecasts, "har")
    assert frame.height == 7 * H
    first = frame.row(12, named=True)
    row = origins[1]
    assert first["step"] == 3
    assert first["fold"] == 2
    assert first["issued_at"] == datetime.fromtimestamp(series.times[row] / 1e6 + 3600, UTC)
    assert (first["target_time"] - first["issued_at"]).total_seconds() == 3 * 3600
    assert first["realised_close"] == series.prices[row + 3, 3]
    assert first["q50"] == pytest.approx(series.prices[row, 3] * np.exp(quantiles[1, 2, 9]))
    assert first["q50_open"] == first["last_close"] == series.prices[row, 3]
    path = rows.write_rows(tmp_path, fold, forecasts, "har")
    assert path.relative_to(tmp_path).as_posix() == "model=har/interval=1h/symbol=AUSDT/fold-2.parquet"
    assert pl.read_parquet(path).equals(frame)


def test_the_report_names_verdicts_and_draws_four_figures_a_timeframe(result, tmp_path):
    report.write_report(tmp_path / "r.html", "A <title>", result, notes=["A & B"])
    text = (tmp_path / "r.html").read_text()
    assert text.count("<figcaption>") == 5  # the board and four of the timeframe
    assert "A &lt;title&gt;" in text
    assert "A &amp; B" in text
    assert "har 1h is better than the random walk" in text
    assert not set(COLUMNS).intersection(re.findall(r"<th[^>]*>([^<]+)</th>", text)) - {"p"}


def test_every_column_of_the_tables_has_a_title(result):
    for row in (*pool.leaderboard_rows(result.pools), *pool.member_rows(result.members)):
        assert row.keys() <= COLUMNS.keys()


def test_the_table_is_ordered(result):
    board = pool.leaderboard_rows(result.pools)
    assert [r["architecture"] for r in board] == ["har", "reference"]
    assert set(COLUMNS) - {"symbol", "verdict", "touch_ratio", "first_ratio"} == set(board[0])
    assert len(pool.member_rows(result.members)) == 4
