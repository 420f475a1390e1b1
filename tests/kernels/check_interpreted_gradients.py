"""The kernels in Triton's interpreter: a step's gradients are those of float64 autograd, a member sees no neighbour."""

import pytest
import torch

from cpbmodels.kernels import recurrent
from tests.tools.small_fleets import SmallFleet, difference, largest_difference

SMALL = {"hidden_dim": 16, "n_heads": 4, "horizon": 2, "context": 4}
CLOSE = 2e-6  # float32 against float64, relative to the whole; torch's own float32 is as far off
LAYERS = {"whole": 232_448, "steps": 101_376}  # shared memory, by which the gru's layer is chosen


@pytest.fixture
def layer(request, monkeypatch):
    monkeypatch.setattr(recurrent, "shared_bytes", lambda _: LAYERS[request.param])


def _compare(architecture, **options):
    exact, wanted = SmallFleet(architecture, torch.float64, **options).gradients()
    losses, computed = SmallFleet(architecture, torch.float32, kernels=True, **options).gradients()
    assert difference(losses, exact) < CLOSE
    name, off = largest_difference(computed, wanted)
    assert off < CLOSE, name


@pytest.mark.parametrize(
    ("layer", "forcing"), [("whole", 0.4), ("steps", 0.0), ("steps", 0.4), ("steps", 1.0)], indirect=["layer"]
)
def test_gradients_of_the_gru(layer, forcing):
    _compare("gru", dropout=0.3, teacher_forcing=forcing)


@pytest.mark.parametrize("forcing", [0.0, 0.4])
def test_gradients_of_the_lstm(forcing):
    _compare("lstm", dropout=0.3, teacher_forcing=forcing)


@pytest.mark.parametrize("architecture", ["gru", "lstm"])
@pytest.mark.parametrize(
    "size", [{"n_layers": 3}, {"n_layers": 1, "batch_size": 48}, {"n_layers": 1, "batch_size": 32}]
)
def test_gradients_at_other_sizes(architecture, size):
    _compare(architecture, dropout=0.0, **SMALL, **size)


def test_gradients_of_the_transformer():
    _compare("transformer", batch_size=3)  # windows: a program runs for seconds here


@pytest.mark.parametrize(
    ("architecture", "windows", "forcing"),
    [("gru", 1, 0.5), ("gru", 13, 0.5), ("lstm", 13, 0.5), ("transformer", 5, 1.0), ("transformer", 5, 0.0)],
)
def test_validation_of_any_number_of_windows(architecture, windows, forcing):
    exact, computed = (
        SmallFleet(architecture, dtype, kernels=dtype == torch.float32, teacher_forcing=forcing)
        for dtype in (torch.float64, torch.float32)
    )
    assert difference(computed.validation(windows), exact.validation(windows)) < CLOSE


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN slice")  # numpy's, of the neighbour's NaN
@pytest.mark.parametrize(
    ("layer", "architecture"),
    [("whole", "gru"), ("steps", "gru"), ("whole", "lstm"), ("whole", "transformer")],
    indirect=["layer"],
)
def test_a_member_depends_on_no_neighbour(layer, architecture):
    few = {"dropout": 0.0, "batch_size": 3} if architecture == "transformer" else {"dropout": 0.3}
    options = {"kernels": True, **few, **SMALL}
    alone, beside = (
        SmallFleet(architecture, torch.float32, members=members, **options) for members in (2, 3)
    )
    beside.fleet.flat[2] = torch.nan  # a kernel that reads a neighbour's values spreads it
    (losses, gradients), (others, wanted) = alone.gradients(), beside.gradients()
    assert torch.equal(losses, others[:2])
    assert bool(others[2].isnan())
    for name, gradient in gradients.items():
        assert torch.equal(gradient, wanted[name][:2]), name
    windows = min(13, alone.origins.shape[1])
    assert torch.equal(alone.validation(windows), beside.validation(windows)[:2])


@pytest.mark.parametrize("architecture", ["gru", "lstm"])
def test_a_repeat_has_the_same_bits(architecture):
    options = {"kernels": True, "dropout": 0.3, **SMALL}
    both = (SmallFleet(architecture, torch.float32, **options) for _ in range(2))
    (losses, gradients), (again, twice) = (small.gradients() for small in both)
    assert torch.equal(losses, again)
    assert all(torch.equal(gradient, twice[name]) for name, gradient in gradients.items())
