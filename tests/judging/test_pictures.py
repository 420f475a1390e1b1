"""Pictures of members: a process reuses its figures, and no picture shows anything of the one before."""

from types import SimpleNamespace

import numpy as np
import pytest
from known_markets import market

from tasks.judging import pictures
from tasks.judging.classes import NAMES
from tasks.judging.scores import LEVELS


def losses(epochs):
    return [{"train_loss": 2.0 / (e + 1), "val_loss": 2.5 / (e + 1) - 1} for e in range(epochs)]


def confusion(seed):
    counts = np.random.default_rng(seed).integers(0, 99, (3, 3))
    pairs = np.ndindex(3, 3)
    return {f"test_confusion_{NAMES[i]}_{NAMES[j]}": float(counts[i, j]) for i, j in pairs}


def drawn_forecast(path, seed, origin, horizon):
    quantiles = np.sqrt(np.arange(1, horizon + 1))[:, None] * (LEVELS - 0.5) * 0.02
    prediction = SimpleNamespace(origins=np.array([origin]), quantiles=quantiles[None])
    pictures.forecast_png(path, market(seed=seed, symbol=f"C{seed}USDT"), prediction)


KINDS = {
    "forecast": [
        lambda path: drawn_forecast(path, 1, 400, 10),
        lambda path: drawn_forecast(path, 2, 500, 10),
        lambda path: drawn_forecast(path, 2, 5, 10),
        lambda path: drawn_forecast(path, 1, 400, 3),
    ],
    "loss": [
        lambda path, n=n: pictures.loss_png(path, losses(n) if n >= 0 else [{"train_loss": np.nan}])
        for n in (8, 1, 0, 100, -1)
    ],
    "confusion": [lambda path, n=n: pictures.confusion_png(path, confusion(n)) for n in range(3)],
}


@pytest.fixture
def forget():
    def clear():
        for template in (pictures._loss_template, pictures._forecast_template, pictures._confusion_template):
            template.cache_clear()

    clear()
    yield clear
    clear()


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_depends_on_nothing_drawn_before(kind, tmp_path, forget):
    def bytes_of(order, new=False):
        made = {}
        for i in order:
            if new:
                forget()
            KINDS[kind][i](tmp_path / f"{i}.png")  # its name is in it
            made[i] = (tmp_path / f"{i}.png").read_bytes()
        return made

    order = range(len(KINDS[kind]))
    alone = bytes_of(order, new=True)
    assert len(set(alone.values())) == len(order), "each shows something else"
    forget()
    assert bytes_of(order) == alone
    assert bytes_of(reversed(order)) == alone
    forget()
    assert bytes_of(reversed(order)) == alone


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([64_100.0, 65_900.0], ["64500", "65000", "65500"]),
        ([0.1012, 0.1029], ["0.1015", "0.1020", "0.1025"]),
        ([1.21e-5, 1.29e-5], ["1.22e−05", "1.24e−05", "1.26e−05", "1.28e−05"]),
        ([1.0e9, 1.5e9], ["1.0e+09", "1.1e+09", "1.2e+09", "1.3e+09", "1.4e+09", "1.5e+09"]),
        ([-1.0, 1.0], ["−1.0", "−0.5", "0.0", "0.5", "1.0"]),
        ([2.5, 2.5], ["2.40", "2.45", "2.50", "2.55", "2.60"]),
        ([2.5, 2.5 + 1e-15], ["2.40", "2.45", "2.50", "2.55", "2.60"]),
        ([np.nan, np.inf], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_ticks_have_the_digits_that_tell_them_apart(values, labels, forget):
    figure = pictures.loss_figure([{"train_loss": v, "val_loss": np.nan} for v in values])
    axis = figure.axes[0].yaxis
    shown = [tick for tick in axis.majorTicks if tick.get_visible()]
    assert [tick.label1.get_text() for tick in shown] == labels
    low, high = axis.get_view_interval()
    finite = [v for v in values if np.isfinite(v)]
    assert all(low < v < high for v in finite)
    assert all(low <= tick.get_loc() <= high for tick in shown)
