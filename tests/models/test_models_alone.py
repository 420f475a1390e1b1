"""The library and the GPU benchmark run where only the library's own dependencies are installed."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"cpbmodels", "benchmarks"}

BLOCKED = """
import sys

class Wall:
    # A finder that has never heard of what is not installed.

    def __init__(self, inner):
        self.inner = inner

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {blocked!r} else self.inner.find_spec(name, path, target)

sys.meta_path[:] = [Wall(finder) for finder in sys.meta_path if hasattr(finder, "find_spec")]
sys.path.insert(0, {root!r})
"""
LIBRARY = """
import importlib, pkgutil, tempfile
import numpy as np
import cpbmodels
for module in pkgutil.walk_packages(cpbmodels.__path__, "cpbmodels."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as lacks:  # the kernels, which a fleet imports where the switch has found triton
        assert lacks.name == "triton" and module.name.startswith("cpbmodels.kernels."), module.name
        assert module.name != "cpbmodels.kernels.support"
from tests.tools.candles import series_for
from cpbmodels import architectures, ensemble, load, train_fleet
from cpbmodels.doctor.examine import examine
for name in architectures():
    series = [series_for(name, 420, seed) for seed in (1, 2)]
    with tempfile.TemporaryDirectory() as folder:
        members = train_fleet(series, name, "smoke", seeds=[1, 2], device="cpu", checkpoint=folder + "/c",
                              **({} if name == "robust-har" else {"epochs": 1, "steps_per_epoch": 2}))
        found = load(members[0].save(folder + "/m")).forecast(series[0])
        np.testing.assert_array_equal(found.candle, members[0].forecast(series[0]).candle)
import polars as pl
from tests.tools.candles import walk
from cpbmodels import Series
prices = walk(700).prices
columns = {name: prices[:, i] for i, name in enumerate(("open", "high", "low", "close"))}
series = Series.from_frame(pl.DataFrame({"date": np.arange(700) * 3600 + 1_700_000_000 // 3600 * 3600, **columns}))
for name in ("har", "robust-har"):
    with tempfile.TemporaryDirectory() as folder:
        member = train_fleet([series], name, "smoke", seeds=[1], device="cpu")[0]
        rows = load(member.save(folder)).forecast(series).to_frame()
        assert rows.height == 10 and member.predict(series, since=series.end_of(400)).height % 10 == 0
examine(steps=False)
print("done")
"""


def closure(*names: str) -> set[str]:
    """Distributions that these need, themselves included, by normalised name."""
    needed_names, todo = set(), list(names)
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in needed_names:
            continue
        try:
            needed = [line for line in requires(name) or [] if "extra ==" not in line]
        except PackageNotFoundError:
            continue  # another platform's
        needed_names.add(name)
        todo += [re.match(r"[\w.-]+", line)[0] for line in needed]
    return needed_names


def run(code: str, *also: str) -> subprocess.CompletedProcess[str]:
    """Run code where nothing but torch, numpy, safetensors and `also` can be imported, nor what Windows lacks."""
    allowed = closure("torch", "numpy", "safetensors", *also)
    assert {"torch", "typing-extensions"} <= allowed
    blocked = {
        module
        for module, owners in packages_distributions().items()
        if module not in OURS and not allowed & {owner.lower().replace("_", "-") for owner in owners}
    } | {"flows", "tasks", "schemas", "webapp", "resource", "fcntl"}
    assert {"prefect", "mlflow", "pandas", "pyarrow", "pydantic", "typer", "pynvml"} <= blocked
    start = BLOCKED.format(blocked=blocked, root=str(ROOT))
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_library_needs_torch_numpy_safetensors_and_polars_alone():
    done = run(LIBRARY, "polars")
    assert done.stdout.strip().endswith("done"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "transformer", "lstm"])
def test_the_gpu_benchmark_needs_no_more(name):
    done = run(
        f"from benchmarks import gpu; gpu.main(['--device', 'cpu', '--tiny', '--members', '2', '--only', {name!r}])",
        "polars",
    )
    assert f"| {name} |" in done.stdout, done.stderr
