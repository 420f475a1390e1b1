"""When a fleet uses the kernels, and what it says where it does not."""

import types

import pytest
import torch

from cpbmodels.arch import find
from cpbmodels.arch.presets import preset
from cpbmodels.fleet import kernel_check, kernel_switch
from cpbmodels.fleet.graphs import Graphs
from cpbmodels.kernels import support
from tests.tools.small_fleets import SmallFleet

GPU = torch.device("cuda")


@pytest.fixture
def chip(monkeypatch):
    """An H100, as far as the switch asks."""
    gpu = types.SimpleNamespace(capability=(9, 0), shared=232_448, triton=object(), driver="", wrong="")
    monkeypatch.setattr(kernel_switch, "find_spec", lambda _: gpu.triton)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: gpu.capability)
    monkeypatch.setattr(kernel_switch, "shared_bytes", lambda _: gpu.shared)
    monkeypatch.setattr(kernel_switch, "driver_fault", lambda: gpu.driver)
    monkeypatch.setattr(kernel_check, "fault", lambda *_: gpu.wrong)
    return gpu


def _reason(architecture="transformer", device=GPU, compute=torch.bfloat16, wanted=True, **options):
    return kernel_check.kernels_off(
        architecture, preset(f"seed-{architecture}", architecture, **options), device, compute, wanted=wanted
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"device": torch.device("cpu")}, "NVIDIA GPU, not cpu"),
        ({"wanted": False}, "kernels=false"),
        ({"wanted": "a launch failed"}, "off (a launch failed)"),
        ({"compute": torch.float32}, "float32, not bf16"),
        ({"compute": torch.float64}, "float64, not bf16"),
        ({"batch_size": 40}, "40 windows a member and step"),
        ({"batch_size": 32, "accumulate": 4}, "8 windows a member and step"),
        ({"head": "student-t"}, "head point, not student-t"),
    ],
)
def test_they_are_on_or_the_reason_is_named(chip, changed, words):
    assert kernel_switch.described(_reason()) == "on"
    assert words in kernel_switch.described(_reason(**changed))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"capability": (7, 5)}, "8.0 or newer"),
        ({"shared": 65_536}, "65,536 bytes"),
        ({"triton": None}, "triton is not installed"),
        (
            {"driver": "triton cannot compile here: no C compiler"},
            "off (triton cannot compile here: no C compiler)",
        ),
        ({"wrong": "wrong on this chip: gradient 1e-1 off"}, "off (wrong on this chip: gradient 1e-1 off)"),
    ],
)
def test_a_machine_that_cannot_run_them_keeps_torchs_path(chip, changed, words):
    vars(chip).update(changed)
    assert words in kernel_switch.described(_reason())


def test_an_architecture_without_kernels_or_a_subclass_keeps_torchs_path(chip, monkeypatch):
    assert "has none" in kernel_check.kernels_off(
        "classifier-gru", preset("seed-gru", "gru"), GPU, torch.bfloat16
    )

    class Other(find("gru")):
        """Computes something else."""

    monkeypatch.setattr(kernel_check, "find", lambda name: Other)
    assert "subclass" in _reason("gru")


@pytest.mark.parametrize("error", [RuntimeError("out of resource: shared memory"), None])
def test_the_check_is_asked_once_and_a_kernel_that_does_not_run_is_a_reason(monkeypatch, tmp_path, error):
    asked = []

    def compare(*_):
        asked.append(1)
        if error:
            raise error
        return dict.fromkeys(("torch_gradient", "gradient", "loss", "validation", "update"), 1e-5)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for name, value in {"compile_ahead": lambda _: 0, "compare": compare, "same_bits": lambda *_: {}}.items():
        monkeypatch.setattr(kernel_check, name, value)
    for _ in range(2):
        monkeypatch.setattr(kernel_check, "_verdicts", {})  # as another process
        verdict = kernel_check.fault("gru", preset("seed-gru", "gru"), torch.device("cpu"), torch.bfloat16)
        assert verdict == ("they do not run here: out of resource: shared memory" if error else "")
    assert len(asked) == (2 if error else 1)  # an error may pass, a verdict is kept
    other = preset("seed-gru", "gru", hidden_dim=64)
    assert (
        kernel_check._key("gru", other, torch.device("cpu"), torch.bfloat16)
        not in next(tmp_path.iterdir(), tmp_path).name
    )


def test_kernels_are_compiled_and_loaded_ahead_each_variant_once():
    built = []

    class Compiled:
        @property
        def run(self):
            built.append("loaded")

    class Kernel:
        def warmup(self, *args, grid, **constants):
            return Compiled()

    def step():
        for rows, warps in ((1, 4), (2, 4), (1, 8)):
            support.launch(kernel, (1,), torch.zeros(8), rows, num_warps=warps)

    kernel = Kernel()
    assert support.compile_ahead(step) == len(built) == 2


def test_the_check_sees_what_a_graph_has_computed(monkeypatch):
    class OnACpu(Graphs):
        def eager(self, work):
            work()

        def capture(self, work):
            work()
            return types.SimpleNamespace(replay=lambda: None)

    options = preset("seed-gru", "gru", hidden_dim=16, batch_size=16)
    step = kernel_check._trial(
        "gru", options, torch.device("cpu"), torch.float32, torch.float32, kernels=False
    )
    monkeypatch.setattr(kernel_check, "Graphs", OnACpu)
    assert kernel_check._equal(kernel_check._replayed(step, torch.device("cpu")), kernel_check._pass(step))


def test_limits_follow_their_members_when_rows_are_reordered():
    fleet = SmallFleet("gru", torch.float32, members=3).fleet
    fleet.differing = {"clip": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)}
    fleet.nets.clear()
    limits = fleet.prefix(3).limits[0]
    kept = limits.data_ptr()
    assert limits.tolist() == [1.0, 2.0, 3.0]
    fleet.reorder(torch.tensor([2, 0, 1]))
    assert fleet.prefix(3).limits[0].tolist() == [3.0, 1.0, 2.0]
    assert fleet.prefix(3).limits[0].data_ptr() == kept  # a captured graph holds the address
