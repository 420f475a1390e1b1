"""The check of the kernels at the presets' shapes, with 16 windows a batch: right kernels pass, wrong ones do not."""

import bf16
import mutants
import pytest

from cpbmodels.arch.presets import preset
from cpbmodels.kernels import check


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    bf16.mend(monkeypatch)


@pytest.mark.parametrize("architecture", ["transformer", "gru", "lstm"])
def test_right_kernels_pass(architecture):
    assert not mutants.found_wrong(architecture, preset(f"seed-{architecture}", architecture, batch_size=16))


@pytest.mark.parametrize("what", [mutants.MASK, mutants.SIGN])
@pytest.mark.parametrize("kind", ["", "-tuned"])
@pytest.mark.parametrize("architecture", ["transformer", "gru", "lstm"])
def test_a_wrong_kernel_does_not(architecture, kind, what, monkeypatch, tmp_path):
    monkeypatch.setattr(check, "MEMBERS", 1)  # a third of the time
    mutants.make_wrong(monkeypatch, tmp_path, architecture, what)
    assert mutants.found_wrong(
        architecture, preset(f"seed-{architecture}{kind}", architecture, batch_size=16)
    )
