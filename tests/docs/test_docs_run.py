"""Python and TOML of README and documents are executed, page by page, where a reader has trained models.

Shell commands are checked by reading: `test_docs_written.py`.
"""

import io
import os
import shutil
import subprocess
import tomllib
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path

import mlflow
import polars as pl
import pytest

from schemas.identity import SeriesId
from tasks.forecasting.months import latest
from tasks.forecasting.price_chances import chances_of
from tasks.market import simulator
from tasks.market.klines import read_klines
from tests.tools.doc_blocks import EXECUTED, blocks
from tests.tools.fake_hub import TOKEN, fake_hub

BY_PAGE: dict[str, list] = {}
for fenced in blocks():
    if fenced.kind in EXECUTED:
        BY_PAGE.setdefault(fenced.page, []).append(fenced)

CANDLES = 'import pandas as pd; candles = pd.read_csv("candles.csv")'
SERIES = 'from cpbmodels import Series, train_fleet; series = Series.from_frame(candles, "BTCUSDT", "1h")'
BEFORE = {
    "cpbmodels/README.md": CANDLES,
    "docs/mlflow.md": CANDLES,
    "docs/extending.md": """
import csv, sys, types  # ccxt is not installed: a module that answers as Kraken's would
rows = [[int(row[0]), *map(float, row[1:6])] for row in list(csv.reader(open("candles.csv")))[1:]]
kraken = types.SimpleNamespace(fetch_ohlcv=lambda symbol, timeframe: rows)
sys.modules["ccxt"] = types.SimpleNamespace(kraken=lambda: kraken)
""",
    "docs/freqtrade.md": "class IStrategy: pass",
    # `datasets` is not installed, and the snippet asks the real Hub; tests/hub/test_data_set_card.py reads a copy.
    "docs/publishing.md": f"""
import sys, types
sys.modules["datasets"] = types.SimpleNamespace(load_dataset=lambda *files, split, **options: None)
{CANDLES}
{SERIES}""",
    "docs/tuning.md": f"{CANDLES}\n{SERIES}",
}
"""Python that a page's reader has run before its first snippet: data of one's own, names that the text explains."""
DUE = """
from pathlib import Path
from tests.tools.live_record import read
from schemas.forecast_rows import LEDGER_SCHEMA
from schemas.identity import SeriesId
from tasks.forecasting.chain import append
coin = SeriesId("spot", "BTCUSDT", "1h")  # its forecasts come due hours later: here they do at once
due = read(Path("data"), coin).with_columns(realised_close="last_close", scored_at="target_time")
append(Path("data"), "spot", "scores", {coin: due.select(*LEDGER_SCHEMA)})
"""


def cpb(program, folder, environment, *words):
    done = subprocess.run(
        [program, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def place(tmp_path_factory, forking):
    """A reader's folder with champions of BTC and ETH, published, and candles in files; and the Hub's variables."""
    folder = tmp_path_factory.mktemp("reader")
    until = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    market = simulator.SimulatedMirror(until, until - timedelta(days=150))
    with simulator.serve(market) as url, fake_hub() as hub, pytest.MonkeyPatch.context() as patch:
        of_hub = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(folder / "hf")}
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CPB_", "MLFLOW_TRACKING"))
        }
        environment = kept | of_hub
        scope = ("--coins", "BTC,ETH", "--timeframes", "1h", "--source", url)
        cpb(
            forking / "cpb",
            folder,
            environment,
            "train-all",
            *scope,
            "--preset",
            "smoke",
            "--architectures",
            "har",
        )
        patch.chdir(folder)
        exec(DUE, {})
        cpb(forking / "cpb", folder, environment, "publish", "--repo", "USER/NAME")
        candles = read_klines(folder / "data", SeriesId("spot", "BTCUSDT", "1h"))
        plain = candles.select("open_time", "open", "high", "low", "close", "volume")
        plain.with_columns(pl.col("open_time").dt.epoch("ms")).write_csv(folder / "candles.csv")
        plain.rename({"open_time": "date"}).write_csv(folder / "BTCUSDT-1h.csv")
        candles.write_parquet(folder / "candles.parquet")
        for name in ("a/model/folder", "hub/BTCUSDT/1h"):
            shutil.copytree(folder / "data/hub/BTCUSDT/1h", folder / name)
        yield folder, of_hub


@pytest.fixture
def own_mlflow():
    """Forgets the tracking store that a page's snippet set for its reader's process, which here is other tests' too."""
    yield
    mlflow.set_tracking_uri(None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", BY_PAGE)
@pytest.mark.usefixtures("own_mlflow")
def test_every_snippet_of_the_page_runs(page, place, monkeypatch):
    folder, of_hub = place
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["page", "data"])
    for name, value in of_hub.items():
        monkeypatch.setenv(name, value)
    names = {"__name__": "page"}
    exec(compile(BEFORE.get(page, ""), f"before {page}", "exec"), names)
    for block in BY_PAGE[page]:
        try:
            run(block, names)
        except Exception as error:
            error.add_note(f"{block.place}, {block.kind}")
            raise


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_published_row_and_the_table_of_its_model_give_what_was_stated(place, monkeypatch):
    monkeypatch.chdir(place[0])
    (snippet,) = [block for block in BY_PAGE["docs/publishing.md"] if "chances.first" in block.text]
    names = {}
    run(snippet, names)
    coin = SeriesId("spot", "BTCUSDT", "1h")
    rows = latest(Path("data"), coin)
    last_close = rows["last_close"][0]
    stated = chances_of(Path("data"), coin, rows).first(1.02 * last_close, 0.99 * last_close)
    assert names["first"].tolist() == [[chance["target_first"], chance["stop_first"]] for chance in stated]
    assert 0 < names["first"][-1, 0] < names["first"][-1, 1] < 1


def run(block, names):
    if block.kind == "python":
        with redirect_stdout(io.StringIO()):
            exec(compile(block.text, block.place, "exec"), names)
    else:
        settings(block, tomllib.loads(block.text))


def settings(block, data):
    """A preset file is one that a run takes."""
    from schemas.run import RunSpec

    name = block.text.partition("\n")[0].removeprefix("# ").split()[0]
    Path(name).write_text(block.text)
    fleets = RunSpec(preset=name).fleets
    assert [fleet.architecture for fleet in fleets] == data["architectures"]
    assert all(fleet.overrides == data["options"] and fleet.seeds == data["seeds"] for fleet in fleets)
