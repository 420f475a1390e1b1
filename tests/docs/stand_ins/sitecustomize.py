"""Stand-ins for what a test cannot have, put into every Python that a document's commands start.

Loaded by Python itself, since its folder is on PYTHONPATH. Each stand-in changes one module right after its import:

| module | stands in for | by |
|---|---|---|
| `tasks.market.client` | Binance's hosts | the simulator on loopback (`CPB_DOCS_BINANCE`) |
| `schemas.identity` | `all` coins: 20 | BTC and ETH |
| `cpbmodels.arch.presets`, `schemas.presets` | a training of minutes | two steps, one seed, else as the preset says |
| `flows.deploy.control`, `.runs` | a Prefect server, a run | what they return; the name is checked |

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
    server = SimpleNamespace(
        name="server", port=4200, api="http://127.0.0.1:4200/api", home=Path(os.environ["PREFECT_HOME"]),
        process=SimpleNamespace(pid=1),
    )  # fmt: skip
    worker = SimpleNamespace(name="worker", process=SimpleNamespace(pid=2))
    module.up = lambda port: SimpleNamespace(
        server=server,
        worker=worker,
        started=["server", "worker"],
        ended=[],
        dropped=0,
        seconds=1.0,
    )
    module.down = lambda: ["worker", "server"]


def no_run(module):
    def run(name, param, watch):
        import yaml

        text = (Path(__file__).parents[3] / "prefect.yaml").read_text()
        known = yaml.safe_load(text)["deployments"]
        found = [
            one
            for one in known
            if name in (one["name"], f"{one['entrypoint'].rpartition(':')[2]}/{one['name']}")
        ]
        assert found, f"{name} is none of {[one['name'] for one in known]}"
        assert all("=" in one for one in param)
        ending = "Completed" if watch else "Scheduled"
        return SimpleNamespace(
            name="quick-fox", deployment=name, state=ending, message="", flow_run_id="0", exit_code=0
        )

    module.run = run


CHANGES = {
    "tasks.market.client": binance,
    "schemas.identity": two_coins,
    "cpbmodels.arch.presets": two_steps,
    "schemas.presets": one_seed,
    "flows.deploy.control": no_server,
    "flows.deploy.runs": no_run,
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
