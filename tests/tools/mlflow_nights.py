"""A store as nightly runs leave it: flows, fleets, members with files, champions, all dated."""

import json
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from schemas.identity import ModelId, SeriesId
from tasks.tracking.runs import MemberRecord, finish, log_members, log_metrics, start_fleet, start_parent
from tests.tools.registering import register_champion

FIRST = datetime(2025, 3, 6, 6, 30, tzinfo=UTC)  # a Thursday: night 4 ends its week
NAMES = ("model.safetensors", "config.json", "metrics.json", "forecast.png", "loss.png")
SYMBOLS = ("BTCUSDT", "ETHUSDT")


def day(number):
    """When night `number` ends, from 1."""
    return FIRST + timedelta(days=number - 1)


def ratio(architecture, night):
    return {"gru": 0.9, "har": 0.8}[architecture] + night / 1000


def record(folder, night, architecture, series):
    return MemberRecord(
        key=f"{night}/{architecture}/{series.name}",
        model=ModelId(architecture, "smoke", series, 1),
        device="cpu",
        preset="smoke",
        data_digest=f"data-{night}",
        as_of=day(night).isoformat(),
        config={"hidden": 128, "night": night},
        history=[{"epoch": e, "train_loss": 1.0, "val_loss": 2.0, "lr": 1e-3} for e in range(3)],
        metrics={"test_crps_ratio": ratio(architecture, night), "windows_per_s": 100.0},
        folder=folder,
        tags={"verdict": "no different", "recipe": "smoke"},
    )


def model_files(place, content):
    """A folder that can be read as a model, so that its version becomes an MLflow model."""
    place.mkdir(parents=True, exist_ok=True)
    for name in NAMES[2:]:
        (place / name).write_bytes(f"{content}/{name}".encode() * 20)
    save_file({"w": np.arange(64, dtype=np.float32)}, place / NAMES[0], {"of": content})
    (place / NAMES[1]).write_text(json.dumps({"architecture": "gru", "context": 30, "data_digest": content}))
    return place


def add_night(store, home, number, market="spot", symbols=SYMBOLS, promote=True, database=None):
    """Write what one nightly run writes; return the ids of flow, fleets and members.

    `database`: the SQLite file behind a tracking server; default: the store's own database.
    """
    began = time.time()
    key = f"{market}-train-all-{number}"
    flow = start_parent(key, {"market": market, "seed": 1})
    fleets, members = [], []
    for architecture in ("gru", "har"):
        fleet = start_fleet(flow.run_id, architecture, f"{key}/{architecture}", {"lr": 1})
        fleets.append(fleet.run_id)
        records = []
        for symbol in symbols:
            series = SeriesId(market, symbol, "1h")
            place = model_files(
                home.parent / "trained" / key / architecture / symbol, f"{key}/{architecture}"
            )
            records.append(record(place, number, architecture, series))
        members += log_members(fleet.run_id, records)
        log_metrics(fleet.run_id, {"pooled_crps_ratio_1h": ratio(architecture, number), "train_seconds": 3.0})
        finish(fleet.run_id)
    for symbol, run_id in zip(symbols, members, strict=False) if promote else ():
        series = SeriesId(market, symbol, "1h")
        register_champion(
            series,
            run_id,
            reason=f"night {number}",
            metrics={"test_crps_ratio": 0.9},
            tags={"architecture": "gru", "recipe": "smoke", "verdict": "no different"},
            store=store,
        )
    finish(flow.run_id)
    date_rows(f"sqlite:///{database}" if database else store.uri, began, day(number))
    return flow.run_id, fleets, members


def date_rows(uri, since, moment):
    """Date what the database got since `since` to `moment`: MLflow takes its times from the clock."""
    at, first = int(moment.timestamp() * 1000), int(since * 1000) - 1
    with connected(uri) as connection, connection.begin():
        for table, column in (
            ("runs", "start_time"),
            ("runs", "end_time"),
            ("model_versions", "creation_time"),
        ):
            update = f"UPDATE {table} SET {column} = :at WHERE {column} >= :first"
            connection.execute(text(update), {"at": at, "first": first})


def connected(uri):
    """A connection of its own to a store's database, SQLite or another."""
    return create_engine(uri, poolclass=NullPool).connect()


def state_of(*folders):
    """Every file below the folders with its bytes; of databases the rows, since opening one may touch its file."""
    contents = {}
    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and not path.name.endswith(("-wal", "-shm", ".lock")):
                contents[str(path)] = rows_of(path) if path.suffix == ".db" else path.read_bytes()
    return contents


def rows_of(database):
    with closing(sqlite3.connect(database)) as connection:
        return list(connection.iterdump())


def rows_by_table(uri):
    with connected(uri) as connection:
        names = inspect(connection).get_table_names()
        return {n: connection.execute(text(f"SELECT count(*) FROM {n}")).scalar() for n in names}
