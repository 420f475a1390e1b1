"""Benchmarks stand apart: the tests of the product do without them."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
APART = re.compile(r"^\s*(?:from|import) benchmarks\b", re.MULTILINE)
MEASURES_WITH = {"device/test_device_gpu_path.py", "test_imports.py", "tracking/test_mlflow_private.py"}
"""What they check is counted by a benchmark: kernels, lines of code, and the packages whose lines count."""


def test_tests_of_the_product_take_no_fixtures_from_benchmarks():
    using = {
        path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py") if APART.search(path.read_text())
    }
    assert {name for name in using if not name.startswith("benchmarks/")} == MEASURES_WITH
