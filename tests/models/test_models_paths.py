"""Joint paths: their margins are the forecast's quantiles, their dependence the validation errors' ranks."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from candles import series_for, walk

import cpbmodels
from cpbmodels import ModelError, coin_correlation, ensemble, load, paths, train_fleet
from cpbmodels.data.paths import (
    MAX_STEPS,
    Margins,
    correlate_coins,
    draw_paths,
    mean_correlation,
    random_walk,
    step_correlation,
)
from cpbmodels.fleet.config import STEPS

TINY = {"preset": "smoke", "device": "cpu", "epochs": 1, "steps_per_epoch": 2}


def frame(seed, rows=900):
    """Candles with times."""
    prices = walk(rows, seed).prices
    times = pl.datetime_range(
        pl.datetime(2024, 1, 1), pl.datetime(2026, 1, 1), "1h", eager=True, time_zone="UTC"
    )
    return pl.DataFrame(
        {"open_time": times[:rows], **dict(zip(("open", "high", "low", "close"), prices.T, strict=True))}
    )


@pytest.fixture(scope="module")
def two():
    """Two coins of which the second moves with the first, and a model of each."""
    first = frame(1)
    second = first.with_columns(pl.col("open", "high", "low", "close") * 0.02)
    series = [
        cpbmodels.Series.from_frame(one, name) for one, name in ((first, "AAAUSDT"), (second, "BBBUSDT"))
    ]
    return series, train_fleet(series, "linear", seeds=[1, 1], **TINY)


@pytest.mark.parametrize("name", ["robust-har", "linear", "har"])
def test_a_model_learns_how_its_steps_hang_together_and_keeps_it(name, tmp_path):
    """Closed form, network, and a table of residuals."""
    series = series_for(name, 900, seed=1)
    member = train_fleet([series], name, seeds=[1], **TINY)[0]
    steps = member.config[STEPS]

    assert len(steps) == 45
    learned = np.eye(10)
    learned[np.tril_indices(10, -1)] = steps
    expected = random_walk(10)[np.tril_indices(10, -1)]
    assert np.abs(np.array(steps) - expected).max() < 0.15  # the candles are a random walk

    again = load(member.save(tmp_path))
    drawn = again.forecast(series).paths(200, seed=3)
    assert drawn.steps == ("learned",)
    assert drawn.independent == ()
    np.testing.assert_array_equal(drawn.close, member.forecast(series).paths(200, seed=3).close)
    assert (drawn.close != member.forecast(series).paths(200, seed=4).close).any()


def test_margins_are_the_quantiles(two):
    forecast = two[1][0].forecast(two[0][0])
    close = forecast.paths(20_000, seed=1).close[0]
    share = (close[:, :, None] < forecast.close.array).mean(0)
    np.testing.assert_allclose(share, np.tile(cpbmodels.QUANTILES, (10, 1)), atol=0.012)


def test_a_folder_without_the_key_loads_and_its_steps_are_a_random_walks(two, tmp_path):
    (series, _), (member, _) = two
    old = replace(member, config={k: v for k, v in member.config.items() if k != STEPS})
    old = load(old.save(tmp_path))
    forecast, drawn = old.forecast(series), old.forecast(series).paths(20_000, seed=1)

    np.testing.assert_array_equal(forecast.close.array, member.forecast(series).close.array)
    assert drawn.steps == ("random walk",)
    assert "random walk" in repr(drawn)
    assert np.abs(np.corrcoef(np.log(drawn.close[0]), rowvar=False) - random_walk(10)).max() < 0.05


@pytest.mark.parametrize("wrong", [[0.5], [2.0] * 45, [None] * 45, "x", [], [True] * 45, [float("nan")] * 45])
def test_an_impossible_correlation_is_refused(wrong, two, tmp_path):
    member = two[1][0]
    with pytest.raises(ModelError, match=STEPS):
        load(replace(member, config=member.config | {STEPS: wrong}).save(tmp_path))


def test_an_ensemble_has_the_mean_of_its_members_or_none(two):
    members = train_fleet([two[0][0]] * 2, "linear", seeds=[1, 2], **TINY)
    both = ensemble(members).config[STEPS]
    np.testing.assert_allclose(both, np.mean([one.config[STEPS] for one in members], axis=0), atol=1e-4)
    assert mean_correlation([[0.5], None]) is None


def test_the_longest_kept_correlation_takes_less_than_200_kb():
    errors = np.cumsum(np.random.default_rng(1).standard_normal((300, MAX_STEPS + 1)), axis=1)
    assert len(json.dumps({STEPS: step_correlation(errors[:, :MAX_STEPS])}, indent=2)) < 200_000
    assert step_correlation(errors) is None


def test_coins_are_joined_by_the_runs_file_and_independent_without_it(two, tmp_path):
    series, members = two
    forecasts = [member.forecast(one) for member, one in zip(members, series, strict=True)]
    known = coin_correlation(members, series)
    assert known["1h"]["symbols"] == ["AAAUSDT", "BBBUSDT"]
    assert known["1h"]["correlation"][0] > 0.95  # the same moves
    (tmp_path / "coins.json").write_text(json.dumps(known))

    def between(drawn):
        moves = np.log(drawn.close)
        return [np.corrcoef(moves[0, :, step], moves[1, :, step])[0, 1] for step in range(10)]

    joined = paths(forecasts, 4000, seed=1, coins=tmp_path / "coins.json")
    assert joined.independent == ()
    assert min(between(joined)) > 0.9
    apart = paths(forecasts, 4000, seed=1)
    assert apart.independent == ("AAAUSDT", "BBBUSDT")
    assert "independent coins: AAAUSDT, BBBUSDT" in repr(apart)
    assert np.abs(between(apart)).max() < 0.06
    partly = paths(forecasts, 10, coins={"1h": {"symbols": ["AAA/USDT", "C"], "correlation": [0.9]}})
    assert partly.independent == ("BBBUSDT",)

    rows = joined.to_frame()
    assert rows.columns == ["symbol", "issued_at", "path", "step", "target_time", "close"]
    assert rows["target_time"].to_list()[:10] == forecasts[0].to_frame()["target_time"].to_list()
    chosen = rows.filter((pl.col("symbol") == "BBBUSDT") & (pl.col("path") == 7))
    np.testing.assert_array_equal(chosen["close"].to_numpy(), joined.close[1, 7])


def test_impossible_questions_are_one_sentence(two, tmp_path):
    series, members = two
    forecast = members[0].forecast(series[0])
    earlier = members[1].forecast(series[1].tail(800))
    (tmp_path / "x.json").write_text("x")
    for ask, words in (
        (lambda: paths([]), "no forecasts"),
        (lambda: forecast.paths(0), "n is 0"),
        (lambda: paths([forecast], coins=tmp_path / "x.json"), "cannot be read"),
        (
            lambda: paths([forecast], coins={"1h": {"symbols": ["A", "B"], "correlation": []}}),
            "do not form a correlation matrix of 2",
        ),
        (lambda: paths([forecast, replace(earlier, issued_row=700)]), "these differ"),
    ):
        with pytest.raises(ModelError, match=words):
            ask()


def test_coins_need_common_times():
    errors = np.random.default_rng(1).standard_normal((100, 3))
    far = (np.arange(100) + 95, errors)
    assert correlate_coins({"A": (np.arange(100), errors)}) is None
    assert correlate_coins({"A": (np.arange(100), errors), "B": far}) is None


def test_joint_paths_score_better_than_independent_steps():
    """Energy and variogram scores of walks: lower with the dependence that the walks have."""
    scores = pytest.importorskip("scoringrules")
    draw = np.random.default_rng(1)
    truth = np.exp(np.cumsum(draw.standard_normal((200, 10)) * 0.01, axis=1))
    spread = np.sqrt(np.arange(1, 11)) * 0.01
    levels = draw.standard_normal(200_000)
    close = np.exp(np.quantile(levels, cpbmodels.QUANTILES) * spread[:, None])
    joint = draw_paths([Margins("", close, None)], 300, 1, None, 3600).close[0]
    apart = draw_paths([Margins("", close, [0.0] * 45)], 300, 1, None, 3600).close[0]
    for score in (scores.es_ensemble, scores.vs_ensemble):
        own, other = (np.mean([score(one, drawn) for one in truth]) for drawn in (joint, apart))
        assert own < other
