"""The reference of a model's folder: exactly what judging measured the model against."""

import numpy as np
import pytest
from known_markets import A, H, market

from cpbmodels.data.prices import LAMBDA
from schemas.errors import DamagedError
from tasks.judging.baselines import bin_shares, fit_reference, reference, reference_quantiles
from tasks.storage.model_folder import REFERENCE, read_reference, write_reference


def test_a_stored_reference_is_judgings_to_the_last_bit(tmp_path):
    series = market()
    train, test = (series.origins(s, 1, H) for s in ("train", "test"))
    write_reference(tmp_path, fit_reference(series, A, H, ("r_close", "log_sigma")))

    stored = read_reference(tmp_path)

    np.testing.assert_array_equal(
        reference_quantiles(stored, series, test), reference(series, train, test, H)
    )
    assert (stored.horizon, stored.decay, stored.origins) == (H, LAMBDA, len(train))
    assert stored.span == tuple(series.times[train[[0, -1]]].tolist())


def test_deciles_are_those_of_the_training_origins(tmp_path):
    series = market()
    found = fit_reference(series, A, H, ("log_sigma", "of_another_release"))
    values = series.columns(("log_sigma",))[series.origins("train", 1, H), 0]

    assert list(found.deciles) == ["log_sigma"]
    np.testing.assert_allclose(found.deciles["log_sigma"], np.quantile(values, np.arange(1, 10) / 10))
    np.testing.assert_allclose(found.shares["log_sigma"], np.full(10, 0.1), atol=1e-3)


def test_shares_of_repeated_values_say_how_many_fall_into_each_bin():
    hours = np.repeat(np.arange(4.0), 25)
    edges = np.quantile(hours, np.arange(1, 10) / 10)
    shares = bin_shares(hours, edges)
    assert shares.sum() == pytest.approx(1)
    assert sorted(shares[shares > 0].tolist()) == [0.25] * 4


def test_without_training_origins_nothing_is_fitted():
    series = market(rows=3000)
    series.spans["train"] = (0, 5)
    with pytest.raises(ValueError, match="training origin"):
        fit_reference(series, A, H, ())


@pytest.mark.parametrize("place", [0.02, 0.3, 0.99])
def test_an_altered_reference_is_damage_and_none_is_none(tmp_path, place):
    assert read_reference(tmp_path) is None
    write_reference(tmp_path, fit_reference(market(), A, H, ("r_close",)))
    path = tmp_path / REFERENCE
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError) as caught:
        read_reference(tmp_path)
    assert caught.value.field == str(path)
