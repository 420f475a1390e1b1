"""How fast tracking is: `python -m benchmarks.tracking [--only PART] [--json]`.

`store` makes a new SQLite store, our way and MLflow's own. `members` logs 40 members × 50 epochs × 6 metrics
with params and tags, as one fleet. `flow` logs 5 such fleets with 5 artifact files a member, then
promotes 40 champions and reads the leaderboard. `wal` compares the members with SQLite's default journal.
"""

import argparse
import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from schemas.identity import ModelId, SeriesId
from tasks.tracking.database import make_sqlite
from tasks.tracking.leaderboard import leaderboard
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.records import MemberRecord
from tasks.tracking.registry import champions, register
from tasks.tracking.runs import finish, log_members, start_fleet, start_parent
from tasks.tracking.versions import succeed

MEMBERS, EPOCHS, FILE_BYTES = 40, 50, 100_000
FILES = ("model.safetensors", "config.json", "metrics.json", "forecast.png", "loss.png")


def records(architecture: str, folder: Path | None = None) -> list[MemberRecord]:
    names = ("train_loss", "val_loss", "lr", "grad_norm", "seconds", "rows_per_s")  # six metrics an epoch
    history = [{"epoch": e, **dict.fromkeys(names, 1 / (e + 1))} for e in range(EPOCHS)]
    return [
        MemberRecord(
            key=f"{architecture}/{i}",
            model=ModelId(
                architecture, "benchmark", SeriesId("spot", f"C{i // 2}USDT", ("15m", "1h")[i % 2]), 1
            ),
            device="cpu",
            preset="benchmark",
            data_digest=f"{i:064d}",
            as_of="2025-06-06",
            config={f"field_{j}": j for j in range(40)} | {"rows": 5000 + i},
            history=history,
            metrics={f"test_{j}": j / 7 for j in range(20)} | {"test_crps_ratio": 0.9 + i / 200},
            folder=folder,
        )
        for i in range(MEMBERS)
    ]


def store() -> dict[str, float]:
    from mlflow.store.db import utils

    started = time.perf_counter()
    open_store()
    ours = time.perf_counter()
    engine = utils.create_sqlalchemy_engine("sqlite:///theirs.db")
    utils._safe_initialize_tables(engine)
    theirs = time.perf_counter()
    engine.dispose()
    return {"ours_s": ours - started, "mlflow_migration_s": theirs - ours}


def members() -> dict[str, float]:
    open_store()
    flow = start_parent("benchmark", {})
    fleet = start_fleet(flow.run_id, "gru", "gru")
    started = time.perf_counter()
    log_members(fleet.run_id, records("gru"))
    seconds = time.perf_counter() - started
    points = MEMBERS * EPOCHS * 6
    return {"seconds": seconds, "ms_per_member": seconds / MEMBERS * 1e3, "points_per_s": points / seconds}


def wal() -> dict[str, float]:
    """Both with commits that reach the disk; the journal is set back before the store is first opened."""
    found = {"wal_s": members()["seconds"]}
    os.chdir(Path.cwd().parent / "second")
    database = Path("mlruns/mlflow.db").absolute()
    make_sqlite(database)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    return found | {"delete_s": members()["seconds"]}


def flow() -> dict[str, float]:
    folder = Path("model")
    folder.mkdir()
    for name in FILES:
        (folder / name).write_bytes(os.urandom(FILE_BYTES))
    store = open_store()
    started = time.perf_counter()
    parent = start_parent("benchmark", {})
    for architecture in ("transformer", "gru", "lstm", "linear", "har"):
        fleet = start_fleet(parent.run_id, architecture, architecture)
        batch = records(architecture, folder)
        ids = log_members(fleet.run_id, batch)
        finish(fleet.run_id)
    finish(parent.run_id)
    logged = time.perf_counter()
    for record, run_id in zip(batch, ids, strict=True):
        succeed(store, register(record.model.series, run_id, store=store))
    promoted = time.perf_counter()
    rows, served = leaderboard(), champions()
    read = time.perf_counter()
    log_members(fleet.run_id, batch)
    again = time.perf_counter()
    if (len(rows), len(served)) != (10, MEMBERS):
        raise RuntimeError(f"expected 10 rows and {MEMBERS} champions, got {len(rows)} and {len(served)}")
    return {
        "log_200_s": logged - started,
        "promote_40_s": promoted - logged,
        "read_s": read - promoted,
        "log_40_again_s": again - read,
    }


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "store": store,
    "members": members,
    "flow": flow,
    "wal": wal,
}


def measure(part: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Run a part in an empty folder of its own."""
    before = Path.cwd()
    with TemporaryDirectory() as folder:
        for name in ("first", "second"):
            (Path(folder) / name).mkdir()
        os.chdir(Path(folder) / "first")
        try:
            return part()
        finally:
            os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(PARTS))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    import mlflow  # imported here so that no part is charged for it

    found = {name: measure(part) for name, part in PARTS.items() if asked.only in (None, name)}
    if asked.json:
        print(json.dumps({"mlflow": mlflow.__version__, **found}))
        return
    for name, figures in found.items():
        print(f"{name:>10}  " + "  ".join(f"{key} {value:,.3f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
