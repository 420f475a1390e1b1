"""The place in which the documents' commands run: a clone with a home, Binance, a Hub and services on loopback."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import fork_server
from fake_hub import TOKEN, fake_hub
from inbox import inbox
from snippets import ROOT

from schemas.identity import INTERVAL_SECONDS
from tasks.market import mirror, simulator
from tasks.market.layout import DAY, day_of, grid_of, period_bounds, to_us

HERE = Path(__file__).parent
NOT_CLONED = {".git", ".venv", ".venv-freqtrade", "data", "mlruns", "build", "dist", ".cpb"}

SUBSTITUTES = [
    (r"tgram://\S+ mailto://[^\"\s]+", "json://127.0.0.1:{inbox}/", "a service that needs an account: one on loopback"),
    (r"https://hc-ping\.com/PING_KEY", "http://127.0.0.1:{inbox}", "the same for the heartbeat"),
    (r"--head HASH", "--help", "a hash that an earlier run printed"),
    (r"--version 7", "--version 1", "the one version that there is"),
    (r"cpb promote BTC 1h --version previous", "cpb promote BTC 1h --version 1", "nothing was replaced yet"),
    (r"--timeframes 1w,1mo", "--timeframes 1mo", "the simulator has no weeks"),
    (r"-p 5001", "-p {port}", "a free port"),
    (r"127\.0\.0\.1:5001", "127.0.0.1:{port}", "the same"),
    (r"^mlflow models serve (.*)$", "begin {port} mlflow models serve \\1", "it runs until it is stopped"),
    (r"^(\.venv/bin/)?cpb serve.*$", "begin {port} cpb serve --port {port}", "it runs until it is stopped"),
    (r"^(\.venv/bin/)?cpb doctor.*$", "cpb doctor --quick --json || [ $? = 1 ]",
     "half a minute of measurements, and a verdict on the machine that runs the test"),
    (r"^python -m (benchmarks\.\w+) .*$", "python -m \\1 --help", "minutes; tests/benchmarks runs them small"),
    (r"^(\.venv/bin/)?(cpb train-all .*--as-of .*)$", "fresh \\2",
     "an earlier training would replace newer champions: it gets a home of its own"),
    (r"MLFLOW_BACKEND_STORE_URI=\S+", "MLFLOW_BACKEND_STORE_URI=sqlite:///tracking.db",
     "a PostgreSQL server; tests/e2e/test_e2e_several_machines.py has one"),
    (r"^mlflow server (.*) --port 5000 (.*)$", "begin {port} mlflow server \\1 --port {port} \\2",
     "it runs until it is stopped"),
    (r"http://127\.0\.0\.1:5000", "http://127.0.0.1:{port}", "its address here"),
    (r"--engine ray", "--engine local", "a cluster of several machines; tests/training/test_ray.py has one"),
    (r"--trials 256 --budget 10m", "--trials 4", "ten minutes"),
]  # fmt: skip
"""What is typed -> what runs instead, and what it stands for; all else runs as it is written."""

RECORDED = {
    "pip": "an installation: its arguments are looked at (folder, extras and file must exist)",
    "ruff": "part of `make test`, which runs this test",
    "mypy": "the same",
    "lint-imports": "the same",
    "pytest": "the same",
    "mkdocs": "test_docs_site.py builds the site",
    "freqtrade": "its own environment of 1.8 GB; tests/e2e/test_e2e_freqtrade.py runs it",
    "git": "a clone from a host",
    "prefect": "a Prefect server; tests/e2e/test_e2e_deploy.py has one",
    "nvidia-smi": "a GPU and its driver",
    "aws": "a download from a host: FOLDER is there already",
    "ray": "a cluster of several machines; tests/training/test_ray.py has one of two nodes",
    "curl": "a download from a host; calls of loopback addresses are real",
}
"""Programs that are written down and not run, and why."""


@dataclass
class World:
    """A clone in a folder of its own. `ran`: what a shell has executed, so that no command runs twice."""

    folder: Path
    environment: dict[str, str]
    inbox_port: int
    ran: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)

    def shell(self, text: str, code: int = 0) -> str:
        """Run a script line by line in one shell; returns what it printed."""
        written = self.substituted(text)
        done = subprocess.run(
            ["bash", "-c", f"set -eo pipefail\n. {HERE / 'shell.sh'}\n{written}"],
            cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=1200, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"exit {done.returncode}\n{written}\n{done.stdout[-4000:]}"
        return done.stdout

    def substituted(self, text: str) -> str:
        lines = []
        for line in text.replace("\\\n", " ").splitlines():
            bare = re.sub(r"\s+#\s.*$", "", line)
            known = bare.removeprefix(".venv/bin/")
            if known in self.ran and known.startswith("cpb "):
                continue
            self.ran.add(known)
            for pattern, instead, _ in SUBSTITUTES:
                if re.search(pattern, bare):
                    self.used.add(pattern)
                    ports = {"{inbox}": str(self.inbox_port), "{port}": str(self.port)}
                    for name, number in ports.items():
                        instead = instead.replace(name, number)
                    bare = re.sub(pattern, instead, bare)
            if bare.startswith("python -m") and bare in self.ran:
                continue
            self.ran.add(bare)
            lines.append(bare)
        return "\n".join(lines) + "\n"

    @property
    def port(self) -> int:
        return int(self.environment["CPB_DOCS_PORT"])


@contextmanager
def world(folder: Path):
    """A prepared world: champions of BTC and ETH on both timeframes, published to the Hub of loopback."""
    with ExitStack() as stack:
        until = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        market = Market(simulator.SimulatedMirror(until, until - timedelta(days=150)))
        binance = stack.enter_context(mirror.serve(market, rest))
        hub = stack.enter_context(fake_hub())
        services = stack.enter_context(inbox())
        made = _clone(folder, binance, hub.url, services.port)
        stack.enter_context(running(made))
        made.shell("cpb train-all --preset smoke --architectures har,linear --repo USER/NAME")
        _files(made)
        yield made


class Market:
    """The simulator's spot candles, under the names of the futures, too."""

    def __init__(self, simulated):
        self.simulated = simulated

    def keys(self, prefix):
        market = re.match(r"data/futures/(um|cm)/", prefix)
        if not market:
            return self.simulated.keys(prefix)
        found = self.simulated.keys(prefix.replace(market[0], "data/spot/"))
        return [(key.replace("data/spot/", market[0]), etag, size) for key, etag, size in found]

    def read(self, key):
        return self.simulated.read(re.sub(r"data/futures/(um|cm)/", "data/spot/", key))


def rest(_handler, key, query):
    """Binance's REST: the candles of a span of time, or the newest, of which the last is still open."""
    if not key.endswith("/klines"):
        return None
    interval = query["interval"]
    step = INTERVAL_SECONDS[interval] * 1000
    limit, now = int(query.get("limit", 500)), int(time.time() * 1000)
    first = int(query.get("startTime", (now // step - limit + 1) * step))
    last = min(int(query.get("endTime", now)), now, first + (limit - 1) * step)
    rows = []
    for day in range(first // 86_400_000, last // 86_400_000 + 1):
        start, end = period_bounds(day_of(day * 86_400_000_000))
        frame = simulator.candles(query["symbol"], grid_of(interval).end(start) - start, start, end)
        rows += [row for row in frame.rows(named=True) if first <= to_us(row["open_time"]) // 1000 <= last]
    return 200, {"Content-Type": "application/json"}, json.dumps([_row(row, step) for row in rows]).encode()


def _row(row, step):
    opened = to_us(row["open_time"]) // 1000
    values = [f"{row[name]:.8f}" for name in ("open", "high", "low", "close", "volume")]
    amounts = [f"{row[name]:.8f}" for name in ("quote_volume", "taker_buy_volume", "taker_buy_quote_volume")]
    return [opened, *values, opened + step - 1, amounts[0], row["count"], *amounts[1:], "0"]


def _clone(folder, binance, hub, inbox_port):
    clone, scratch, programs = folder / "cpb", folder / "home", folder / "bin"
    for one in (clone, scratch, programs, clone / ".venv/bin"):
        one.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in NOT_CLONED and not path.name.endswith(("egg-info", "_cache")):
            (clone / path.name).symlink_to(path)
    kept = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("CPB_", "MLFLOW_", "PREFECT_", "HF_", "PYTEST", "COV_"))
    }  # fmt: skip
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = kept | {
        "HOME": str(scratch), "PATH": path, "PYTHONPATH": os.pathsep.join([str(HERE / "stand_ins"), str(ROOT)]),
        "CPB_DOCS_BINANCE": binance, "CPB_DOCS_PORT": str(free_port()), "CPB_DEPLOY_STATE": str(folder / "deploy"),
        "PREFECT_HOME": str(scratch / ".prefect"), "HF_ENDPOINT": hub, "HF_TOKEN": TOKEN,
        "HF_HOME": str(scratch / "hf"), "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    return World(clone, environment, inbox_port)


@contextmanager
def running(made):
    """Programs of the workspace: `cpb` by the fork server, Python itself, and those that only write down a call."""
    programs, address = made.folder.parent / "bin", made.folder.parent / "s"
    local = made.folder / ".venv/bin"
    texts = dict.fromkeys(("python", "python3"), f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    texts |= {
        name: f'#!/bin/sh\nexec {sys.executable} {HERE / "recorder.py"} {name} "$@"\n' for name in RECORDED
    }
    for place in (programs, local):
        fork_server.write_clients(place, address)
        for name, text in texts.items():
            (place / name).write_text(text)
            (place / name).chmod(0o755)
    (made.folder / ".venv-freqtrade").mkdir()
    for stamp in (".venv/.installed", ".venv/.installed-dev", ".venv-freqtrade/.installed"):
        (made.folder / stamp).touch()
    (local / "activate").write_text(f'export PATH="{local}:$PATH"\n')
    with fork_server.running(address, made.environment, made.folder):
        yield made


def _files(made):
    """What the documents call FOLDER, DIR and candles: a mirror's folder and tables of one's own."""
    import polars as pl

    until = datetime(2025, 6, 7, tzinfo=UTC)
    simulated = simulator.SimulatedMirror(until, until - timedelta(days=120))
    for symbol in ("BTCUSDT", "ETHUSDT"):
        for interval in ("15m", "1h"):
            for kind in ("monthly", "daily"):
                for key, _, _ in simulated.keys(f"data/spot/{kind}/klines/{symbol}/{interval}/"):
                    path = made.folder / "FOLDER" / key
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(simulated.read(key))
    today = (
        to_us(datetime.now(UTC)) // DAY * DAY
    )  # a table that ends long ago is stale, which `cpb forecast` says
    spans = [(day, day + DAY) for day in range(today - 150 * DAY, today, DAY)]
    candles = pl.concat([simulator.candles("BTCUSDT", 3_600_000_000, *span) for span in spans])
    plain = candles.select(pl.col("open_time").dt.epoch("ms"), "open", "high", "low", "close", "volume")
    named = plain.with_columns(symbol=pl.lit("BTCUSDT"), timeframe=pl.lit("1h"))
    named.write_csv(made.folder / "candles.csv")
    (made.folder / "tables").mkdir()
    plain.write_csv(made.folder / "tables/BTCUSDT-1h.csv")
    candles.write_parquet(made.folder / "candles.parquet")
    dated = candles.select(pl.col("open_time").alias("date"), "open", "high", "low", "close", "volume")
    dated.write_csv(made.folder / "BTCUSDT-1h.csv")
    champion = made.folder / "data/hub/BTCUSDT/1h"
    for name in ("champion", "a/model/folder", "hub/BTCUSDT/1h"):
        shutil.copytree(champion, made.folder / name, dirs_exist_ok=True)
    for name in ("user_data/cpb", "user_data/strategies", ".venv/bin"):
        (made.folder / "FREQTRADE" / name).mkdir(parents=True)
    shutil.copy(made.folder / ".venv/bin/pip", made.folder / "FREQTRADE/.venv/bin/pip")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
