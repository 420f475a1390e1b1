"""Benchmarks and studies stand apart: the product and its tests do without them, and the wheel has no studies."""

import re
import tomllib
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).parents[2]
APART = re.compile(r"^\s*(?:from|import) (?:benchmarks|research)\b", re.MULTILINE)
MEASURES_WITH = {"device/test_device_gpu_path.py", "test_imports.py", "tracking/test_mlflow_private.py"}
"""What they check is counted by a benchmark: kernels, lines of code, and the packages whose lines count."""


def test_tests_of_the_product_take_no_fixtures_from_benchmarks_and_studies():
    tests = ROOT / "tests"
    own = {
        path.relative_to(tests).as_posix() for path in tests.rglob("*.py") if APART.search(path.read_text())
    }
    assert {name for name in own if not name.startswith(("benchmarks/", "research/"))} == MEASURES_WITH


def test_studies_are_not_installed():
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"][
        "include"
    ]
    found = find_packages(str(ROOT), include=include)
    assert "benchmarks" in found
    assert not [name for name in found if name.startswith("research")]
