import numpy as np
import pytest
import torch

from benchmarks import naive
from benchmarks._walks import walk
from cpbmodels.arch.presets import preset

SMALL = naive.Recipe(width=8, layers=2, heads=2, batch=16, dropout=0.0)


@pytest.fixture(scope="module")
def series():
    return walk(400, seed=0)


def test_windows_end_before_their_targets_begin(series):
    x, y = naive.windows(series, "train")
    origin = series.origins("train", 30, 10)[5]
    volatility = series.volatility[origin]
    assert x.shape[1:] == (30, 4)
    assert y.shape[1:] == (10, 4)
    assert x[5, -1, 3].item() == pytest.approx(
        np.log(series.prices[origin, 3] / series.prices[origin - 1, 3]) / volatility, rel=1e-5
    )
    third = np.log(series.prices[origin + 3, 3] / series.prices[origin, 3])
    assert y[5, 2, 3].item() == pytest.approx(third / (volatility * np.sqrt(3)), rel=1e-5)


@pytest.mark.parametrize("architecture", ["transformer", "gru", "lstm"])
def test_every_naive_model_learns_and_decodes_without_the_truth(series, architecture):
    history = naive.train_one(series, architecture, epochs=2, seed=1, device="cpu", recipe=SMALL)
    assert history[1]["train_loss"] < history[0]["train_loss"]
    assert np.isfinite(history[1]["val_loss"])


@pytest.mark.parametrize("architecture", ["transformer", "gru", "lstm"])
@pytest.mark.parametrize("forced", [True, False])
def test_the_competent_model_is_the_usual_one(architecture, forced, monkeypatch):
    """The same weights, the same outputs: with the truth fed at every step, and with none."""
    monkeypatch.setattr(naive.random, "random", lambda: 0.0)
    usual, competent = (naive.build(architecture, SMALL, way).eval() for way in (False, True))
    competent.load_state_dict(usual.state_dict())
    x, y = torch.randn(3, 30, 4), torch.randn(3, 10, 4)
    truth = y if forced else None
    torch.testing.assert_close(usual(x, truth), competent(x, truth), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("way", naive.WAYS)
def test_every_way_learns(series, way):
    history = naive.train_one(series, "gru", epochs=2, seed=1, device="cpu", recipe=SMALL, **naive.WAYS[way])
    assert history[1]["train_loss"] < history[0]["train_loss"]
    assert np.isfinite(history[1]["val_loss"])


def test_recipes_are_those_of_the_seed_presets():
    for architecture, recipe in naive.RECIPES.items():
        options = preset(f"seed-{architecture}", architecture)
        assert (recipe.width, recipe.layers) == (options.hidden_dim, options.n_layers)
        assert (recipe.batch, recipe.dropout) == (options.batch_size, options.dropout)
        assert recipe.weight_decay == options.weight_decay
        assert recipe.adamw == (options.optimizer == "adamw")


def test_ten_passes_equal_one_parallel_causal_pass():
    torch.manual_seed(0)
    model = naive.build("transformer", SMALL).eval()
    x, y = torch.randn(3, 30, 4), torch.randn(3, 10, 4)
    fed = torch.cat([x[:, -1:, :4], y[:, :-1]], 1)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(10)
    memory = model.encoder(model.embed_in(x) + model.position[:30])
    parallel = model.out(model.decoder(model.embed_out(fed) + model.position[30:], memory, tgt_mask=mask))
    torch.testing.assert_close(model(x, y), parallel, atol=1e-5, rtol=1e-4)
