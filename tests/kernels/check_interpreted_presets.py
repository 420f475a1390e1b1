"""The check of the kernels on the presets: right kernels pass, wrong ones do not.

Interpreted, a preset's own 40 candles and 8 heads take minutes, so these are as few as keep its code paths: a context
that is no power of 2 (masked shares of the attention), a decoder's first and later step, both layers with dropout
between, several heads, and a width of two tiles of a product (`cells.DEPTH`), at which a GRU's layer is still one
launch. The lstm's 256 columns are four such tiles; at the presets' own sizes check_compiled.py compiles all kernels.
"""

import pytest

from cpbmodels.arch.presets import preset
from cpbmodels.fleet import kernel_check
from tests.tools import triton_bf16, wrong_kernels

FEW = {"batch_size": 16, "context": 3, "horizon": 2, "hidden_dim": 128, "n_heads": 2, "ff_dim": 64}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    triton_bf16.mend(monkeypatch)


@pytest.mark.parametrize("name", ["seed-transformer", "seed-gru-tuned", "seed-lstm"])  # tuned: five columns
def test_right_kernels_pass(name):
    architecture = name.split("-")[1]
    assert not wrong_kernels.found_wrong(architecture, preset(name, architecture, **FEW))


@pytest.mark.parametrize("what", [wrong_kernels.MASK, wrong_kernels.SIGN])
@pytest.mark.parametrize("architecture", ["transformer", "gru", "lstm"])
def test_a_wrong_kernel_does_not(architecture, what, monkeypatch, tmp_path):
    monkeypatch.setattr(kernel_check, "MEMBERS", 1)  # a third of the time
    wrong_kernels.make_wrong(monkeypatch, tmp_path, architecture, what)
    assert wrong_kernels.found_wrong(architecture, preset(f"seed-{architecture}", architecture, **FEW))
