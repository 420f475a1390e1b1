import json
import time

import pytest
import torch

from benchmarks import gpu
from cpbmodels.fleet.fleet import Fleet


@pytest.mark.slow  # ten seconds: each part of the benchmark, which other tests try one by one
def test_the_gpu_benchmark_runs_whole_on_a_cpu(tmp_path, capsys):
    out = tmp_path / "gpu.json"
    assert gpu.right(gpu.main(["--device", "cpu", "--tiny", "--members", "2", "--out", str(out)]))
    results = json.loads(out.read_text())
    assert set(results) - {"seconds"} == {"machine", "gradients", "correctness", "kernels", "jobs", "naive"}
    for name in gpu.JOBS:
        assert results["correctness"][name]["ok"]
        assert results["kernels"][name]["expected"] > 100
        assert results["jobs"][name]["measured_epochs"] == 2
        assert results["jobs"][name]["windows_per_s"] > 0
        assert results["naive"][name]["competent bf16"] > 0
    assert out.with_suffix(".md").read_text().strip() == capsys.readouterr().out.strip()


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_part_that_fails_is_recorded_and_the_others_run(tmp_path):
    report = gpu.Report(str(tmp_path / "gpu.json"), budget_s=100)
    report.run("kernels", "gru", 9, lambda: 1 / 0)
    report.run("kernels", "lstm", 9, lambda: {"launches": 5})
    report.run("kernels", "transformer", 0.2, lambda: time.sleep(9))
    report.run("jobs", "lstm", 1000, lambda: {"fleet_s": 1.0})
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert "ZeroDivisionError" in kept["kernels"]["gru"]["error"]
    assert kept["kernels"]["lstm"] == {"launches": 5}
    assert "took longer" in kept["kernels"]["transformer"]["error"]
    assert "needed" in kept["jobs"]["lstm"]["skipped"]
    assert not gpu.right(kept)


@pytest.mark.slow  # twenty seconds
def test_an_early_stop_that_rounding_turns_is_no_distance():
    """Without dropout the third member of the transformer stops after 3 epochs in float64 and after 4 in bf16."""
    row = gpu.correctness("cpu", "transformer")
    assert row["ok"]
    assert 0 < row["kernels_off"] < gpu.CLOSE


def test_a_wrong_result_is_called_wrong(monkeypatch):
    """Weights that differ by one part in ten thousand after the first step must be seen in float64."""
    step = Fleet.step

    def off(self, *rest, **named):
        step(self, *rest, **named)
        if self.net.options.cuda_graph is False:  # the run that stands for the device
            self.flat.mul_(1.0001)

    monkeypatch.setattr(Fleet, "step", off)
    row = gpu.correctness("cpu", "gru", tiny=True)
    assert row["float64"] > gpu.EXACT
    assert not row["ok"]


def test_a_wrong_gradient_is_called_wrong(monkeypatch):
    args = gpu._parse(["--device", "cpu", "--tiny", "--only", "gru"])
    row = gpu.gradients(args, "gru")
    assert row["ok"]
    assert 0 < row["torch_gradient"] < 0.01
    backward = Fleet.backward

    def off(self, *rest):
        gradient = backward(self, *rest)
        return gradient * 1.05 if self.flat.dtype == torch.float32 else gradient

    monkeypatch.setattr(Fleet, "backward", off)
    assert not gpu.gradients(args, "gru")["ok"]


def test_without_a_gpu_the_default_device_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "--device cpu --tiny" in capsys.readouterr().err
