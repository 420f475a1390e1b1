"""When a fleet uses the kernels, and what it says where it does not."""

import types

import pytest
import torch

from cpbmodels.arch import find
from cpbmodels.arch.presets import preset
from cpbmodels.kernels import support

GPU = torch.device("cuda")


@pytest.fixture
def chip(monkeypatch):
    """An H100, as far as the switch asks."""
    found = types.SimpleNamespace(capability=(9, 0), shared=232_448)
    monkeypatch.setattr(support, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: found.capability)
    monkeypatch.setattr(support, "shared_bytes", lambda _: found.shared)
    monkeypatch.setattr(support, "driver_fault", lambda: "")
    return found


def _reason(architecture="transformer", device=GPU, compute=torch.bfloat16, wanted=True, **options):
    return support.off_reason(
        find(architecture), preset(f"seed-{architecture}", architecture, **options), device, compute, wanted
    )


def test_they_are_on_where_everything_is_there(chip):
    assert support.described(_reason()) == "on"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"device": torch.device("cpu")}, "NVIDIA GPU, not cpu"),
        ({"wanted": False}, "kernels=false"),
        ({"compute": torch.float32}, "float32, not bf16"),
        ({"compute": torch.float64}, "float64, not bf16"),
        ({"batch_size": 40}, "40 windows a member and step"),
        ({"batch_size": 32, "accumulate": 4}, "8 windows a member and step"),
        ({"head": "student-t"}, "head point, not student-t"),
    ],
)
def test_else_the_reason_is_named(chip, changed, words):
    assert words in support.described(_reason(**changed))


def test_an_older_chip_keeps_torchs_path(chip):
    chip.capability = (7, 5)
    assert "8.0 or newer" in _reason()


def test_a_chip_with_little_shared_memory_keeps_torchs_path(chip):
    chip.shared = 65_536
    assert "65,536 bytes" in _reason()


def test_without_triton_torchs_path_is_taken(chip, monkeypatch):
    monkeypatch.setattr(support, "find_spec", lambda _: None)
    assert "triton is not installed" in _reason()


def test_an_architecture_without_kernels_keeps_torchs_path(chip):
    assert "has none" in support.off_reason(
        find("classifier-gru"), preset("seed-gru", "gru"), GPU, torch.bfloat16
    )


def test_a_machine_on_which_triton_cannot_build_its_driver_keeps_torchs_path(chip, monkeypatch):
    monkeypatch.setattr(support, "driver_fault", lambda: "triton cannot compile here: no C compiler")
    assert support.described(_reason()) == "off (triton cannot compile here: no C compiler)"


def test_a_fault_of_tritons_driver_is_named_and_raises_nothing():
    assert torch.cuda.is_available() or support.driver_fault.__wrapped__().startswith(
        "triton cannot compile here"
    )


def test_a_subclass_keeps_torchs_path(chip):
    class Other(find("gru")):
        """Computes something else."""

    options = preset("seed-gru", "gru")
    assert "subclass" in support.off_reason(Other, options, GPU, torch.bfloat16)
