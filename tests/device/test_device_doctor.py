"""What `cpb doctor` finds on machines with and without a GPU, a driver and a torch that fit, and how it says so."""

import json
import subprocess
import sys

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from cpbmodels import architecture, architectures, preset
from cpbmodels.arch.options import profile_for
from cpbmodels.device import chips, operators
from cpbmodels.device.chips import Chip
from cpbmodels.doctor import builds, examine, findings, pace, report
from cpbmodels.errors import ModelError
from cpbmodels.fleet import one_step
from cpbmodels.fleet.bank import Bank, MemberPlan, make_task, steps_per_epoch
from flows.cli import doctor as command_module
from flows.cli.doctor import doctor as command
from schemas.errors import CpbError
from tasks.training import plan

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
GPU_WITH_DRIVER = findings.GpuEvidence(("GPU 0: NVIDIA H200",), "580.159.03")
P100 = Chip("Tesla P100-PCIE-16GB", (6, 0))
TINY = {"hidden_dim": 8, "n_heads": 2, "batch_size": 4, "dropout": 0.0}
# Without those in closed form; an average has no step of its own: its members are trained.
TRAINED = [name for name in architectures() if not architecture(name).closed_form and name != "average"]


def cuda_build(monkeypatch, cuda, *, available=False):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without any trace of a GPU; tests add the traces."""
    monkeypatch.setattr(chips, "PROC_DRIVER", tmp_path / "version")
    monkeypatch.setattr(findings, "PCI_DEVICES", tmp_path / "pci")
    monkeypatch.setattr(chips, "nvidia_smi", lambda *arguments: "")
    monkeypatch.setattr(findings, "chips", tuple)
    monkeypatch.setattr(builds.platform, "machine", lambda: "x86_64")
    return tmp_path


def test_signs_of_a_gpu(machine, monkeypatch):
    assert findings.gpu_evidence() == findings.GpuEvidence((), None)
    for name, vendor, kind in (("01", "0x10de", "0x030200"), ("02", "0x1002", "0x030000")):
        (machine / "pci" / name).mkdir(parents=True)
        (machine / "pci" / name / "vendor").write_text(vendor + "\n")
        (machine / "pci" / name / "class").write_text(kind + "\n")
    assert findings.gpu_evidence() == findings.GpuEvidence(("PCI device 01",), None)
    answers = {"--query-gpu=driver_version": "535.104.05\n535.104.05"}
    monkeypatch.setattr(chips, "nvidia_smi", lambda *arguments: answers[arguments[0]])
    signs = ("driver 535.104.05 is loaded", "PCI device 01")
    assert findings.gpu_evidence() == findings.GpuEvidence(signs, "535.104.05")
    (machine / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\nGCC version: 13\n"
    )
    monkeypatch.setattr(findings, "chips", lambda: (P100,))
    signs = ("Tesla P100-PCIE-16GB (sm_60)", "driver 580.159.03 is loaded", "PCI device 01")
    assert findings.gpu_evidence() == findings.GpuEvidence(signs, "580.159.03", (P100,))


DEAD = "CUDA unknown error - this may be due to an incorrectly set up environment"
INDEX = "--index-url https://download.pytorch.org/whl/"


def build_of(problem):
    """The version, the build and the index of a problem's command."""
    return problem.command.partition(" install ")[2]


def test_a_cpu_only_torch_gets_the_build_for_its_driver_and_chip(machine, monkeypatch):
    cuda_build(monkeypatch, None)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    (problem,), notes = findings.software_findings(GPU_WITH_DRIVER)
    assert "torch 2.13.0+cpu is a CPU-only build" in problem.what
    assert build_of(problem) == f"torch==2.13.0+cu130 {INDEX}cu130"
    assert notes == []
    # of the same machine with another chip: CUDA 13 has no code for it
    (problem,), _ = findings.software_findings(findings.GpuEvidence((str(P100),), "580.159.03", (P100,)))
    assert build_of(problem) == f"torch==2.13.0+cu126 {INDEX}cu126"
    assert problem.remedy == "install torch's cu126 build, which fits driver 580.159.03 and sm_60"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "is built for AMD's GPUs" in findings.software_findings(GPU_WITH_DRIVER)[0][0].what


def test_a_driver_too_old_for_this_torch_names_the_build_that_it_runs(machine, monkeypatch):
    cuda_build(monkeypatch, "13.0")
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    (problem,), _ = findings.software_findings(findings.GpuEvidence(("Tesla T4 (sm_75)",), "550.54.15"))
    assert problem.what == "driver 550.54.15 is too old for torch 2.13.0+cu130 (CUDA 13.0 needs 580.65)"
    assert problem.remedy.startswith("update the driver to 580.65 or newer, or install torch's cu126 build")
    assert build_of(problem) == f"torch==2.13.0+cu126 {INDEX}cu126"
    (problem,), _ = findings.software_findings(
        findings.GpuEvidence(("driver 440.33.01 is loaded",), "440.33.01")
    )
    assert problem.remedy == (
        "no torch from 2.6 to 2.13.0, with which cpb runs, has a build for driver 440.33.01: update the driver to "
        "450.80 or newer"
    )
    assert problem.command == ""


def test_in_a_conda_environment_pip_is_named_with_its_reason(machine, monkeypatch):
    cuda_build(monkeypatch, None)
    monkeypatch.setattr(builds, "in_conda", lambda: True)
    (problem,), _ = findings.software_findings(GPU_WITH_DRIVER)
    assert "PyTorch's own conda channel ends with 2.5.1" in problem.remedy


def test_a_gpu_without_driver_and_one_on_which_cuda_does_not_start(machine, monkeypatch):
    def fail():
        raise RuntimeError(f"{DEAD}\nPlease update")

    cuda_build(monkeypatch, "13.0")
    monkeypatch.setattr(torch.cuda, "init", fail)
    (problem,), _ = findings.software_findings(findings.GpuEvidence(("PCI device 0000:01:00.0",), None))
    assert "no NVIDIA driver" in problem.what
    assert "install the driver" in problem.remedy
    (problem,), _ = findings.software_findings(GPU_WITH_DRIVER)
    assert f"CUDA does not start: {DEAD}" in problem.what


def kaggle(monkeypatch, chip, targets, version="2.10.0+cu128"):
    """A machine with one GPU that torch sees; it has code for `targets`."""
    cuda_build(monkeypatch, "12.8", available=True)
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: chip.capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: chip.name)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: targets)


CU128 = ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


def test_a_torch_without_code_for_the_chip_is_said_before_any_step(machine, monkeypatch):
    kaggle(monkeypatch, P100, CU128)
    evidence = findings.GpuEvidence((str(P100),), "560.35.03", (P100,))
    (problem,), _ = findings.software_findings(evidence)
    assert problem.what.startswith(
        "torch 2.10.0+cu128 has no code for Tesla P100-PCIE-16GB (sm_60), so every step"
    )
    assert build_of(problem) == f"torch==2.10.0+cu126 {INDEX}cu126"
    # no step is tried on that GPU
    memory = {"index": 0, "memory_total_mb": 16_000.0, "memory_free_mb": 16_000.0}
    monkeypatch.setattr(examine, "gpu_evidence", lambda: evidence)
    monkeypatch.setattr(examine, "_gpu", lambda index: memory | {"name": P100.name, "capability": "6.0"})
    tried = []
    monkeypatch.setattr(examine, "_time_steps", lambda diagnosis, device, run: tried.append(device))
    diagnosis = examine.examine()
    assert (diagnosis.device, diagnosis.exit_code, tried) == ("cpu", 1, [CPU])
    text = "\n".join(report.lines(diagnosis)).splitlines()
    assert f"    {problem.command}" in text  # whole, to be copied
    assert json.loads(json.dumps(diagnosis.as_dict()))["problems"][0]["command"] == problem.command


def test_a_chip_for_which_no_torch_has_code_is_told_the_truth(machine, monkeypatch):
    kaggle(monkeypatch, Chip("Tesla K40c", (3, 5)), CU128)
    (problem,), _ = findings.software_findings(findings.GpuEvidence(("Tesla K40c (sm_35)",), "470.223.02"))
    assert "has code for sm_35: train with `--device cpu`, or on another GPU" in problem.remedy
    assert problem.command == ""


@pytest.mark.parametrize("targets", [CU128, [*CU128, "compute_120"], ["sm_75"], ["compute_50"], []])
def test_a_chip_with_code_is_no_problem(machine, monkeypatch, targets):
    """With machine code, with code that its driver compiles, or where torch does not say what it has code for."""
    kaggle(monkeypatch, Chip("Tesla T4", (7, 5)), targets)
    assert findings.software_findings(GPU_WITH_DRIVER) == ([], [])


def test_a_hidden_gpu_is_the_users_choice(monkeypatch):
    cuda_build(monkeypatch, "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    problems, notes = findings.software_findings(GPU_WITH_DRIVER)
    assert problems == []
    assert "hides it" in notes[0]


def test_no_memory_is_a_problem():
    assert findings.memory_findings(16_000, {0: 20_000}) == []
    assert "cuda:1" in findings.memory_findings(16_000, {0: 20_000, 1: 90})[0].what
    assert "RAM" in findings.memory_findings(100, {})[0].what
    assert findings.memory_findings(0, {}) == []  # unknown is not zero


@pytest.mark.parametrize(
    ("gigabytes", "profile"),
    [(4, "gpu-6gb"), (6.2, "gpu-6gb"), (15.8, "gpu-16gb"), (42, "gpu-16gb"), (85, "gpu-80gb")],
)
def test_profile_by_memory(gigabytes, profile):
    assert profile_for(gigabytes * 1e9) == profile


def test_too_little_history_for_a_batch_is_one_sentence():
    with pytest.raises(ModelError, match="less than one batch"):
        one_step.fleet_step("gru", preset("seed-gru", "gru", batch_size=5000), 1, CPU)


@pytest.fixture
def small(monkeypatch, machine):
    """No GPU, a CPU build of torch, and steps of a small size."""
    cuda_build(monkeypatch, None)
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setattr(examine, "default_preset", lambda name, profile: preset("default", name, **TINY))


@pytest.mark.parametrize(("load", "notes"), [(0.9, 1), (5.3, 2)])
def test_a_busy_machine_is_said_to_be_busy(machine, monkeypatch, load, notes):
    cuda_build(monkeypatch, None)
    monkeypatch.setattr(findings, "usable_cores", lambda: 2)
    monkeypatch.setattr(examine.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(
        examine, "time_on_cores", lambda wanted, *how: {name: {"error": "not run"} for name in wanted}
    )
    diagnosis = examine.examine()
    assert len(diagnosis.notes) == notes
    assert diagnosis.notes[-1].startswith("other programs use this machine (load 5.3 on 2 cores)") is (
        notes == 2
    )
    assert [*report.lines(diagnosis)][-1] == f"problems: {len(TRAINED)}"


def test_without_a_gpu_the_report_is_one_screen(small, monkeypatch):
    monkeypatch.setattr(findings, "usable_cores", lambda: 2)
    diagnosis = examine.examine()
    assert (diagnosis.exit_code, diagnosis.profile) == (0, "cpu")
    facts = json.loads(json.dumps(diagnosis.as_dict()))
    assert facts["ok"] is True
    assert list(facts["steps"]) == TRAINED
    assert facts["lanes"] == 2
    for row in facts["steps"].values():
        assert row["windows_per_s"] == pytest.approx(4 * 4 / (row["step_ms"] / 1e3))
        assert row["kernels"] == "off (they need an NVIDIA GPU, not cpu)"
    assert facts["lstm"]["output_device"] == "cpu"
    text = "\n".join(report.lines(diagnosis)).splitlines()
    assert max(map(len, text)) <= report.WIDTH
    assert len(text) <= 40
    assert "note: no GPU on this machine: everything runs on the CPU" in text
    assert "  kernels off (all): they need an NVIDIA GPU, not cpu" in text
    assert any(
        line.startswith("nn.LSTM: a training step ran on the CPU, where its input was") for line in text
    )
    assert any(line.startswith("40 models on this CPU, 2 cores: seed-transformer at most ") for line in text)


def on_gpu(**changed):
    row = {
        "members": 40,
        "batch": 64,
        "step_ms": 5.8,
        "windows_per_s": 441_000.0,
        "validation_us": 20.0,
        "weights": 300_000,
        "products": "bf16",
        "kernels": "on",
        "gpu_mem_peak_mb": 812.0,
        "gpu_busy": 0.94,
        "longest_kernels": ["_gru_layer_backward", "_gru_layer"],
        "cpu_operators": [],
    }
    return row | changed


ON_GPU_LSTM = {"output_device": "cuda:0", "cpu_operators": [], "longest_kernels": ["cudnn_rnn_persist_fwd"]}


def on_h100(monkeypatch, time_fleet, lstm=ON_GPU_LSTM, name="NVIDIA H100 80GB HBM3", profile="gpu-80gb"):
    """The diagnosis of a machine with one GPU whose steps are these."""
    monkeypatch.setattr(examine, "time_fleet", time_fleet)
    monkeypatch.setattr(examine, "lstm_step", lambda device: lstm)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80e9, 81e9))
    diagnosis = examine.Diagnosis("cuda:0", profile, {"python": "3.11.7", "driver": "580.159.03"})
    memory = {"memory_total_mb": 81_000.0, "memory_free_mb": 80_000.0}
    diagnosis.facts |= {
        "torch": {"version": "2.13.0+cu130", "cuda": "13.0"},
        "cpu": {"model": "AMD EPYC", "cores": 16, "bf16": True, **memory},
        "gpus": [{"index": 0, "name": name, "capability": "9.0", **memory}],
    }
    examine._time_steps(diagnosis, GPU, pace.Run())
    return diagnosis, "\n".join(report.lines(diagnosis)).splitlines()


def test_a_gpu_says_what_ran_there_and_why_kernels_are_off(monkeypatch):
    rows = {name: on_gpu() for name in TRAINED} | {"har": on_gpu(kernels="off (products are in float32)")}
    diagnosis, text = on_h100(monkeypatch, lambda name, options, members, device: rows[name])
    assert "  gru                   40    64     5.80     441000     812   94%  on" in text
    assert "  gru ran _gru_layer_backward, _gru_layer" in text
    assert "  kernels off (har): products are in float32" in text
    assert "mixed precision: on, bf16: all" in text
    assert len(text) <= 40
    assert max(map(len, text)) <= report.WIDTH
    assert diagnosis.problems == []
    assert diagnosis.notes == []
    said = " ".join(" ".join(text).split())
    assert (
        "nn.LSTM: a training step ran on cuda:0: no operator gave a CPU tensor, its longest kernel was "
        "cudnn_rnn_persist_fwd. nn.LSTM never falls back to the CPU: its input would have to be there"
    ) in said
    assert (
        "little GPU memory is no sign of the CPU: a model has 0.3 to 0.3 million weights, and a step of 40 needs 812 MB"
    ) in said


def test_the_profile_of_the_device_says_the_precision_and_the_fleets_size(monkeypatch):
    """A T4 multiplies in fp16, and trains 20 at once only with the smallest profile."""
    asked = []

    def timed(name, options, members, device):
        asked.append((options.mixed_precision, members))
        return on_gpu(products="fp16" if name == "gru" else "float32")

    _, text = on_h100(monkeypatch, timed, profile="gpu-6gb")
    assert set(asked) == {("auto", 20)}
    others = ", ".join(name for name in TRAINED if name != "gru")
    assert (
        " ".join(" ".join(text).split()).count(f"mixed precision: on, fp16: gru; off, float32: {others}") == 1
    )


def test_forty_models_take_at_most_what_their_steps_say(monkeypatch):
    diagnosis, text = on_h100(monkeypatch, lambda name, *how: on_gpu(step_ms=100.0), name="Tesla T4")
    # 4,961 windows: 78 steps of 64; 1,490 validated; 100 epochs
    seconds = 100 * (-(-4961 // 64) * 0.1 + 1490 * 20e-6)
    assert diagnosis.facts["estimates"]["seed-gru"] == {
        "models": 40,
        "epochs": 100,
        "seconds": pytest.approx(seconds),
    }
    said = " ".join(" ".join(text).split())
    assert (
        "40 models on this Tesla T4: seed-transformer at most 3 min, seed-gru 13 min, seed-lstm 73 min of"
        in said
    )
    assert "runs so far" not in said  # nothing was read
    diagnosis.facts["epochs_used"] = {}
    assert "no run of these presets so far says how early they end" in " ".join(
        "".join(report.lines(diagnosis)).split()
    )
    diagnosis.facts["epochs_used"] = {"seed-gru": {"percent": 33.6, "models": 40}}
    said = " ".join(" ".join(report.lines(diagnosis)).split())
    assert "of training; runs so far ended after about 34 % (seed-gru) of the epochs" in said
    assert json.loads(json.dumps(diagnosis.as_dict()))["epochs_used"]["seed-gru"]["models"] == 40


def test_a_step_that_fails_is_a_problem_and_missing_cupti_a_note(monkeypatch):
    def timed(name, options, members, device):
        if name == "gru":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nat line 3")
        return on_gpu(longest_kernels=[], gpu_busy=None)

    unseen = ON_GPU_LSTM | {"longest_kernels": []}
    diagnosis, _ = on_h100(monkeypatch, timed, unseen)
    assert [problem.what for problem in diagnosis.problems] == [
        "a training step of gru failed on cuda:0: CUDA error: an illegal memory access was encountered",
    ]
    assert "CUPTI" in diagnosis.notes[0]
    assert diagnosis.notes[0].endswith("no operator of these steps gave a CPU tensor, so they ran on the GPU")
    assert "seed-gru" not in diagnosis.facts["estimates"]


def test_operators_that_gave_cpu_tensors_are_named_and_the_note_claims_no_more(monkeypatch):
    def timed(name, options, members, device):
        left = ["aten.mm.default", "aten.add.Tensor"] if name == "lstm" else []
        return on_gpu(longest_kernels=[], gpu_busy=None, cpu_operators=left)

    diagnosis, _ = on_h100(monkeypatch, timed, ON_GPU_LSTM | {"longest_kernels": []})
    (problem,) = diagnosis.problems
    assert problem.what == (
        "a training step of lstm on cuda:0 made tensors on the CPU: aten.mm.default, aten.add.Tensor"
    )
    assert "on the GPU" not in diagnosis.notes[0]


def test_an_lstm_that_left_the_gpu_is_a_problem(monkeypatch):
    diagnosis, _ = on_h100(
        monkeypatch, lambda *how: on_gpu(), ON_GPU_LSTM | {"cpu_operators": ["aten.lstm.input"]}
    )
    assert diagnosis.problems[0].what.startswith(
        "a training step of nn.LSTM on cuda:0 made tensors on the CPU: aten.lstm"
    )
    assert diagnosis.exit_code == 1


def test_the_log_of_operators_sees_both_passes_and_no_single_numbers():
    """On the meta device nothing is on the CPU but what is put there."""
    weight = torch.ones(3, 3, device="meta", requires_grad=True)
    host = torch.ones(3, 3, requires_grad=True)

    def stays():
        torch.autograd.grad((weight @ weight).sum() * torch.tensor(2.0), weight)

    def leaves_in_the_backward_pass():
        torch.autograd.grad((host @ host).sum(), host)

    assert operators.operators_on_cpu(stays) == []
    assert "aten.mm.default" in operators.operators_on_cpu(leaves_in_the_backward_pass)


def test_the_log_of_operators_does_not_load_torchs_compiler():
    """Its import takes seconds, and prints what it leaks."""
    code = (
        "import sys, torch\n"
        "from cpbmodels.doctor.examine import lstm_step\n"
        "assert lstm_step(torch.device('cpu'))['output_device'] == 'cpu'\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_step_that_fails_on_a_core_is_a_row_with_its_reason(machine):
    bad = preset("default", "linear", batch_size=60_000)
    rows = pace.time_on_cores({"linear": bad, "har": preset("smoke", "har")}, 2, 2, pace.Run())
    assert "less than one batch" in rows["linear"]["error"]
    assert rows["har"]["members"] == 2


def test_a_process_that_dies_is_a_row_with_its_last_words(machine):
    dead = pace.Run(environment={"PYTHONHOME": "/nowhere"})
    rows = pace.time_on_cores({"linear": preset("smoke", "linear")}, 1, 1, dead)
    assert rows["linear"]["error"].startswith("its process ended: ")


def test_a_gpu_on_which_cuda_fails_is_a_problem(machine, monkeypatch):
    cuda_build(monkeypatch, "13.0", available=True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def busy(index):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with …")

    monkeypatch.setattr(torch.cuda, "get_device_properties", busy)
    diagnosis = examine.examine(steps=False)
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
    monkeypatch.setattr(examine, "gpu_evidence", lambda: GPU_WITH_DRIVER)
    result = cpb("--quick", "--json")
    facts = json.loads(result.stdout)  # nothing else is printed there
    assert {"ok", "torch", "driver", "cpu", "gpus", "profile", "problems", "notes"} <= set(facts)
    assert "steps" not in facts
    assert result.exit_code == 1
    (problem,) = facts["problems"]
    assert problem["command"].endswith(f"install torch==2.13.0+cu130 {INDEX}cu130")
    result = cpb("--quick")
    assert result.exit_code == 1
    assert "PROBLEM: this machine has a GPU (GPU 0: NVIDIA H200) but torch" in result.stdout
    assert f"  remedy: {problem['remedy']}:\n    {problem['command']}\n" in result.stdout


def test_the_command_adds_what_earlier_runs_used_and_survives_a_store_that_is_away(cpb, machine, monkeypatch):
    found = examine.Diagnosis("cpu", "cpu", {"estimates": {}})
    monkeypatch.setattr(examine, "examine", lambda **how: found)
    used = {"seed-gru": {"percent": 40.0, "models": 2}}
    monkeypatch.setattr(command_module, "_epochs_used", lambda: used)
    assert json.loads(cpb("--json").stdout)["epochs_used"] == used

    def away():
        raise CpbError("the MLflow store http://127.0.0.1:9 cannot be used")

    found.facts.pop("epochs_used")
    monkeypatch.setattr(command_module, "_epochs_used", away)
    facts = json.loads(cpb("--json").stdout)
    assert "epochs_used" not in facts
    assert facts["notes"] == [
        "how early runs so far ended is not known: the MLflow store http://127.0.0.1:9 cannot be used"
    ]
    assert facts["ok"] is True


def test_a_home_without_a_store_has_no_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert command_module._epochs_used() == {}
    assert not (tmp_path / "data").exists()


def test_the_estimated_run_is_the_one_that_the_plan_makes():
    """40 models: 20 coins at two timeframes; each core trains four together, whichever of the presets."""
    spans = command_module.default_spans()
    assert len(spans) == pace.MODELS
    (fifteen, hour) = sorted(set(spans), key=lambda span: -span[0])
    assert fifteen[1] == 5760  # half of a test span of 120 days
    assert hour[1] == 1440
    for name, kind in examine.ESTIMATED.items():
        assert plan.CPU_SHARD_S / plan.member_seconds(preset(name, kind), kind, 1) < 2 * plan.MIN_MEMBERS
        assert preset(name, kind).max_train_rows < hour[0]
        assert preset(name, kind, "gpu-16gb").fleet_size == pace.MODELS


@given(
    st.lists(st.tuples(st.integers(100, 20_000), st.integers(50, 9_000)), min_size=1, max_size=60),
    st.integers(1, 50),
    st.integers(1, 8),
)
def test_an_estimate_lies_between_its_longest_fleet_and_all_of_them(spans, members, lanes):
    options = preset("seed-gru", "gru")
    row = on_gpu(members=members, step_ms=10.0)
    alone = pace.training_seconds(options, row, spans, 1)
    beside = pace.training_seconds(options, row, spans, lanes)
    longest = max(pace.training_seconds(options, row, [span], 1) for span in spans)
    assert longest <= beside <= alone + 1e-9
    assert alone <= beside * lanes + 1e-9


def test_an_estimate_counts_the_steps_that_a_training_takes():
    """Against the loop's own numbers: windows of a walk, steps per epoch, validation windows."""
    options = preset(
        "seed-gru", "gru", max_train_rows=300, batch_size=32, epochs=7, max_validation_windows=100
    )
    walk = one_step.walk(900, 1, options)
    task = make_task(
        Bank.build([walk], options, CPU, torch.float32), [walk], MemberPlan((0,), 0, ""), options
    )
    first, end = walk.spans["train"]
    spans = [(end - first, walk.spans["validation"][1] - walk.spans["validation"][0])]
    row = {"members": 1, "step_ms": 1000.0, "validation_us": 0.0}
    assert pace.training_seconds(options, row, spans) == 7 * steps_per_epoch(task, options)
    row = {"members": 1, "step_ms": 0.0, "validation_us": 1e6}
    assert pace.training_seconds(options, row, spans) == 7 * len(task.validation)
