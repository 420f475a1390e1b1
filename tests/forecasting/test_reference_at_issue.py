"""The reference beside a forecast is the model's own record; a model without one is to be trained again."""

import numpy as np
import pytest

from schemas.errors import MemberError
from tasks.forecasting.issue import reference_of, reference_prices
from tasks.judging.baselines import fit_reference, reference
from tasks.storage.model_folder import REFERENCE, write_reference
from tasks.storage.packaged import read_packaged
from tests.tools.known_markets import A, H, market
from tests.tools.packaged import write_packaged

COLUMNS = ("r_close", "log_range_mean_24")


def test_a_missing_or_damaged_record_is_a_failure_of_the_series_that_says_what_to_do(tmp_path):
    with pytest.raises(MemberError, match="no record of its reference; train it again") as caught:
        reference_of(read_packaged(write_packaged(tmp_path, f"{A.registered}/1")))
    assert caught.value.code == "reference"
    walk = fit_reference(market(), A, H)
    write_reference(tmp_path, walk)
    assert reference_of(read_packaged(tmp_path)) == walk
    path = tmp_path / REFERENCE
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(MemberError, match=r"reference\.json is damaged.*; train it again") as caught:
        reference_of(read_packaged(tmp_path))
    assert caught.value.code == "reference"


def test_prices_are_judgings_quantiles_from_the_last_close():
    series = market()
    train, test = (series.origins(split, 1, H) for split in ("train", "test"))
    expected = reference(series, train, test, H)
    walk = fit_reference(series, A, H)

    for place in (0, 400, -1):
        row = int(test[place])
        prices = reference_prices(walk, series, row, H)
        assert prices.shape == (19, H)
        np.testing.assert_allclose(np.log(prices / series.prices[row, 3]).T, expected[place], atol=1e-14)
