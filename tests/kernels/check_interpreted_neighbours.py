"""The kernels of gru and lstm in Triton's interpreter: a member sees no neighbour, and a repeat has the same bits."""

import pytest
import torch
from fleets import SmallFleet

from cpbmodels.kernels import recurrent

SMALL = {"hidden_dim": 16, "n_heads": 4, "horizon": 2, "context": 4}
LAYERS = {"whole": 232_448, "steps": 101_376}  # shared memory, by which the gru's layer is chosen


@pytest.fixture(params=LAYERS)
def layer(request, monkeypatch):
    monkeypatch.setattr(recurrent, "shared_bytes", lambda _: LAYERS[request.param])


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's, of the neighbour
@pytest.mark.parametrize(
    ("layer", "architecture"), [("whole", "gru"), ("steps", "gru"), ("whole", "lstm")], indirect=["layer"]
)
def test_a_member_depends_on_no_neighbour(layer, architecture):
    options = {"kernels": True, "dropout": 0.3, **SMALL}
    alone, beside = (
        SmallFleet(architecture, torch.float32, members=members, **options) for members in (2, 3)
    )
    beside.fleet.flat[2] = torch.nan  # a kernel that reads a neighbour's values spreads it
    (losses, gradients), (others, wanted) = alone.gradients(), beside.gradients()
    assert torch.equal(losses, others[:2])
    assert bool(others[2].isnan())
    for name, gradient in gradients.items():
        assert torch.equal(gradient, wanted[name][:2]), name
    assert torch.equal(alone.validation(13), beside.validation(13)[:2])


@pytest.mark.parametrize("architecture", ["gru", "lstm"])
def test_a_repeat_has_the_same_bits(architecture):
    options = {"kernels": True, "dropout": 0.3, **SMALL}
    both = (SmallFleet(architecture, torch.float32, **options) for _ in range(2))
    (losses, gradients), (again, twice) = (small.gradients() for small in both)
    assert torch.equal(losses, again)
    assert all(torch.equal(gradient, twice[name]) for name, gradient in gradients.items())
