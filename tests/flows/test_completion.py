"""What a shell is given when a person presses the tabulator, asked as bash asks."""

import os
import subprocess
import sys

import pytest

from schemas.coins import COINS
from schemas.presets import PRESET_ARCHITECTURES

CODE = """
import sys
from flows.cli import main
sys.argv = ["cpb"]
try:
    main()
finally:
    heavy = {"torch", "polars", "numpy", "mlflow", "prefect"} & {*sys.modules}
    print("loaded:", *heavy, file=sys.stderr)
"""


@pytest.fixture
def completed(tmp_path):
    (tmp_path / "home" / "klines" / "interval=1h" / "symbol=WIFUSDT").mkdir(parents=True)
    (tmp_path / "home" / "presets").mkdir()
    (tmp_path / "home" / "presets" / "mine.toml").touch()
    # A name that the shell would not take as it is: it is not completed.
    (tmp_path / "$(touch pwned).toml").touch()
    (tmp_path / "MyOwn.toml").touch()

    def complete(line):
        words = line.split(" ")
        asked = {"_CPB_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        env = os.environ | asked | {"CPB_HOME": str(tmp_path / "home")}
        run = subprocess.run(
            [sys.executable, "-c", CODE], env=env, cwd=tmp_path, capture_output=True, text=True
        )
        assert run.stderr.strip() == "loaded:"
        return run.stdout.split()

    return complete


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("cpb forecast ", [*COINS, "WIF", "all"]),
        ("cpb forecast bt", ["btc"]),
        ("cpb forecast BTC 1", ["1s", "1m", "15m", "1h", "12h", "1d", "1w"]),
        ("cpb ingest --coins BTC,ET", ["BTC,ETH"]),
        ("cpb ingest --coins BTC,BT", []),
        ("cpb champions --timeframes 15m,1h,4", ["15m,1h,4h"]),
        ("cpb train-all --preset ", [*PRESET_ARCHITECTURES, "mine.toml", "MyOwn.toml"]),
        ("cpb train-all --preset default,seed-gru-", ["default,seed-gru-tuned"]),
        ("cpb train-all --architectures robust-har,har", ["robust-har,har", "robust-har,har-universal"]),
        ("cpb backtest --arch average", ["average", "average-universal"]),
        ("cpb train BTC 1h --profile gpu-8", ["gpu-80gb"]),
        ("cpb presets m", ["mine.toml"]),
        ("cpb ingest --coins btc,bt", []),
        ("cpb presets seed-l", ["seed-lstm", "seed-lstm-tuned"]),
        ("cpb promote DO", ["DOGE"]),
        ("cpb ledger --market s", ["spot", "sim"]),
        ("cpb forecast BTC 1h --touch ", []),
    ],
)
def test_values_are_completed_quickly(completed, line, values):
    assert sorted(completed(line)) == sorted(values)
