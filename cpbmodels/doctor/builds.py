"""Which build of torch a machine needs: by its driver, its GPU's compute capability, and what a build has code for.

Sources, read in November 2026:

- builds and their GPUs: the tables "Release Compatibility Matrix" and "PyTorch CUDA Support Matrix" of RELEASE.md in
  pytorch/pytorch at 2.9, 2.11 and 2.12 (its pull requests 164471, 175253, 182849), `.ci/manywheel/build_cuda.sh` of
  2.6 to 2.11, and `torch.cuda.get_arch_list()` of 2.10 and 2.11 in issue 182250;
- drivers: "CUDA minor version compatibility" of NVIDIA's CUDA Compatibility guide, whose CUDA Toolkit Release Notes
  have the full versions. A newer driver runs every older build;
- conda: PyTorch's own channel ends with 2.5.1 (pytorch/pytorch issue 138506), which is older than `OLDEST`.
"""

import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpbmodels.errors import pip

OLDEST, NEWEST = "2.6", "2.13.0"
"""Versions of torch that cpb is tested with, as its `pyproject.toml` allows them."""
INDEX = "https://download.pytorch.org/whl"
MIN_DRIVER = {11: "450.80", 12: "525.60", 13: "580.65"}
"""Oldest Linux driver for each major version of CUDA."""

Capability = tuple[int, int]
"""Compute capability of a GPU: (6, 0) is sm_60."""


@dataclass(frozen=True)
class Build:
    """Builds of torch for one CUDA version. `oldest` and `newest` torch with such a build; `targets` by architecture of
    the processor: what each of them has code for, as `torch.cuda.get_arch_list` names it.
    """

    tag: str
    oldest: str
    newest: str
    targets: Mapping[str, tuple[str, ...]]

    @property
    def cuda(self) -> int:
        """Major version of CUDA."""
        return int(self.tag[2:4])

    def version(self, installed: str) -> str:
        """The version of torch to install: the installed version where it has such a build, else the newest."""
        plain = installed.partition("+")[0]
        # A nightly is in no index of releases: the newest release takes its place.
        is_release = re.fullmatch(r"\d+\.\d+\.\d+", plain) is not None
        within = is_release and _numbers(self.oldest) <= _numbers(plain) <= _numbers(self.newest)
        return plain if within else self.newest


_BEFORE_BLACKWELL = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
_FROM_TURING = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
_ARM_FROM_BLACKWELL = ("sm_80", "sm_90", "sm_100", "sm_120")
BUILDS = (
    Build(
        "cu130",
        "2.9",
        NEWEST,
        {
            "x86_64": _FROM_TURING,
            "aarch64": ("sm_80", "sm_90", "sm_100", "sm_110", "sm_120"),
        },
    ),
    Build("cu126", OLDEST, NEWEST, {"x86_64": _BEFORE_BLACKWELL, "aarch64": ("sm_80", "sm_90")}),
    Build("cu128", "2.7", "2.11.0", {"x86_64": _FROM_TURING, "aarch64": _ARM_FROM_BLACKWELL}),
    Build("cu118", OLDEST, "2.6.0", {"x86_64": ("sm_37", *_BEFORE_BLACKWELL)}),
)
"""The first that fits is named: the newest CUDA first, and of those of one CUDA what the newest torch is built for."""


def driver_too_old(driver: str, cuda: int) -> bool:
    """Whether a driver ("535.104.05") cannot run builds for this major version of CUDA."""
    return _numbers(driver)[:2] < _numbers(MIN_DRIVER[cuda]) if cuda in MIN_DRIVER else False


def supports(targets: Iterable[str], capability: Capability) -> bool:
    """Whether a build with these targets (`torch.cuda.get_arch_list`) runs on a chip.

    Machine code ("sm_80") runs on later minor versions of its major version, intermediate code ("compute_90") is
    compiled by the driver for any later chip. Code with the features of one chip alone ends in "a", with those of a
    family in "f". What is not understood counts for nothing.
    """
    for target in targets:
        if not (parts := re.fullmatch(r"(sm|compute)_(\d+)([af]?)", target)):
            continue
        kind, number, suffix = parts.groups()
        built = divmod(int(number), 10)
        of_family = built[0] == capability[0] and built <= capability
        if built == capability or (suffix == "f" and of_family):
            return True
        if not suffix and (of_family if kind == "sm" else built <= capability):
            return True
    return False


def build_for(driver: str, capability: Capability | None = None) -> Build | None:
    """The build of torch for a driver, and for a chip if its capability is known; None if no allowed torch has one."""
    return next((b for b in _with_code(capability) if not driver_too_old(driver, b.cuda)), None)


def oldest_driver(capability: Capability | None = None) -> str | None:
    """The oldest driver with which an allowed torch runs on a chip; None if none has code for it."""
    drivers = [MIN_DRIVER[build.cuda] for build in _with_code(capability)]
    return min(drivers, key=_numbers, default=None)


def _with_code(capability: Capability | None) -> list[Build]:
    """The builds for this machine's processor that have code for a chip."""
    machine = platform.machine()
    # Builds for x86_64 and aarch64 have code for different chips.
    of_machine = [(build, build.targets[machine]) for build in BUILDS if machine in build.targets]
    return [build for build, targets in of_machine if capability is None or supports(targets, capability)]


def install_command(build: Build, installed: str) -> str:
    """The whole command that puts a build in the place of the installed torch, for this interpreter.

    The version names its build (`2.13.0+cu126`): pip would take a CPU build of the same version for it. A torch that
    conda installed is taken away by conda first.
    """
    version = f"{build.version(installed)}+{build.tag}"
    install = pip("install", f"torch=={version}", "--index-url", f"{INDEX}/{build.tag}")
    # conda's record alone: torch may be pip's within a conda environment, which pip replaces.
    records = Path(sys.prefix, "conda-meta")
    if not any(records.glob("pytorch-*.json")):
        return install
    return f"{shlex.join(['conda', 'remove', '--yes', '--prefix', sys.prefix, 'pytorch'])} && {install}"


def in_conda() -> bool:
    """Whether this interpreter belongs to a conda environment."""
    return Path(sys.prefix, "conda-meta").is_dir()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
