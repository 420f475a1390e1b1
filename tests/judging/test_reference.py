"""The reference of a model's folder: exactly what judging measured the model against."""

import numpy as np
import pytest

from cpbmodels.data.columns import LAMBDA
from schemas.errors import DamagedError
from tasks.judging.baselines import fit_reference, reference, reference_quantiles
from tasks.storage.model_folder import REFERENCE, reference_in, write_reference
from tests.tools.known_markets import A, H, market


def test_a_stored_reference_is_judgings_to_the_last_bit(tmp_path):
    series = market()
    train, test = (series.origins(s, 1, H) for s in ("train", "test"))
    write_reference(tmp_path, fit_reference(series, A, H))

    stored = reference_in(tmp_path, (tmp_path / REFERENCE).read_bytes())

    np.testing.assert_array_equal(
        reference_quantiles(stored, series, test), reference(series, train, test, H)
    )
    assert (stored.horizon, stored.decay, stored.origins) == (H, LAMBDA, len(train))
    assert stored.span == tuple(series.times[train[[0, -1]]].tolist())


@pytest.mark.parametrize("place", [0.02, 0.3, 0.99])
def test_an_altered_reference_is_damage(tmp_path, place):
    write_reference(tmp_path, fit_reference(market(), A, H))
    path = tmp_path / REFERENCE
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedError) as caught:
        reference_in(tmp_path, (tmp_path / REFERENCE).read_bytes())
    assert caught.value.field == str(path)
