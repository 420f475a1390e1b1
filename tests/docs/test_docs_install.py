"""The ways of installing: each with the CPU build, sizes, and the versions that the project has elsewhere, too."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from tests.tools.dockerfile import settings, stages

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/install.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TABLE = PAGE.partition("\n## ")[0]
WAYS = [
    [cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| .+", TABLE, re.MULTILINE)
][1:]
SIZES = r"\d\.\d GB, \d\.\d GB"
BEFORE, BUILD, _ = stages((ROOT / "Dockerfile").read_text())


def test_each_way_has_its_cpu_build_and_its_sizes():
    assert len(WAYS) == 5
    for way, cpu, sizes, cuda in WAYS:
        assert re.fullmatch(SIZES, sizes), way
        if "container" in way:
            assert (cpu, settings(BUILD, "ARG")["TORCH_BUILD"]) == ("`docker compose up`", "cpu")
        else:
            assert re.search(r"/whl/cpu\b|--torch-backend cpu", cpu), way
        assert re.search(SIZES, cuda) or "as uv or pip" in cuda or "TORCH_BUILD=cu" in cuda, way


def test_pythons_and_torch_are_those_of_the_project():
    oldest, newest = re.search(r"^Python (3\.\d+) to (3\.\d+)\.", TABLE, re.MULTILINE).groups()
    assert PROJECT["requires-python"] == f">={oldest}"
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert jobs["fast"]["strategy"]["matrix"]["python"] == [oldest, newest]
    assert oldest <= settings(BEFORE, "ARG")["PYTHON"] <= newest
    tried = {version.rpartition(".")[0] for version in re.findall(r"\b3\.\d+\.\d+\b", TABLE)}
    assert tried == {f"3.{minor}" for minor in range(int(oldest[2:]), int(newest[2:]) + 1)}
    assert {*re.findall(r"torch==([\d.]+) --index-url \S+/cpu", TABLE)} == {settings(BUILD, "ARG")["TORCH"]}


def test_the_way_by_uv_names_an_option_that_uv_has():
    for command in (["tool", "install"], ["tool", "run"]):
        shown = subprocess.run(
            [sys.executable, "-m", "uv", *command, "--help"], capture_output=True, text=True, check=True
        )
        about = " ".join(shown.stdout.partition("--torch-backend <")[2].split())
        assert "possible values: auto, cpu, " in about[:300]
        assert "UV_TORCH_BACKEND" in about[:300]  # which pipx hands on
