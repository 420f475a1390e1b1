"""The check of the kernels on the device, in Triton's interpreter: right kernels pass, wrong ones do not.

Masks and signs are made wrong in check_interpreted_presets.py.
"""

import pytest

from cpbmodels.arch.presets import preset
from cpbmodels.fleet import kernel_check
from tests.tools import triton_bf16, wrong_kernels
from tests.tools.gpu_on_cpu import gpu_path

TINY = preset("seed-gru", "gru", hidden_dim=16, n_layers=1, context=3, horizon=1, batch_size=16)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    triton_bf16.mend(monkeypatch)


# numpy's, of the neighbour's NaN, and of the row that must not take a step
@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN slice", "ignore:divide by zero")
@pytest.mark.parametrize("wrong", [(), wrong_kernels.HELD, wrong_kernels.NEIGHBOUR])
def test_the_verdict_names_what_is_wrong_and_is_kept(wrong, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_check, "compile_ahead", lambda step: 0)  # the interpreter compiles nothing
    monkeypatch.setattr(kernel_check, "_verdicts", {})
    if wrong:
        wrong_kernels.make_wrong(monkeypatch, tmp_path, "gru", wrong)
    with gpu_path():
        verdict = kernel_check.fault("gru", TINY, wrong_kernels.CPU, wrong_kernels.BF16)
    assert verdict.startswith("wrong on this chip: ") is bool(wrong)
    if wrong == wrong_kernels.HELD:
        assert "update" in verdict
    if wrong == wrong_kernels.NEIGHBOUR:
        assert verdict.endswith("other bits with a neighbour of NaN")
    assert [path.read_text() for path in tmp_path.glob("cpb-*.txt")] == [verdict]
