"""Stand-ins for what a test cannot have, put into every Python that a document's commands start.

Loaded by Python itself, since its folder is on PYTHONPATH. Each stand-in changes one module right after its import:

| module | stands in for | by |
|---|---|---|
| `tasks.market.client` | Binance's hosts | the simulator on loopback (`CPB_DOCS_BINANCE`) |
| `schemas.identity` | `all` coins: 20 | BTC and ETH |
| `cpbmodels.arch.presets`, `schemas.presets` | a training of minutes | two steps, one seed, else as the preset says |
| `flows.deploy.services` | a Prefect server, a run | what they return; the name is checked |

`tests/e2e/test_e2e_deploy.py` runs the real server, and the presets as they are train in `tests/flows` and `tests/e2e`.
"""

import os
import sys
from dataclasses import replace
from functools import wraps
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace

FAST = {"epochs": 1, "steps_per_epoch": 2, "max_train_rows": 1500, "max_validation_windows": 64, "workers": 1}


def binance(module):
    url = os.environ["CPB_DOCS_BINANCE"]
    module.BINANCE = module.BINANCE_BUCKET = url
    module.BINANCE_REST = dict.fromkeys(module.BINANCE_REST, url)


def two_coins(module):
    parse = module.parse_coins

    @wraps(parse)
    def of(text, *options, **named):
        return parse("BTC,ETH" if text.strip().lower() == "all" else text, *options, **named)

    module.parse_coins = of


def two_steps(module):
    make = module.preset

    @wraps(make)
    def quick(name="default", architecture="har", profile=None, **overrides):
        found = make(name, architecture, profile, **overrides)
        return replace(found, **FAST, patience=min(found.patience, 1))

    module.preset = quick


def one_seed(module):
    module.PRESET_COPIES = {}


def no_server(module):
    def run(name, parameters, watch):
        import yaml

        text = (Path(__file__).parents[3] / "prefect.yaml").read_text()
        names = {deployment["name"] for deployment in yaml.safe_load(text)["deployments"]}
        assert module.NAMES.get(name, name).partition("/")[2] in names, f"{name} is none of {names}"
        assert all("=" in parameter for parameter in parameters)
        state = SimpleNamespace(name="Scheduled", message="", is_completed=lambda: watch)
        return SimpleNamespace(name="quick-fox", id="0", state=state)

    module.up = lambda port: module.Started(4200, ["server", "worker"])
    module.down = lambda: ["worker", "server"]
    module.run = run


CHANGES = {
    "tasks.market.client": binance,
    "schemas.identity": two_coins,
    "cpbmodels.arch.presets": two_steps,
    "schemas.presets": one_seed,
    "flows.deploy.services": no_server,
}


class AfterImport(MetaPathFinder):
    """Finds the modules of `CHANGES` as the other finders do, and changes each once it has been executed."""

    def find_spec(self, name, path, target=None):
        if name not in CHANGES:
            return None
        others = (one for one in sys.meta_path if one is not self)
        spec = next((found for one in others if (found := one.find_spec(name, path, target))), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def change(module):
            execute(module)
            CHANGES[name](module)

        spec.loader.exec_module = change
        return spec


sys.meta_path.insert(0, AfterImport())
