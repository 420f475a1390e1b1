"""What docs/publishing.md says of the chain can be done by hand, and finds what it should."""

import re
import subprocess
import sys
from pathlib import Path

from forecast_tools import BTC, HOUR, PEPE, START, append, flip, rows_at, write_candles

from tasks.forecasting.ledger import score_due
from tasks.forecasting.lines import chain_path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "publishing.md"


def check_by_hand(home):
    (code,) = re.findall(r"```python\n(import hashlib.+?)```", PAGE.read_text(), flags=re.S)
    return subprocess.run(
        [sys.executable, "-c", code, str(home)], capture_output=True, text=True, check=False
    )


def test_the_pages_program_recomputes_lines_and_rows(tmp_path):
    for hours in range(6):
        append(tmp_path, PEPE, rows_at(hours))
    append(tmp_path, BTC, rows_at(series=BTC, made_at=None))
    write_candles(tmp_path, [8e-6] * 30)
    assert score_due(tmp_path, [PEPE], START + 4 * HOUR).rows == 10

    done = check_by_hand(tmp_path)
    assert done.stdout == "8 lines fit, and 80 rows\n", done.stderr
    (command,) = re.findall(r"```sh\n(tail .+?)```", PAGE.read_text(), flags=re.S)
    where = str(chain_path(tmp_path, "spot"))
    line = subprocess.run(
        ["bash", "-c", command.replace("data/forecasts/chain.jsonl", where)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f'"hash":"{line.stdout.split()[0]}"' in Path(where).read_text().splitlines()[-1]

    flip(chain_path(tmp_path, "spot"), 0.45)
    assert check_by_hand(tmp_path).returncode != 0
