import json

import pytest
import torch

from cpbmodels import architecture, architectures, preset
from cpbmodels.device import doctor, host, placement, probe, steps
from cpbmodels.device.report import lines

CPU = torch.device("cpu")
GPU_WITH_DRIVER = host.GpuEvidence(("GPU 0: NVIDIA H200",), "580.159.03")


def cuda_build(monkeypatch, cuda, *, available=False):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)


def test_cpu_only_torch_beside_a_gpu_is_a_problem_with_the_right_wheel(monkeypatch):
    cuda_build(monkeypatch, None)
    problems, _ = doctor.software_findings(GPU_WITH_DRIVER)
    assert "CPU-only build" in problems[0].what
    assert "cu130" in problems[0].remedy
    older = host.GpuEvidence(("GPU 0: Tesla T4",), "535.104.05")
    assert "cu126" in doctor.software_findings(older)[0][0].remedy


def test_a_gpu_without_driver_and_a_driver_too_old_are_problems(monkeypatch):
    cuda_build(monkeypatch, "13.0")
    bare = host.GpuEvidence(("PCI device 0000:01:00.0",), None)
    assert "install the driver" in doctor.software_findings(bare)[0][0].remedy
    old = host.GpuEvidence(("GPU 0: Tesla T4",), "535.104.05")
    assert "too old" in doctor.software_findings(old)[0][0].what


def test_a_hidden_gpu_is_the_users_choice_but_a_dead_one_a_problem(monkeypatch):
    cuda_build(monkeypatch, "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    problems, notes = doctor.software_findings(GPU_WITH_DRIVER)
    assert problems == []
    assert "hides it" in notes[0]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    problems, _ = doctor.software_findings(GPU_WITH_DRIVER)
    assert "CUDA does not start" in problems[0].what


def test_a_machine_without_gpu_is_fine(monkeypatch):
    cuda_build(monkeypatch, None)
    problems, notes = doctor.software_findings(host.GpuEvidence((), None))
    assert problems == []
    assert "CPU" in notes[0]


def test_a_chip_without_machine_code_is_a_problem(monkeypatch):
    cuda_build(monkeypatch, "13.0", available=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "GTX 1060")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90", "compute_90"])
    problems, _ = doctor.software_findings(GPU_WITH_DRIVER)
    assert "sm_61" in problems[0].what


@pytest.mark.parametrize(
    ("targets", "capability", "runs"),
    [
        (["sm_80"], (8, 6), True),
        (["sm_86"], (8, 0), False),
        (["sm_80"], (9, 0), False),
        (["compute_80"], (9, 0), True),
        (["sm_90a"], (9, 0), True),
        (["sm_100", "sm_120"], (12, 0), True),
    ],
)
def test_machine_code_runs_within_its_major_version(targets, capability, runs):
    assert doctor.supports(targets, *capability) is runs


def test_no_memory_is_a_problem():
    assert doctor.memory_findings(16_000, {0: 20_000}) == []
    assert "cuda:1" in doctor.memory_findings(16_000, {0: 20_000, 1: 90})[0].what
    assert "RAM" in doctor.memory_findings(100, {})[0].what
    assert doctor.memory_findings(0, {}) == []  # unknown is not zero


@pytest.mark.parametrize(
    ("gigabytes", "profile"),
    [
        (6.2, "gpu-6gb"),
        (15.8, "gpu-16gb"),
        (42, "gpu-16gb"),
        (85, "gpu-80gb"),
        (150, "gpu-80gb"),
        (4, "gpu-6gb"),
    ],
)
def test_profile_by_memory(gigabytes, profile):
    assert doctor.profile_for(gigabytes * 1e9) == profile


def test_a_slow_chip_gets_a_note_and_an_unknown_one_does_not():
    rates = {"matmul_bf16": {"share": 0.2}, "copy": {"share": 0.9}, "upload": {"share": None}}
    assert [note.split()[0] for note in doctor.slow_notes(rates)] == ["matmul_bf16"]


@pytest.mark.parametrize(("flags", "measured"), [(("amx_bf16",), ("fp32", "bf16")), (("avx2",), ("fp32",))])
def test_bf16_is_measured_on_cpus_that_have_it(monkeypatch, flags, measured):
    monkeypatch.setattr(host, "cpu", lambda: host.Cpu("a CPU", 2, 2, "AVX2", flags))
    assert probe.precisions(CPU) == measured


def test_rates_are_what_a_product_and_a_copy_give():
    assert 1e-4 < probe.matmul_tflops(CPU, "fp32", 128) < 100
    assert 0.01 < probe.copy_gbs(CPU, 4) < 10_000
    assert 0.05 < probe.launch_us(CPU) < 1000


def test_placement_sees_ops_on_the_cpu_but_not_scalars():
    x = torch.ones(8)
    seen = placement.operators_on_cpu(lambda: (x * 2, x.sum()))
    assert seen == ("aten.mul.Tensor",)
    assert placement.ran_on(CPU, seen)
    assert not placement.ran_on(torch.device("cuda"), seen)
    assert placement.ran_on(torch.device("cuda"), ())


def test_a_gpu_without_cupti_lists_no_kernels_and_has_left_nothing(monkeypatch):
    """The profiler sees no kernel; that every operator returned a GPU tensor is known without it."""
    gpu = torch.device("cuda", 0)
    seen = {"kernels": {}, "recurrent_kernels": [], "gpu_mem_peak_mb": 9.0, "explanation": "", "cpu_ops": []}
    seen["ran_on_device"] = placement.ran_on(gpu, ())
    monkeypatch.setattr(placement, "lstm_placement", lambda device: seen)
    diagnosis = doctor.Diagnosis("cuda:0", "gpu-6gb")
    doctor._place(diagnosis, gpu)
    assert diagnosis.problems == []
    assert "CUPTI" in diagnosis.notes[0]
    seen |= {"ran_on_device": placement.ran_on(gpu, ("aten.mm",)), "cpu_ops": ["aten.mm"]}
    doctor._place(diagnosis, gpu)
    assert "aten.mm" in diagnosis.problems[0].what


def test_a_small_gpu_keeps_its_graphs_and_gets_a_note():
    from cpbmodels.arch.options import PROFILES

    profile = doctor.profile_for(3.9e9)
    assert PROFILES[profile].get("cuda_graph", True)
    assert "3.9 GB" in doctor.small_memory_notes(3.9e9)[0]
    assert doctor.small_memory_notes(6.2e9) == []


@pytest.mark.parametrize("name", ["NVIDIA RTX A2000", "NVIDIA RTX A2000 12GB"])
def test_data_sheets_cover_the_rtx_a2000(name):
    chip = probe.reference(name)
    assert (chip.fp32, chip.bf16, chip.bandwidth) == (8.0, 31.9, 288)
    assert probe.reference("NVIDIA RTX A2000 8GB Laptop GPU") is None


def test_the_report_reads_whole_on_a_machine_without_gpu(monkeypatch):
    monkeypatch.setattr(host, "gpu_evidence", lambda: host.GpuEvidence((), None))
    cuda_build(monkeypatch, None)
    diagnosis = doctor.examine(steps=False)
    assert diagnosis.exit_code == 0
    assert diagnosis.profile == "cpu"
    assert json.loads(json.dumps(diagnosis.as_dict()))["ok"] is True
    assert "lstm" not in diagnosis.facts  # nowhere else to run, and the check takes seconds
    text = "\n".join(lines(diagnosis))
    assert "recommended profile: cpu" in text
    assert "no problems found" in text
    assert "aten." not in text


def test_something_wrong_ends_in_exit_code_1_and_its_remedy(monkeypatch):
    monkeypatch.setattr(host, "gpu_evidence", lambda: GPU_WITH_DRIVER)
    cuda_build(monkeypatch, None)
    diagnosis = doctor.examine(steps=False)
    assert diagnosis.exit_code == 1
    remedy = diagnosis.as_dict()["problems"][0]["remedy"]
    assert remedy.startswith("install torch's cu130 build")
    assert "PROBLEM: this machine has a GPU" in "\n".join(lines(diagnosis))


def test_a_step_of_every_architecture_with_an_optimizer_is_timed(monkeypatch):
    monkeypatch.setattr(steps, "seed_size", lambda name: preset("smoke", name))
    timed = steps.time_architectures(torch.device("cpu"))
    solved = {name for name in architectures() if architecture(name).closed_form}
    assert timed.keys() == set(architectures()) - solved - {
        "average"
    }  # its members are timed by their own names
    assert all(row["step_ms"] > 0 for row in timed.values())
