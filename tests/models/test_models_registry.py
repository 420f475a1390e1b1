"""Architectures are found by name; a new one is a file and a line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cpbmodels import ModelError, architecture, architectures, load, preset

ROOT = Path(__file__).parents[2]
BUILT_IN = [
    "transformer",
    "gru",
    "lstm",
    "lstm-manual",
    "linear",
    "har",
    "robust-har",
    "line",
    "walk",
    "average",
    "classifier-gru",
]
(TCN,) = re.findall(r'```python\n("""`tcn`.*?)```', (ROOT / "docs" / "extending.md").read_text(), re.DOTALL)


def python(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new process that sees the packages in `paths`."""
    search = os.pathsep.join(map(str, [ROOT, *paths]))
    environment = os.environ | {"PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment
    )


def test_names_cost_neither_torch_nor_numpy():
    done = python(
        "import sys, cpbmodels\n"
        f"assert cpbmodels.architectures()[:11] == {BUILT_IN}, cpbmodels.architectures()\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_refused_with_the_choices():
    with pytest.raises(ModelError) as error:
        architecture("lstn")
    assert all(name in str(error.value) for name in architectures())


USE_TCN = """
import json, sys
from tests.tools.candles import walk
import cpbmodels, cpbmodels.arch
cpbmodels.arch._BUILT_IN["tcn"] = "toy_tcn:Tcn"
series = [walk(500, seed=seed) for seed in (1, 2)]
fleet = cpbmodels.train_fleet(series, "tcn", "smoke", seeds=[1, 2], device="cpu", n_layers=3, epochs=1)
loaded = cpbmodels.load(fleet[1].save(sys.argv[1] if len(sys.argv) > 1 else {folder!r}))
assert (loaded.forecast(series[1]).candle == fleet[1].forecast(series[1]).candle).all()
info = cpbmodels.architecture("tcn")
options = cpbmodels.preset("default", "tcn")
print(json.dumps({{
    "names": cpbmodels.architectures(),
    "info": [info.closed_form, info.classifier, info.presets, info.default_preset],
    "layers": options.n_layers,
    "no_effect": len(cpbmodels.without_effect(options, "tcn", ["n_heads", "n_layers"])),
}}))
"""


def test_the_documented_architecture_trains_saves_and_loads(tmp_path):
    (tmp_path / "toy_tcn.py").write_text(TCN)
    folder = tmp_path / "model"
    done = python(USE_TCN.format(folder=str(folder)), tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["names"] == [*BUILT_IN, "tcn"]
    assert report["info"] == [False, False, [], "default"]
    assert report["layers"] == 4
    assert report["no_effect"] == 1
    with pytest.raises(ModelError, match="'tcn', which this cpbmodels does not have"):
        load(folder)


def test_presets_resolve_in_order():
    seed = preset("seed-lstm", "lstm", profile="cpu", max_epochs=3)
    values = (seed.hidden_dim, seed.epochs, seed.batch_size, seed.schedule, seed.cuda_graph)
    assert values == (256, 3, 32, "constant", False)
    assert preset("smoke", "har").context == 1


@pytest.mark.parametrize(
    ("name", "stated", "tuned"),
    [
        ("transformer", ("adamw", 1e-3, "constant", 128, 50), (5e-4, "cosine")),
        ("gru", ("adam", 1e-3, "constant", 64, 100), (1e-3, "constant")),
        ("lstm", ("adam", 1e-3, "constant", 32, 200), (1e-3, "step")),
    ],
)
def test_the_seeds_are_offered_as_their_notes_state_them_and_tuned(name, stated, tuned):
    original, ours = preset(f"seed-{name}", name), preset(f"seed-{name}-tuned", name)
    assert original.features == ("r_open", "r_high", "r_low", "r_close")
    assert (
        original.optimizer,
        original.lr,
        original.schedule,
        original.batch_size,
        original.epochs,
    ) == stated
    assert (ours.lr, ours.schedule) == tuned
    assert ours.features == (*original.features, "log_sigma")
