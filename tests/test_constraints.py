"""The pins leave a solution with every torch that pyproject.toml allows."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LIMITS = {
    "2.6.0": ["sympy==1.13.1", "triton==3.2.0", "nvidia-cublas-cu12==12.4.5.8"],
    "2.7.1": ["triton==3.3.1"],
    "2.8.0": ["triton==3.4.0"],
    "2.9.1": ["triton==3.5.1"],
    "2.10.0": ["triton==3.6.0", "cuda-bindings==12.9.4"],
    "2.11.0": ["setuptools<82", "triton==3.6.0", "cuda-bindings>=13.0.3,<14"],
    "2.12.0": ["setuptools<82", "triton==3.7.0", "nvidia-cublas>=13.1.0.3,<=13.1.1.3"],
    "2.13.0": [],
}
"""What torch holds at or below a version: `Requires-Dist` of its wheels for Linux on PyPI (of nvidia-* one of many;
2.13.0: of its CPU build)."""
LOWEST = ["typing-extensions>=4.10.0", "sympy>=1.13.1", "networkx>=2.5.1", "fsspec>=0.8.5"]
OF_TORCH = re.compile(r"torch|triton|cuda-.*|nvidia-(?!ml-py).*")


@pytest.fixture(scope="module")
def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in found}


@pytest.mark.parametrize("torch", LIMITS)
def test_no_pin_excludes_a_torch(torch, pins):
    asked = [Requirement(text) for text in (*LIMITS[torch], *LOWEST)]
    excluded = [
        f"{one}: pinned {pins[one.name]}"
        for one in asked
        if one.name in pins and pins[one.name] not in one.specifier
    ]
    assert excluded == []


def test_torch_and_its_gpu_libraries_are_not_pinned(pins):
    assert [name for name in pins if OF_TORCH.fullmatch(name)] == []


def test_the_oldest_and_the_newest_torch_allowed_are_among_them():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = [one for text in project["dependencies"] if (one := Requirement(text)).name == "torch"]
    allowed = [version for version in LIMITS if version in torch.specifier]
    assert allowed == list(LIMITS)
    bounds = {one.operator: one.version for one in torch.specifier}
    assert (f"{bounds['>=']}.0", bounds["<="]) == (allowed[0], allowed[-1])
