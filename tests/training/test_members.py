"""The models of a job: copies are averaged, universal parts share one model, and warm starts continue what fits."""

from datetime import UTC, datetime

import numpy as np
import pytest

import cpbmodels
from cpbmodels import Series, ensemble, predict, train_fleet
from schemas.handover import JobMember, SeriesRecord, SplitBounds
from schemas.identity import ModelId, SeriesId
from schemas.run import RunSpec
from tasks.training.plan import member_seed, plan_job
from tasks.training.trainer import train_members

TINY = {"epochs": 1}


def day(n):
    return datetime(2024, 1, n, tzinfo=UTC)


def loaded(symbol, timeframe="1h", fold=0, continues=None, architecture="gru"):
    """A member of a job, and a random walk for it to learn."""
    series = SeriesId("spot", symbol, timeframe)
    seed = member_seed(1, architecture, series, fold)
    record = SeriesRecord(
        series=series, path="a.parquet", digest=symbol, file_digest="f", rows=500, first_us=0, last_us=1
    )
    bounds = SplitBounds(
        timeframe=timeframe, train=(day(1), day(9)), validation=(day(10), day(12)), test=(day(13), day(15))
    )
    model = ModelId(architecture, "smoke", series, seed)
    member = JobMember(model=model, features=record, bounds=bounds, fold=fold, continues=continues)
    draw = np.random.default_rng(sum(map(ord, symbol + timeframe)))
    close = 100 * np.exp(np.cumsum(draw.normal(0, 0.01, 500)))
    opened = np.concatenate([[100.0], close[:-1]])
    high, low = np.maximum(opened, close) * 1.002, np.minimum(opened, close) / 1.002
    prices = np.column_stack([opened, high, low, close])
    return member, Series.from_ohlc(prices, symbol=symbol, timeframe=timeframe)


def trained(members, home, *, architecture="gru", planned=None, overrides=TINY, **options):
    """The models of a job of these members; `planned` if some of the job's members could not be loaded."""
    spec = RunSpec(preset="smoke", overrides=overrides, **options)
    job = plan_job(spec, architecture, [member for member, _ in planned or members])
    return train_members(job, members, home, device="cpu", dtype="float64")


def alone(series, *seeds, **options):
    return train_fleet(
        series, "gru", "smoke", seeds=list(seeds), device="cpu", dtype="float64", **TINY, **options
    )


def forecast(model, series):
    origins = series.origins("validation", model.context, model.horizon)
    return predict([model], [series], [origins])[0].quantiles


def same(one, other, series):
    return np.allclose(forecast(one, series), forecast(other, series), rtol=1e-9, atol=1e-12)


def test_the_copies_of_each_member_are_averaged(tmp_path):
    members = [loaded("AAAUSDT"), loaded("BBBUSDT")]
    found = trained(members, tmp_path, seeds=2)
    assert len(found) == 2
    for model, (member, series) in zip(found, members, strict=True):
        seed = member.model.seed
        copies = alone([series, series], seed, seed + 1)
        assert not same(*copies, series)
        assert same(model, ensemble(copies), series)
        assert model.report["diverged"] is False


def test_a_universal_model_serves_all_series_of_its_timeframe(tmp_path):
    members = [loaded("AAAUSDT"), loaded("BBBUSDT"), loaded("AAAUSDT", "4h"), loaded("BBBUSDT", "4h")]
    one, other, four, _ = trained(members, tmp_path, architecture="gru-universal")
    assert one is other
    assert four is not one
    assert (one.config["timeframe"], four.config["timeframe"]) == ("1h", "4h")


def test_the_seed_of_a_universal_fold_does_not_depend_on_who_could_be_loaded(tmp_path):
    first, second = loaded("AAAUSDT", fold=1), loaded("BBBUSDT", fold=1)
    later = loaded("BBBUSDT", fold=2)
    universal = {"architecture": "gru-universal", "planned": [first, second, later]}
    of_fold_1, of_fold_2 = trained([second, later], tmp_path, **universal)
    series, seed = second[1], first[0].model.seed
    assert same(of_fold_1, alone([series], seed, scope="universal")[0], series)
    assert not same(of_fold_1, of_fold_2, series)  # another fold, another seed


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_member_continues_its_model_and_others_start_anew(tmp_path, seeds):
    new = [loaded("AAAUSDT"), loaded("BBBUSDT")]
    cold = trained(new, tmp_path, seeds=seeds)
    cold[0].save(tmp_path / "old" / "AAA")
    warm = trained([loaded("AAAUSDT", continues="old/AAA"), new[1]], tmp_path, seeds=seeds)
    assert len(warm[0].rows) == seeds
    assert not same(warm[0], cold[0], new[0][1])
    assert same(warm[1], cold[1], new[1][1])


def test_what_is_continued_is_the_model_in_the_folder(tmp_path):
    member, series = loaded("AAAUSDT")
    trained([(member, series)], tmp_path)[0].save(tmp_path / "old")
    warm = trained([loaded("AAAUSDT", continues="old")], tmp_path)[0]
    start = [cpbmodels.load(tmp_path / "old")]
    assert same(warm, alone([series], member.model.seed, warm_start=start)[0], series)


@pytest.mark.parametrize(
    ("changes", "differing"),
    [({"seeds": 2}, "number of copies"), ({"overrides": TINY | {"hidden_dim": 24}}, "hidden_dim")],
)
def test_a_model_of_another_shape_is_not_continued_and_named(tmp_path, caplog, changes, differing):
    new = [loaded("AAAUSDT")]
    trained(new, tmp_path)[0].save(tmp_path / "old")
    warm = trained([loaded("AAAUSDT", continues="old")], tmp_path, **changes)
    assert same(warm[0], trained(new, tmp_path, **changes)[0], new[0][1])
    assert differing in caplog.text


def test_a_universal_model_is_continued_whichever_of_its_coins_is_loaded(tmp_path):
    universal = {"architecture": "gru-universal"}
    new = [loaded("AAAUSDT"), loaded("BBBUSDT")]
    cold = trained(new, tmp_path, **universal)[0]
    cold.save(tmp_path / "old")
    both = [loaded("AAAUSDT", continues="old"), loaded("BBBUSDT", continues="old")]
    warm = trained(both, tmp_path, **universal)[0]
    expected = alone(
        [s for _, s in new],
        new[0][0].model.seed,
        scope="universal",
        warm_start=[cpbmodels.load(tmp_path / "old")],
    )[0]
    assert same(warm, expected, new[0][1])
    assert not same(warm, cold, new[0][1])
