import json

import pytest

from benchmarks import gpu
from benchmarks._flops import flops_per_window


@pytest.mark.parametrize(
    "names",
    [["lstm"], pytest.param(["transformer", "gru", "lstm"], marks=pytest.mark.slow)],
)
def test_the_gpu_benchmark_runs_whole_on_a_cpu(names, tmp_path, capsys):
    out = tmp_path / "gpu.json"
    only = [word for name in names for word in ("--only", name)]
    gpu.main(["--device", "cpu", "--tiny", "--members", "2", "--out", str(out), *only])
    results = json.loads(out.read_text())
    assert set(results["jobs"]) == set(names)
    for name, row in results["jobs"].items():
        assert results["correctness"][name]["ok"], name
        assert row["ratio"] == pytest.approx(row["naive_s"] / row["fleet_s"])
        assert row["windows_per_s"] > 0
    assert "| lstm |" in capsys.readouterr().out


def test_without_a_gpu_the_default_device_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "--device cpu --tiny" in capsys.readouterr().err


def test_operations_are_counted_not_guessed():
    """A transformer of width d costs 6 operations per weight and token; the count must lie beside that."""
    small = flops_per_window("transformer", hidden_dim=16, n_heads=2, ff_dim=64)
    large = flops_per_window("transformer", hidden_dim=32, n_heads=2, ff_dim=128)
    assert 3 < large / small < 4
    assert flops_per_window("lstm", hidden_dim=16, n_heads=2) > 0
