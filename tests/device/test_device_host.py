from pathlib import Path

import pytest

from cpbmodels.device import host
from cpbmodels.device.probe import CHIPS, reference

PROC = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n"
    "GCC version:  gcc version 13.3.0\n"
)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without any trace of a GPU; tests add the traces."""
    monkeypatch.setattr(host, "PROC_DRIVER", tmp_path / "version")
    monkeypatch.setattr(host, "PCI_DEVICES", tmp_path / "pci")
    monkeypatch.setattr(host, "_nvidia_smi", lambda *arguments: None)
    monkeypatch.setattr(host, "_device_nodes", list)
    return tmp_path


def pci(machine: Path, vendor: str, kind: str) -> None:
    device = machine / "pci" / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")
    (device / "class").write_text(kind + "\n")


def test_a_bare_machine_has_no_gpu(machine):
    evidence = host.gpu_evidence()
    assert not evidence.present
    assert evidence.driver is None


def test_the_bus_shows_a_gpu_without_driver(machine):
    pci(machine, "0x10de", "0x030200")
    evidence = host.gpu_evidence()
    assert evidence.present
    assert evidence.driver is None


def test_another_makers_card_is_no_nvidia_gpu(machine):
    pci(machine, "0x1002", "0x030000")
    assert not host.gpu_evidence().present


def test_the_driver_is_read_from_proc(machine, monkeypatch):
    (machine / "version").write_text(PROC)
    monkeypatch.setattr(host, "_device_nodes", lambda: [Path("/dev/nvidia0")])
    evidence = host.gpu_evidence()
    assert evidence.driver == "580.159.03"
    assert evidence.signs == ("driver 580.159.03 is loaded",)


def test_nvidia_smi_answers_where_proc_does_not(machine, monkeypatch):
    answers = {"-L": "GPU 0: Tesla T4 (UUID: GPU-1)", "--query-gpu=driver_version": "535.104.05\n535.104.05"}
    monkeypatch.setattr(host, "_nvidia_smi", lambda *arguments: answers[arguments[0]])
    evidence = host.gpu_evidence()
    assert evidence.driver == "535.104.05"
    assert evidence.signs == ("GPU 0: Tesla T4",)


@pytest.mark.parametrize(
    ("driver", "cuda", "old"),
    [
        ("580.159.03", "13.0", False),
        ("575.57.08", "13.0", True),
        ("525.60.13", "12.8", False),
        ("520.61", "12.1", True),
    ],
)
def test_oldest_driver_of_each_cuda(driver, cuda, old):
    assert host.driver_too_old(driver, cuda) is old


def test_the_cpu_is_described():
    cpu = host.cpu()
    assert cpu.cores >= 1
    assert cpu.model
    assert cpu.memory_free_mb <= cpu.memory_total_mb


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H200", "H200"),
        ("Tesla T4", "T4"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX 2080 Ti"),
    ],
)
def test_a_chip_is_found_by_its_full_name(name, key):
    assert reference(name) is CHIPS[key]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 3060 Laptop GPU",
        "NVIDIA GeForce RTX 4070 SUPER",
        "NVIDIA GeForce RTX 3060 Ti",
        "NVIDIA A100 80GB PCIe MIG 1g.10gb",
        "Some Future Chip",
    ],
)
def test_a_variant_or_unknown_chip_has_no_reference(name):
    assert reference(name) is None
