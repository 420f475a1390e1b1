"""The library page's section on models that travel runs as it stands there, after one real training."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import TOKEN, fake_hub
from hub_models import REPO

from schemas.identity import SeriesId
from tasks.market import simulator
from tasks.market.klines import read_klines

PAGE = Path(__file__).parents[2] / "docs/library.md"


def run(folder, *command, **env):
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("CPB_", "MLFLOW_TRACKING", "PREFECT_API"))
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=kept | env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_pandas_mlflow_the_hub_and_freqtrade_each_forecast_in_a_few_lines(tmp_path):
    above, _, section = PAGE.read_text().partition("## Models that travel")
    loading, *travelling = (re.findall(r"```python\n(.*?)```", part, re.DOTALL) for part in (above, section))
    blocks = [loading[0], *travelling[0]]
    assert len(blocks) == 4
    assert all(len(block.splitlines()) <= 5 for block in blocks[1:])
    assert PAGE.read_text().count(" load(") == 1
    with simulator.serve() as url, fake_hub() as server:
        hub = {"HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "hf")}
        scope = ("--coins", "BTC", "--timeframes", "1h")
        run(tmp_path, "-m", "flows.cli", "train-all", *scope, "--source", url, "--preset", "smoke",
            "--architectures", "har", "--repo", REPO, **hub)  # fmt: skip
        klines = read_klines(tmp_path / "data", SeriesId("spot", "BTCUSDT", "1h"))
        columns = ("open_time", "open", "high", "low", "close")
        klines.select(*columns).tail(1500).write_parquet(tmp_path / "candles.parquet")
        code = "\nprint('====')\n".join(blocks).replace("USER/NAME", REPO)
        shown = run(tmp_path, "-c", code, **hub).split("====")
    assert all("issued_at" in text for text in shown[:3]), shown
    assert "[1500 rows x 205 columns]" in shown[3]  # date and prices, then 20 columns for each of 10 steps
