"""Every command and snippet of README and documents is executed; what stands in for what is said in `world.py`,
`stand_ins/sitecustomize.py` and below. A block that no table knows fails.
"""

import io
import json
import re
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import mlflow
import pytest
import yaml
from snippets import ROOT, blocks, script
from world import RECORDED, SUBSTITUTES, world

BLOCKS = [block for block in blocks() if block.kind != "text"]
BY_PAGE = {
    page: [block for block in BLOCKS if block.page == page] for page in dict.fromkeys(b.page for b in BLOCKS)
}

CANDLES = 'import pandas as pd; candles = pd.read_csv("candles.csv")'
BEFORE: dict[str, str] = {
    "cpbmodels/README.md": CANDLES,
    "docs/mlflow.md": CANDLES,
    "docs/own-candles.md": """
import csv, sys, types  # ccxt is not installed: a module that answers as Kraken's would
rows = [[int(row[0]), *map(float, row[1:6])] for row in list(csv.reader(open("candles.csv")))[1:]]
kraken = types.SimpleNamespace(fetch_ohlcv=lambda symbol, timeframe: rows)
sys.modules["ccxt"] = types.SimpleNamespace(kraken=lambda: kraken)
""",
    "docs/freqtrade.md": "class IStrategy: pass",
    "docs/publishing.md": CANDLES
    + """
from pathlib import Path
import polars as pl
from cpbmodels import Series; series = Series.from_frame(candles, "BTCUSDT", "1h")
from schemas.forecasts import LEDGER_SCHEMA
from schemas.identity import SeriesId
from tasks.forecasting.chain import append
from live_record import read
coin = SeriesId("spot", "BTCUSDT", "1h")  # its forecasts come due hours later: here they do at once
due = read(Path("data"), coin).with_columns(realised_close="last_close", scored_at="target_time")
append(Path("data"), "spot", "scores", {coin: due.select(*LEDGER_SCHEMA)})
""",
    "docs/tuning.md": CANDLES
    + """
from cpbmodels import Series, train_fleet; series = Series.from_frame(candles, "BTCUSDT", "1h")""",
}
"""Python that a page's reader has run before its first snippet: data of one's own, names that the text explains."""

CODES: dict[str, int] = {}
"""Scripts (by their first line) that end with another exit code than 0, which their page says."""


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    with world(tmp_path_factory.mktemp("w")) as made:
        yield made


@pytest.fixture
def own_mlflow():
    """Forgets the tracking store that a page's snippet set for its reader's process, which here is other tests' too."""
    yield
    mlflow.set_tracking_uri(None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", BY_PAGE)
@pytest.mark.usefixtures("own_mlflow")
def test_every_block_of_the_page_runs(page, place, monkeypatch):
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr("sys.argv", ["page", "data"])
    for name in ("HF_ENDPOINT", "HF_TOKEN", "HF_HOME", "CPB_DOCS_BINANCE"):
        monkeypatch.setenv(name, place.environment[name])
    names = {"__name__": "page"}
    exec(compile(BEFORE.get(page, ""), f"before {page}", "exec"), names)
    for block in BY_PAGE[page]:
        try:
            run(block, place, names)
        except Exception as error:
            error.add_note(f"{block.place}, {block.kind}")
            raise


def run(block, place, names):
    if block.kind in ("sh", "console"):
        text = script(block)
        place.shell("".join(names.setdefault("exports", [])) + text, CODES.get(text.splitlines()[0], 0))
        # A reader's shell keeps what it was told; a Prefect server it would not find here.
        names["exports"] += [f"{line}\n" for line in text.splitlines() if line.startswith("export CPB_")]
    elif block.kind == "python":
        with redirect_stdout(io.StringIO()):
            exec(compile(block.text, block.place, "exec"), names)
    elif block.kind == "json":
        json.loads(block.text)
    elif block.kind == "yaml":
        found = yaml.safe_load(block.text)
        (ray_cluster if "cluster_name" in found else automation)(found)
    else:
        settings(block, tomllib.loads(block.text))


def settings(block, found):
    """A preset file is one that a run takes; entry points are those that the library reads."""
    if "project" in found:
        from cpbmodels.arch import ENTRY_POINT_GROUP

        assert list(found["project"]["entry-points"]) == [ENTRY_POINT_GROUP]
        return
    from schemas.run import RunSpec

    name = block.text.partition("\n")[0].removeprefix("# ").split()[0]
    Path(name).write_text(block.text)
    assert RunSpec(preset=name).overrides == found["options"]


def ray_cluster(found):
    """A cluster that Ray's own schema takes."""
    schema = Path(pytest.importorskip("ray").__file__).parent / "autoscaler/ray-schema.json"
    pytest.importorskip("jsonschema").validate(found, json.loads(schema.read_text()))
    assert all("RAY_AUTH_MODE=token" in line for name in ("head", "worker") for line in
               found[f"{name}_start_ray_commands"] if "ray start" in line)  # fmt: skip


def automation(found):
    """An automation that Prefect's own schema takes."""
    from prefect.events.schemas.automations import AutomationCore

    found["actions"][0]["block_document_id"] = "00000000-0000-0000-0000-000000000000"
    assert AutomationCore.model_validate(found).actions


def test_every_stand_in_stands_for_something_that_is_written():
    lines = [re.sub(r"\s+#\s.*$", "", line) for block in BLOCKS if block.kind in ("sh", "console")
             for line in script(block).replace("\\\n", " ").splitlines()]  # fmt: skip
    assert not [one for one, _, _ in SUBSTITUTES if not any(re.search(one, line) for line in lines)]
    written = "\n".join([*lines, (ROOT / "Makefile").read_text()])
    assert not [name for name in RECORDED if not re.search(rf"(^|[\s/]){name}\s", written, re.MULTILINE)]
    assert BEFORE.keys() <= BY_PAGE.keys()
    assert CODES.keys() <= set(lines)
