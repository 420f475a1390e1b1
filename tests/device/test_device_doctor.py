"""What `cpb doctor` finds on machines with and without a GPU, a driver and a torch that fit, and how it says so."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from cpbmodels import architecture, architectures, preset
from cpbmodels.device import doctor, monitor, steps
from cpbmodels.errors import ModelError
from flows.cli.data import doctor as command

CPU = torch.device("cpu")
GPU_WITH_DRIVER = doctor.GpuEvidence(("GPU 0: NVIDIA H200",), "580.159.03")
TINY = {"hidden_dim": 8, "n_heads": 2, "batch_size": 4, "dropout": 0.0}
# Without those in closed form; an average has no step of its own: its members are trained.
TRAINED = [name for name in architectures() if not architecture(name).closed_form and name != "average"]


def cuda_build(monkeypatch, cuda, *, available=False):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without any trace of a GPU; tests add the traces."""
    monkeypatch.setattr(monitor, "PROC_DRIVER", tmp_path / "version")
    monkeypatch.setattr(doctor, "PCI_DEVICES", tmp_path / "pci")
    monkeypatch.setattr(monitor, "nvidia_smi", lambda *arguments: "")
    return tmp_path


def test_signs_of_a_gpu(machine, monkeypatch):
    assert doctor.gpu_evidence() == doctor.GpuEvidence((), None)
    for name, vendor, kind in (("01", "0x10de", "0x030200"), ("02", "0x1002", "0x030000")):
        (machine / "pci" / name).mkdir(parents=True)
        (machine / "pci" / name / "vendor").write_text(vendor + "\n")
        (machine / "pci" / name / "class").write_text(kind + "\n")
    assert doctor.gpu_evidence() == doctor.GpuEvidence(("PCI device 01",), None)
    answers = {"--query-gpu=driver_version": "535.104.05\n535.104.05"}
    monkeypatch.setattr(monitor, "nvidia_smi", lambda *arguments: answers[arguments[0]])
    signs = ("driver 535.104.05 is loaded", "PCI device 01")
    assert doctor.gpu_evidence() == doctor.GpuEvidence(signs, "535.104.05")
    (machine / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC version: 13\n"
    )
    signs = ("driver 580.159.03 is loaded", "PCI device 01")
    assert doctor.gpu_evidence() == doctor.GpuEvidence(signs, "580.159.03")


TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)."


@pytest.mark.parametrize(
    ("evidence", "cuda", "what", "remedy"),
    [
        (GPU_WITH_DRIVER, None, "is a CPU-only build", "CUDA build for driver 580.159.03"),
        (
            doctor.GpuEvidence(("PCI device 0000:01:00.0",), None),
            "13.0",
            "no NVIDIA driver",
            "install the driver",
        ),
        (GPU_WITH_DRIVER, "13.0", f"CUDA does not start: {TOO_OLD}", "update the driver"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_a_problem_with_its_reason(evidence, cuda, what, remedy, monkeypatch):
    def fail():
        raise RuntimeError(f"{TOO_OLD}\nPlease update")

    cuda_build(monkeypatch, cuda)
    monkeypatch.setattr(torch.cuda, "init", fail)
    problems, notes = doctor.software_findings(evidence)
    assert (what in problems[0].what, remedy in problems[0].remedy, notes) == (True, True, [])


def test_a_hidden_gpu_is_the_users_choice(monkeypatch):
    cuda_build(monkeypatch, "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    problems, notes = doctor.software_findings(GPU_WITH_DRIVER)
    assert problems == []
    assert "hides it" in notes[0]


def test_no_memory_is_a_problem():
    assert doctor.memory_findings(16_000, {0: 20_000}) == []
    assert "cuda:1" in doctor.memory_findings(16_000, {0: 20_000, 1: 90})[0].what
    assert "RAM" in doctor.memory_findings(100, {})[0].what
    assert doctor.memory_findings(0, {}) == []  # unknown is not zero


@pytest.mark.parametrize(
    ("gigabytes", "profile"),
    [(4, "gpu-6gb"), (6.2, "gpu-6gb"), (15.8, "gpu-16gb"), (42, "gpu-16gb"), (85, "gpu-80gb")],
)
def test_profile_by_memory(gigabytes, profile):
    assert doctor.profile_for(gigabytes * 1e9) == profile


def test_too_little_history_for_a_batch_is_one_sentence():
    with pytest.raises(ModelError, match="less than one batch"):
        steps.fleet_step("gru", preset("seed-gru", "gru", batch_size=5000), 1, CPU)


@pytest.fixture
def small(monkeypatch, machine):
    """No GPU, a CPU build of torch, and steps of a small size."""
    cuda_build(monkeypatch, None)
    monkeypatch.setattr(doctor, "seed_size", lambda name: preset("default", name, **TINY))


def test_without_a_gpu_the_report_is_one_screen(small):
    diagnosis = doctor.examine()
    assert (diagnosis.exit_code, diagnosis.profile) == (0, "cpu")
    facts = json.loads(json.dumps(diagnosis.as_dict()))
    assert facts["ok"] is True
    assert list(facts["steps"]) == TRAINED
    for row in facts["steps"].values():
        assert row["windows_per_s"] == pytest.approx(4 / (row["step_ms"] / 1e3))
        assert row["kernels"] == "off (they need an NVIDIA GPU, not cpu)"
    text = "\n".join(doctor.lines(diagnosis)).splitlines()
    assert max(map(len, text)) <= 80
    assert len(text) <= 24
    assert "note: no GPU on this machine: everything runs on the CPU" in text
    assert "  kernels off (all): they need an NVIDIA GPU, not cpu" in text


def on_gpu(**changed):
    row = {
        "members": 40, "batch": 64, "step_ms": 5.8, "windows_per_s": 441_000.0, "kernels": "on",
        "gpu_mem_peak_mb": 812.0, "gpu_busy": 0.94, "longest_kernels": ["_gru_layer_backward", "_gru_layer"],
    }  # fmt: skip
    return row | changed


def test_a_gpu_says_what_ran_there_and_why_kernels_are_off(monkeypatch):
    rows = {name: on_gpu() for name in TRAINED} | {"har": on_gpu(kernels="off (products are in float32)")}
    monkeypatch.setattr(doctor, "time_one", lambda name, device: rows[name])
    diagnosis = doctor.Diagnosis("cuda:0", "gpu-80gb", {"python": "3.11.7", "driver": "580.159.03"})
    memory = {"memory_total_mb": 81_000.0, "memory_free_mb": 80_000.0}
    diagnosis.facts |= {
        "torch": {"version": "2.13.0+cu130", "cuda": "13.0"},
        "cpu": {"model": "AMD EPYC", "cores": 16, "bf16": True, **memory},
        "gpus": [{"index": 0, "name": "NVIDIA H100 80GB HBM3", "capability": "9.0", **memory}],
    }
    doctor._time_steps(diagnosis, torch.device("cuda", 0))
    text = "\n".join(doctor.lines(diagnosis)).splitlines()
    assert "  gru                   40    64     5.80     441000     812   94%  on" in text
    assert "  gru ran _gru_layer_backward, _gru_layer" in text
    assert "  kernels off (har): products are in float32" in text
    assert len(text) <= 30
    assert max(map(len, text)) <= 80
    assert diagnosis.problems == []


def test_a_step_that_fails_is_a_problem_and_missing_cupti_a_note(monkeypatch):
    def timed(name, device):
        if name == "gru":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nat line 3")
        return on_gpu(longest_kernels=[], gpu_busy=None)

    monkeypatch.setattr(doctor, "time_one", timed)
    diagnosis = doctor.Diagnosis("cuda:0", "gpu-6gb")
    doctor._time_steps(diagnosis, torch.device("cuda", 0))
    assert [problem.what for problem in diagnosis.problems] == [
        "a training step of gru failed on cuda:0: CUDA error: an illegal memory access was encountered",
    ]
    assert "CUPTI" in diagnosis.notes[0]


def test_a_gpu_on_which_cuda_fails_is_a_problem(machine, monkeypatch):
    cuda_build(monkeypatch, "13.0", available=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def busy(index):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with …")

    monkeypatch.setattr(torch.cuda, "get_device_properties", busy)
    diagnosis = doctor.examine(steps=False)
    assert (diagnosis.device, diagnosis.exit_code) == ("cpu", 1)
    assert diagnosis.problems[0].what.endswith(
        "GPU: CUDA error: all CUDA-capable devices are busy or unavailable"
    )


@pytest.fixture
def cpb():
    app = typer.Typer()
    app.command("doctor")(command)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_a_problem_is_exit_code_1_with_its_remedy_for_people_and_machines(cpb, small, monkeypatch):
    monkeypatch.setattr(doctor, "gpu_evidence", lambda: GPU_WITH_DRIVER)
    result = cpb("--quick", "--json")
    facts = json.loads(result.stdout)  # nothing else is printed there
    assert {"ok", "torch", "driver", "cpu", "gpus", "profile", "problems", "notes"} <= set(facts)
    assert "steps" not in facts
    assert result.exit_code == 1
    assert facts["problems"][0]["remedy"].startswith("install torch's CUDA build")
    result = cpb("--quick")
    assert result.exit_code == 1
    assert "PROBLEM: this machine has a GPU (GPU 0: NVIDIA H200) but torch" in result.stdout
    assert "  remedy: install torch's CUDA build" in result.stdout
