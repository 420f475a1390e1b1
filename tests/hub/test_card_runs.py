"""What the card tells a newcomer to type works: its install line, by real pip, and its code."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from cpbmodels import Series, load
from schemas.identity import INTERVAL_SECONDS
from tasks.market import simulator
from tasks.storage.wheel import light_wheel
from tests.tools.folder_mirror import FolderMirror
from tests.tools.hub_models import REPO, candles, publish_models, trained

ROOT = Path(__file__).parents[2]
BINANCE_HERE = """
import sys, urllib.request

class Here(urllib.request.HTTPSHandler):
    def https_open(self, request):
        return urllib.request.build_opener().open(sys.argv[2] + "/" + request.full_url.split("/", 3)[3])

urllib.request.install_opener(urllib.request.build_opener(Here))
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))
import json
print(json.dumps([forecast.issued_at.timestamp(), forecast.close[0.5].tolist()]))
"""
"""Run a card's code as it is, with Binance's REST at the address of the second argument."""


def blocks(card, kind=""):
    return re.findall(rf"```{kind}\n(.*?)\n```", card, re.DOTALL)


def environment(**changes):
    """The environment of someone who has nothing of cpb, and no token."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "HF_TOKEN", "VIRTUAL_ENV")}
    return kept | changes


def rest_row(row, seconds):
    """One candle as Binance's REST has it."""
    opened = row["open_time"] * 1000
    values = [f"{row[name]:.8f}" for name in ("open", "high", "low", "close", "volume")]
    return [opened, *values, opened + seconds * 1000 - 1, "0", 1, "0", "0", "0"]


def newest_candles(key, query):
    """Binance's answer: the newest candles, of which the last is still open."""
    assert key == "api/v3/klines"
    seconds = INTERVAL_SECONDS[query["interval"]]
    frame = candles(int(query["limit"]), seconds, len(query["symbol"]), last=int(time.time()))
    return [rest_row(row, seconds) for row in frame.iter_rows(named=True)]


@pytest.fixture
def binance(tmp_path):
    """Binance's REST on loopback, and the answers that it gave."""
    given = []

    def hook(_handler, key, query):
        given.append(newest_candles(key, query))
        return 200, {}, json.dumps(given[-1]).encode()

    with simulator.serve(FolderMirror(tmp_path), hook) as url:
        yield url, given


def pip(requirement, *options, **env):
    """Install with this environment's pip."""
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, requirement],
        env=environment(PIP_CONFIG_FILE=os.devnull, PIP_NO_CACHE_DIR="1", **env),
        capture_output=True,
        text=True,
    )


def requirement_of(tree):
    line = blocks((tree / "README.md").read_text())[0]
    return re.fullmatch(r'pip install "(.*)"', line)[1]


def test_pip_takes_the_library_from_the_repository_and_checks_its_hash(hub, tmp_path):
    publish_models(tmp_path, trained(tmp_path / "a"))
    requirement = requirement_of(tmp_path / "tree")

    done = pip(requirement, "--no-deps", "--target", str(tmp_path / "lib"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "lib/cpbmodels/hub.py").is_file()

    _kind, oid = hub.repos[REPO].files[light_wheel().name]
    hub.blobs[oid] = light_wheel().data + b"\0"
    refused = pip(requirement, "--no-deps", "--target", str(tmp_path / "other"))
    assert refused.returncode
    assert "hash" in refused.stderr.lower()
    assert not (tmp_path / "other").exists()


def test_the_code_of_the_card_forecasts_after_the_last_closed_candle(hub, binance, tmp_path):
    publish_models(tmp_path, trained(tmp_path / "a"))
    (code,) = blocks(hub.content(REPO, "README.md").decode(), "python")
    (tmp_path / "card.py").write_text(code)
    rest, given = binance
    ran = subprocess.run(
        [sys.executable, "-c", BINANCE_HERE, "card.py", rest],
        env=environment(PYTHONPATH=str(ROOT), HF_HOME=str(tmp_path / "hf")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "shape: (10, 27)" in ran.stdout
    issued_at, medians = json.loads(ran.stdout.splitlines()[-1])
    assert issued_at == given[-1][-1][0] / 1000  # the last candle is still open
    expected = load(tmp_path / "a").forecast(closed_series(given[-1], "BTCUSDT", "1h"))
    np.testing.assert_allclose(medians, expected.close[0.5], rtol=1e-5)


def closed_series(rows, symbol, timeframe):
    columns = np.array([row[:6] for row in rows[:-1]], dtype=float)
    names = ("open_time", "open", "high", "low", "close", "volume")
    return Series.from_frame(pl.DataFrame(columns, schema=list(names)), symbol, timeframe)
