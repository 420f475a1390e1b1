"""`cpb verify` where it may not write, and where its libraries cannot be loaded."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tasks.storage.source_code import ROOT
from tasks.verify.verification import verify_all
from tests.tools.stored_home import MARKET, SERIES, flip

CPB = [sys.executable, "-m", "flows.cli"]
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


def has_mounts():
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def read_only(stored, built):
    """Run `cpb verify` with everything that is stored on a read-only mount; return exit code, output and errors."""
    if not has_mounts():
        pytest.skip("mounts need root")

    def run():
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", READ_ONLY, str(built), *CPB, "verify", "--market", "sim", "--json"],
            cwd=ROOT,
            env=os.environ | {"CPB_HOME": str(stored)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
def test_a_read_only_mount_is_checked_and_damaged_months_are_named(stored, read_only):
    code, result = read_only()
    # SQLite writes beside a database whose newest changes lie in the WAL, also to read it.
    unread = ["the champions of market sim could not be checked: the MLflow store"]
    assert result["damaged"] == []
    assert (code, [text[: len(unread[0])] for text in result["unchecked"]]) in ((0, []), (1, unread))
    candles = SERIES.folder(stored, "klines") / "2025-04.parquet"
    flip(candles)
    forecasts = SERIES.folder(stored, "forecasts") / "2025-05.parquet"
    flip(forecasts)
    code, result = read_only()
    reasons = {damage["path"]: damage["reason"] for damage in result["damaged"]}
    assert code == 1
    assert reasons.keys() == {path.relative_to(stored).as_posix() for path in (candles, forecasts)}
    assert "line 1 of the chain records its first batch" in reasons[forecasts.relative_to(stored).as_posix()]


@pytest.mark.parametrize(
    "place",
    [
        "klines/**/2025-04.parquet",
        "forecasts/**/*.parquet",
        "fleets/*/members/*/model/model.safetensors",
        "fleets/*/members/*/model/config.json",
        "fleets/*/members/*/score-*.npz",
        "fleets/*/job.json",
        "fleets/*/result.json",
    ],
)
def test_a_pipe_in_place_of_a_file_is_named_and_no_reason_to_wait(stored, place):
    root = stored / MARKET if list((stored / MARKET).glob(place)) else stored
    path = sorted(root.glob(place))[0]
    path.unlink()
    os.mkfifo(path)
    result = verify_all(stored, [MARKET])
    damaged = {damage.path: damage.reason for damage in result.damaged}
    assert path.relative_to(stored).as_posix() in damaged
    assert any("not a regular file" in reason for reason in damaged.values()), damaged
