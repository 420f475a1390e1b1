"""The models of a job: copies are averaged, and universal parts share one model."""

from dataclasses import replace

import numpy as np
import pytest

from cpbmodels import Series, ensemble, predict, train_fleet
from cpbmodels.arch.gru import Gru
from cpbmodels.data.wide import NO_MARKET
from tasks.training import shard_training
from tasks.training.shard_training import train_members
from tests.tools.planned import job, planned

TINY = {"epochs": 1}


def loaded(symbol, timeframe="1h", fold=0):
    """A member of a job, and a random walk for it to learn."""
    member = planned(symbol, timeframe, fold)
    draw = np.random.default_rng(sum(map(ord, symbol + timeframe)))
    close = 100 * np.exp(np.cumsum(draw.normal(0, 0.01, 500)))
    opened = np.concatenate([[100.0], close[:-1]])
    high, low = np.maximum(opened, close) * 1.002, np.minimum(opened, close) / 1.002
    prices = np.column_stack([opened, high, low, close])
    return member, Series.from_ohlc(prices, symbol=symbol, timeframe=timeframe)


def trained(members, *, of_job=None, **options):
    """The models of a job of these members; `of_job` if some of the job's members could not be loaded."""
    shard = job(*(member for member, _ in of_job or members), overrides=TINY, **options)
    return train_members(shard, members, device="cpu", dtype="float64")


def alone(series, *seeds, **options):
    return train_fleet(
        series, "gru", "smoke", seeds=list(seeds), device="cpu", dtype="float64", **TINY, **options
    )


def forecast(model, series):
    origins = series.origins("validation", model.context, model.horizon)
    return predict([model], [series], [origins])[0].quantiles


def same(a, b, series):
    return np.allclose(forecast(a, series), forecast(b, series), rtol=1e-9, atol=1e-12)


def test_the_copies_of_each_member_are_averaged():
    members = [loaded("AAAUSDT"), loaded("BBBUSDT")]
    models = trained(members, seeds=2)
    assert len(models) == 2
    for model, (member, series) in zip(models, members, strict=True):
        seed = member.model.seed
        copies = alone([series, series], seed, seed + 1)
        assert not same(*copies, series)
        assert same(model, ensemble(copies), series)
        assert model.report["diverged"] is False


def test_a_universal_model_serves_all_series_of_its_timeframe():
    members = [loaded("AAAUSDT"), loaded("BBBUSDT"), loaded("AAAUSDT", "4h"), loaded("BBBUSDT", "4h")]
    hourly, other, four, _ = trained(members, architecture="gru-universal")
    assert hourly is other
    assert four is not hourly
    assert (hourly.config["timeframe"], four.config["timeframe"]) == ("1h", "4h")


def test_the_seed_of_a_universal_fold_does_not_depend_on_who_could_be_loaded():
    first, second = loaded("AAAUSDT", fold=1), loaded("BBBUSDT", fold=1)
    later = loaded("BBBUSDT", fold=2)
    universal = {"architecture": "gru-universal", "of_job": [first, second, later]}
    of_fold_1, of_fold_2 = trained([second, later], **universal)
    series, seed = second[1], first[0].model.seed
    assert same(of_fold_1, alone([series], seed, scope="universal")[0], series)
    assert not same(of_fold_1, of_fold_2, series)  # another fold, another seed


@pytest.mark.parametrize(("timeframe", "reads"), [("15m", True), ("1h", False)])
def test_what_coins_share_is_computed_where_a_preset_reads_it_at_one_timeframe_alone(
    tmp_path, monkeypatch, timeframe, reads
):
    own = {("smoke", "15m"): {"features": ("r_close", NO_MARKET)}}
    monkeypatch.setattr(Gru, "spec", replace(Gru.spec, by_timeframe=own))
    members = [loaded(symbol, timeframe) for symbol in ("AAAUSDT", "BBBUSDT")]
    stored = {member.features.path: series for member, series in members}
    monkeypatch.setattr(shard_training, "read_features", lambda home, record: stored[record.path])
    monkeypatch.setattr(shard_training, "with_bounds", lambda series, *_: series)
    monkeypatch.setattr(shard_training.cpbmodels, "ineligible_reason", lambda *_, **_options: "")
    asked = []
    monkeypatch.setattr(shard_training, "cross_sections", lambda coins: asked.append(coins) or {})
    shard_training._load(job(*(member for member, _ in members)), tmp_path)
    assert bool(asked) is reads
