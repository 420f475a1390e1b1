"""Pictures of members: the same data give the same bytes, and nothing that a training leaves cannot be drawn."""

from types import SimpleNamespace

import numpy as np
import pytest

from tasks.judging import pictures
from tasks.judging.scores import LEVELS
from tests.tools.known_markets import market


def forecast(path, seed, origin, horizon):
    quantiles = np.sqrt(np.arange(1, horizon + 1))[:, None] * (LEVELS - 0.5) * 0.02
    prediction = SimpleNamespace(origins=np.array([origin]), quantiles=quantiles[None])
    pictures.forecast_png(path, market(seed=seed, symbol=f"C{seed}USDT"), prediction)


def losses(path, *values):
    pictures.loss_png(path, [{"train_loss": value, "val_loss": 2.5} for value in values])


@pytest.mark.parametrize(
    ("draw", "cases"),
    [
        (forecast, [(1, 400, 10), (2, 500, 10), (2, 5, 10), (1, 400, 3)]),
        (losses, [(), (1.0,), (2.0, 1.0), (np.nan,), (np.inf, 1e300), (1e-12, 2e-12)]),
    ],
)
def test_a_picture_depends_on_its_data_alone(tmp_path, draw, cases):
    path, drawn = tmp_path / "x.png", []  # its name is in it
    for case in [*cases, *reversed(cases)]:
        draw(path, *case)
        drawn.append(path.read_bytes())
    assert drawn == drawn[::-1]
    assert len(set(drawn)) == len(cases)


def test_prices_are_grouped_and_whole(tmp_path, monkeypatch):
    texts = []
    monkeypatch.setattr(pictures._Chart, "text", lambda chart, place, words, *_, **style: texts.append(words))
    monkeypatch.setattr(pictures, "_ticks", lambda *given, digits=None: [101_509.0] if digits is None else [])
    forecast(tmp_path / "x.png", 1, 400, 10)
    assert "101,509" in texts
