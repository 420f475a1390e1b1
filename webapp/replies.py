"""Responses as bytes: rendered once per state of their source files, cached in bounded memory, sent with an ETag.

Rows are converted from a frame to JSON directly: 5,000 candles take 3 ms, with a pydantic model per row 110 ms.
"""

import csv
import hashlib
import io
import json
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin
from urllib.parse import quote

import polars as pl
from cachetools import LRUCache, cached
from fastapi import Request, Response
from pydantic import BaseModel

from schemas.identity import MARKETS, SeriesId, tree_of
from tasks.tracking.store import sqlite_path
from webapp.answers import OfSeries

Format = Literal["json", "csv"]
Render = Callable[[], bytes]
State = tuple[object, ...]
"""State of stored files: a cached response is valid while the state of its files is unchanged."""

MAX_BYTES = 64 << 20
"""Size of the cache: enough for 40 series with 5,000 candles each."""

_ENTRY_BYTES = 1024
"""Memory of a cached response besides its body: key, digest of the state and dictionary entry, rounded up."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that spreadsheets execute as formulas."""


@dataclass(frozen=True)
class Answer:
    """Content of a response: a model, whose field `table` is the content of the CSV.

    `rows`: the field's rows as a frame, if they are too many for models; the model's own list is then empty.
    """

    head: BaseModel
    table: str = ""
    rows: pl.DataFrame | None = None

    def json(self) -> bytes:
        """Return the content as JSON: times as ISO UTC with Z, non-finite numbers as null."""
        if self.rows is None:
            return self.head.model_dump_json().encode()
        head = self.head.model_dump_json(exclude={self.table}).encode()
        return b"%s,%s:%s}" % (head[:-1], json.dumps(self.table).encode(), rows_json(self.rows))

    def csv(self) -> bytes:
        """Return the table as CSV; nested fields become columns `field_name`, a list of texts is joined by spaces.

        Other lists are left out.
        """
        if self.rows is not None:
            rows = _texts(self.rows).to_dicts()
        else:
            rows = [_flat(self._joined(row)) for row in self.head.model_dump(mode="json")[self.table]]
        of: dict[str, Any] = {}
        if isinstance(self.head, OfSeries):
            of = {name: getattr(self.head, name) for name in ("market", "symbol", "timeframe", "simulated")}
        return _csv([of | row for row in rows], [*of, *self._columns()])

    def _columns(self) -> list[str]:
        """Return the columns that exist even without rows."""
        if self.rows is not None:
            return self.rows.columns
        # The columns of plain dicts are unknown, and nested fields become columns by their content.
        kinds = self._kinds()
        return [n for n, kind in kinds.items() if get_origin(kind) is not list or kind == list[str]]

    def _joined(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | {n: " ".join(row[n]) for n, kind in self._kinds().items() if kind == list[str]}

    def _kinds(self) -> dict[str, Any]:
        """Return the type of each field of a row, if rows are models."""
        (item,) = get_args(type(self.head).model_fields[self.table].annotation)
        return {n: f.annotation for n, f in getattr(item, "model_fields", {}).items()}


@dataclass(frozen=True)
class Reply:
    """The bytes of a response. `etag`: their digest."""

    body: bytes
    etag: str

    @classmethod
    def of(cls, body: bytes) -> "Reply":
        """Return a reply with these bytes."""
        return cls(body, f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"')


class Replies:
    """LRU cache of replies, each of one state of its source files."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept = LRUCache[Hashable, Reply](
            max_bytes, getsizeof=lambda reply: len(reply.body) + _ENTRY_BYTES
        )
        self._reply = cached(
            self._kept, key=lambda key, state, make: (key, state), condition=threading.Condition()
        )(lambda key, state, make: Reply.of(make()))

    @property
    def bytes(self) -> int:
        """Size of the cached replies."""
        return int(self._kept.currsize)

    def get(self, key: Hashable, state: Hashable, make: Render) -> Reply:
        """Return the reply to `key` in this state; if it is not cached, one thread makes it and the others wait."""
        found: Reply = self._reply(key, digest(state), make)
        return found


F = TypeVar("F", bound=Callable[..., Any])


def kept_while(state: Callable[..., State], size: int) -> Callable[[F], F]:
    """Cache up to `size` results of a function while the state of its arguments is unchanged.

    If a result is not cached, one thread computes it and the others wait.
    """

    def key(*args: Hashable) -> Hashable:
        return (*args, state(*args))

    kept: LRUCache[Hashable, Any] = LRUCache(size)
    return cast(Callable[[F], F], cached(kept, key, condition=threading.Condition()))


def respond(request: Request, reply: Reply, form: Format = "json", name: str = "") -> Response:
    """Return the HTTP response: 304 if the client already has these bytes. `name`: file name for CSV."""
    headers = {"ETag": reply.etag, "Cache-Control": "no-cache"}
    if is_known(request, reply.etag):
        return Response(status_code=304, headers=headers)
    if form == "csv":
        headers["Content-Disposition"] = _attachment(f"{name}.csv")
        return Response(reply.body, headers=headers, media_type="text/csv")
    return Response(reply.body, headers=headers, media_type="application/json")


def _attachment(name: str) -> str:
    """Return the header's value; a non-ASCII name is sent along with an ASCII name (RFC 6266, RFC 5987)."""
    plain = name.encode("ascii", "replace").decode().replace("?", "_")
    full = "" if plain == name else f"; filename*=UTF-8''{quote(name)}"
    return f'attachment; filename="{plain}"{full}'


def digest(state: object) -> str:
    """Return a digest of a state, which names every month's file and is stored for thousands of responses."""
    return hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()


def is_known(request: Request, etag: str) -> bool:
    """Whether the client already has a response with this tag."""
    given = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    return etag in given or given == ["*"]


def rows_json(frame: pl.DataFrame) -> bytes:
    """Return a frame's rows as a JSON list of objects."""
    return _texts(frame).write_json().encode() if len(frame) else b"[]"


def _texts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with its times as texts in pydantic's format: with microseconds if they are not zero."""
    times = [name for name, kind in frame.schema.items() if kind == pl.Datetime]
    whole = [pl.col(name).dt.strftime("%Y-%m-%dT%H:%M:%SZ") for name in times]
    parts = [pl.col(name).dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ") for name in times]
    is_whole = [pl.col(name).dt.microsecond() == 0 for name in times]
    return frame.with_columns(
        pl.when(fits).then(short).otherwise(long)
        for fits, short, long in zip(is_whole, whole, parts, strict=True)
    )


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{inner}": found for inner, found in _flat(value).items()}
        elif not isinstance(value, list):
            flat[name] = value
    return flat


def _csv(rows: Sequence[dict[str, Any]], known: Sequence[str]) -> bytes:
    columns = list(dict.fromkeys(name for row in rows for name in row)) or known
    target = io.StringIO(newline="")
    writer = csv.writer(target)
    writer.writerow(map(_cell, columns))
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return target.getvalue().encode()


def _cell(value: Any) -> Any:
    """Return a cell's value; a text that a spreadsheet would execute as a formula is prefixed with an apostrophe."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def folder_state(folder: Path) -> State:
    """Return names, modification times and sizes of a folder's files; empty if the folder does not exist."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except FileNotFoundError:  # no such folder, or a file was replaced between scandir and stat
        return ()
    return tuple(sorted((name, info.st_mtime_ns, info.st_size) for name, info in found))


def file_state(path: Path) -> State:
    """Return modification time, size and inode of a file; empty if it does not exist."""
    try:
        info = path.stat()
    except FileNotFoundError:
        return ()
    return info.st_mtime_ns, info.st_size, info.st_ino


def series_state(home: Path, series: SeriesId, *trees: str) -> State:
    """Return the state of a series' folders in these trees, and of its market's record and drift watch."""
    folders = tuple(folder_state(series.folder(home, tree)) for tree in trees)
    return *folders, *market_state(home, series.market)


def market_state(home: Path, market: str) -> State:
    """Return the state of a market's record and of its drift watch's results."""
    ledger = tree_of(home, "ledger", market)
    return tuple(file_state(ledger / name) for name in ("summary.json", "watch.json"))


def tree_state(home: Path, tree: str) -> State:
    """Return the state of a tree in all markets: its series' folders change whenever a file is replaced by renaming."""
    return tuple(
        (entry.path, entry.stat().st_mtime_ns)
        for market in MARKETS
        for folder in sorted(tree_of(home, tree, market).glob("interval=*"))
        for entry in _folders(folder)
    )


def database_state(uri: str) -> State | None:
    """Return the state of MLflow's database on this machine; None for a server."""
    database = sqlite_path(uri)
    if database is None:
        return None
    return file_state(database), file_state(database.with_name(f"{database.name}-wal"))


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((entry for entry in entries if entry.is_dir()), key=lambda entry: entry.name)
