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


@pytest.mark.parametrize("way", naive.WAYS)
@pytest.mark.parametrize("architecture", naive.RECIPES)
def test_every_model_learns_and_decodes_without_the_truth(series, architecture, way):
    how = naive.WAYS[way]
    history = naive.train_one(series, architecture, epochs=2, seed=1, device="cpu", recipe=SMALL, **how)
    assert history[1]["train_loss"] < history[0]["train_loss"]
    assert np.isfinite(history[1]["val_loss"])


def test_recipes_are_those_of_the_seed_presets():
    for architecture, recipe in naive.RECIPES.items():
        options = preset(f"seed-{architecture}", architecture)
        assert (recipe.width, recipe.layers) == (options.hidden_dim, options.n_layers)
        assert (recipe.batch, recipe.dropout) == (options.batch_size, options.dropout)
        assert recipe.weight_decay == options.weight_decay
        assert recipe.adamw == (options.optimizer == "adamw")


def test_projected_once_is_torchs_own_attention():
    attention, query, memory = naive.MultiHead(8, 2), torch.randn(3, 1, 8), torch.randn(3, 30, 8)
    of_torch = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    of_torch.in_proj_weight.data = torch.cat([attention.query.weight, attention.pair.weight])
    of_torch.in_proj_bias.data = torch.cat([attention.query.bias, attention.pair.bias])
    of_torch.out_proj.load_state_dict(attention.out.state_dict())
    expected, _ = of_torch(query, memory, memory)
    torch.testing.assert_close(attention(query, attention.project(memory)), expected, atol=1e-5, rtol=1e-4)
