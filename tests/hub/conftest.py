from datetime import timedelta

import numpy as np
import pytest

from tasks.forecasting.record import score_due
from tests.tools.fake_hub import TOKEN, fake_hub
from tests.tools.published_record import (
    BTC,
    ETH,
    FIRST,
    build,
    store,
)


@pytest.fixture
def hub(monkeypatch):
    """A Hub on loopback, and a token for it in the environment."""
    with fake_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A published home: 35 days of live forecasts of two coins in four batches, and their scores; not to be changed."""
    home = tmp_path_factory.mktemp("recorded") / "data"
    store(home, [30, 31, np.arange(36, 24 * 20, 6), np.arange(24 * 20, 24 * 36, 6)], BTC, ETH)
    assert score_due(home, [BTC, ETH], FIRST + timedelta(days=39)).rows
    assert build(home) == (home / "hub", [])
    return home
