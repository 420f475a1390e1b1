"""Models of releases that kept no reference get judging's own, from the candles that they were trained on."""

import json

import numpy as np
import pytest
from known_markets import A, H, bounds_of, busy_hours

from schemas.errors import MemberError
from schemas.klines import KLINES
from tasks.forecasting.reference import reference_of, reference_prices
from tasks.judging.baselines import reference
from tasks.judging.reference import fit_reference
from tasks.signals.store import load_series, write_features
from tasks.storage.model_folder import REFERENCE, write_reference

COLUMNS = ("r_close", "log_range_mean_24")


@pytest.fixture
def stored(tmp_path):
    """A home with candles, and the folder of a model that was trained on them before references were kept."""
    import polars as pl

    klines = busy_hours()
    rest = [pl.lit(1).alias(name) for name in KLINES if name not in klines.columns]
    frame = klines.with_columns(rest).select([pl.col(n).cast(t) for n, t in KLINES.items()])
    folder = A.folder(tmp_path, "klines")
    folder.mkdir(parents=True)
    months = frame.with_columns(month=pl.col("open_time").dt.strftime("%Y-%m"))
    for (month,), part in months.partition_by("month", as_dict=True).items():
        part.drop("month").write_parquet(folder / f"{month}.parquet")
    (tmp_path / "model").mkdir()
    metrics = {f"test_crps_ratio{end}": 1.0 for end in ("", "_low", "_high")}
    metrics |= {f"test_coverage_{band}": band / 100 for band in (50, 80, 90)}
    config = {
        "architecture": "har", "horizon": H, "features": COLUMNS, "bounds": bounds_of().model_dump(mode="json"),
        "metrics": {**metrics, "test_n": 900.0, "test_tail_pinball_ratio": 0.98},
    }  # fmt: skip
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    return tmp_path


def test_an_older_models_reference_is_fitted_from_its_training_span_once(stored, caplog):
    series = load_series(stored, write_features(stored, A), bounds_of())
    judged = fit_reference(series, A, H, COLUMNS)

    fitted = reference_of(stored, A, stored / "model")

    assert fitted.promised.coverage == {50: 0.5, 80: 0.8, 90: 0.9}
    assert fitted.model_copy(update={"promised": None}) == judged
    assert len(caplog.records) == 1
    for path in A.folder(stored, "klines").iterdir():
        path.unlink()
    assert reference_of(stored, A, stored / "model") == fitted  # kept
    assert len(caplog.records) == 1


def test_the_models_own_record_comes_first_and_a_damaged_one_is_fitted_again(stored):
    fitted = reference_of(stored, A, stored / "model")
    own = fitted.model_copy(update={"origins": 7})
    write_reference(stored / "model", own)
    assert reference_of(stored, A, stored / "model") == own

    path = stored / "model" / REFERENCE
    path.write_bytes(path.read_bytes()[:-40])
    assert reference_of(stored, A, stored / "model") == fitted


def test_without_candles_or_span_there_is_none(stored):
    for path in A.folder(stored, "klines").iterdir():
        path.unlink()
    with pytest.raises(MemberError):
        reference_of(stored, A, stored / "model")
    (stored / "model/config.json").write_text('{"architecture": "har"}')
    with pytest.raises(MemberError) as caught:
        reference_of(stored, A, stored / "model")
    assert caught.value.code == "reference"


def test_prices_are_judgings_quantiles_from_the_last_close(stored):
    series = load_series(stored, write_features(stored, A), bounds_of())
    train, test = (series.origins(split, 1, H) for split in ("train", "test"))
    expected = reference(series, train, test, H)
    known = reference_of(stored, A, stored / "model")

    for place in (0, 400, -1):
        row = int(test[place])
        prices = reference_prices(known, series, row, H)
        assert prices.shape == (19, H)
        np.testing.assert_allclose(np.log(prices / series.prices[row, 3]).T, expected[place], atol=1e-14)
    with pytest.raises(MemberError):
        reference_prices(known, series, row, H + 1)
