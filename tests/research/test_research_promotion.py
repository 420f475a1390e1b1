"""The benchmark of promotion on a small backtest's rows: every figure is there, and the rules hold on noise."""

import json

import numpy as np
import polars as pl
import pytest

from cpbmodels.data.rows import QUANTILE_COLUMNS
from research import promotion
from tasks.judging.scores import LEVELS, crps

HOURS, FOLDS = 1200, 2


def write_rows(folder, model, coin, width, random):
    """Rows of a model whose quantiles are those of moves that are uniform, times `width`."""
    start = 1_700_000_000_000_000
    for fold in range(1, FOLDS + 1):
        issued = np.repeat(start + (np.arange(HOURS) + (fold - 1) * HOURS) * promotion.HOUR_US, 10)
        last = np.repeat(np.exp(np.cumsum(random.normal(0, 0.01, HOURS))), 10)
        steps = np.tile(np.arange(1, 11), HOURS)
        moves = random.uniform(-0.01, 0.01, len(steps))
        quantiles = (LEVELS * 2 - 1) * 0.01 * width
        frame = pl.DataFrame(
            {
                "issued_at": pl.Series(issued).cast(pl.Datetime("us", "UTC")),
                "step": steps,
                "fold": np.full(len(steps), fold),
                "last_close": last,
                "realised_close": last * np.exp(moves),
                **{name: last * np.exp(quantiles[i]) for i, name in enumerate(QUANTILE_COLUMNS)},
            }
        )
        path = folder / f"forecasts/model={model}/interval=1h/symbol={coin}/fold-{fold}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.write_parquet(path)
    return crps(np.broadcast_to(quantiles, (len(moves), 1, 19)), moves[:, None]).mean()


@pytest.fixture
def rows(tmp_path):
    for number, coin in enumerate(("AUSDT", "BUSDT")):
        for model, width in (("har", 1.0), ("linear", 1.4)):
            write_rows(tmp_path, model, coin, width, np.random.default_rng(number))
    return tmp_path


def test_losses_are_those_of_the_rows(rows, tmp_path):
    losses = promotion.read_losses(rows)
    assert losses.models == ["har", "linear"]
    assert losses.values.shape == (
        2,
        2,
        FOLDS * HOURS - promotion.WARM,
    )  # the scale's first origins are left out
    expected = write_rows(tmp_path / "again", "har", "AUSDT", 1.0, np.random.default_rng(0))
    assert np.nanmean(losses.values[0, 0, HOURS:]) == pytest.approx(expected, rel=0.05)
    differences, level = losses.pooled(1, 0)
    assert differences.mean() / level > 0.01  # bands 40 % too wide cost
    assert (losses.of_folds([2]).folds == 2).all()


def test_simulated_years_keep_blocks_and_leave_no_mean():
    folds = np.repeat([1, 2], 600)
    values = np.arange(1200.0)
    simulated = promotion.years(values, folds, 5, seed=0, hours=1000)
    assert simulated.shape == (5, 1000)
    assert (np.diff(simulated.reshape(-1)[: promotion.BLOCK]) == 1).all()
    inside = np.diff(simulated[:, : promotion.BLOCK * 4].reshape(5, 4, -1), axis=2)
    assert (inside == 1).all()
    for null, size in (("fold", 600), ("all", 1200)):
        assert promotion.centred(values, folds, null)[:size].mean() == pytest.approx(0)


@pytest.mark.slow
def test_every_figure_is_reported(rows, monkeypatch, capsys):
    monkeypatch.setattr(promotion, "YEAR", 1500)
    monkeypatch.setattr(promotion, "REFRESH_ROWS", (500,))
    promotion.main(["--rows", str(rows), "--years", "6", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["constructions"]) == set(promotion.CONSTRUCTIONS)
    for one in found["constructions"].values():
        assert set(one["gain"]) == {str(gain) for gain in promotion.GAINS}
        assert set(one["null"]) == {"fold", "all"}
    assert found["refresh"]["500"]["accepted_1.05"] <= found["refresh"]["500"]["accepted_1.0"]
    promotion.main(["--rows", str(rows), "--years", "2"])
    assert "refresh on rows" in capsys.readouterr().out


def test_hours_that_the_challenger_lacks_count_as_the_worst_before(rows, monkeypatch):
    differences = np.array([[1.0, 3.0, 9.0, 2.0, 5.0]])
    lacks = np.array([[False, False, True, False, True]])
    assert promotion._worst_before(differences, lacks).tolist() == [[0, 1, 3, 3, 3]]
    monkeypatch.setattr(promotion, "YEAR", 1500)
    found = promotion.missing(promotion.read_losses(rows), 6)
    assert set(found) == {"largest differences", "largest losses", "any"}
    for row in found.values():
        assert row["counted as the worst"] <= 0.05


def test_rows_of_one_model_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="two models"):
        promotion.read_losses(tmp_path)


def test_the_best_of_many_equal_recipes_is_judged_by_what_comes_after(monkeypatch):
    monkeypatch.setattr(promotion, "alpha_share", lambda *_: 0.2)  # promoted at e = 5, as fewer are drawn
    random = np.random.default_rng(0)
    levels = 1 + 0.03 * random.standard_normal((2, 1, 4 * 900))
    losses = promotion.Losses(["har", "linear"], levels, np.ones((1, 4 * 900)), np.repeat([1, 2, 3, 4], 900))
    found = promotion.chosen(losses, 100)
    after, as_well = found["those after the appointment"][1], found["the test span's as well"][1]
    assert after <= 0.2
    assert as_well > after + 0.1
