"""What is kept between requests until anything stored changes: answers, and results that many answers need.

Whether it has changed is looked at every `_LOOK_S` seconds. Nothing is kept for more than `_KEEP_S` seconds, because
ages and the processes of runs change without a write.
"""

import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import polars as pl
from cachetools import LRUCache, TTLCache, cached
from cachetools.keys import hashkey
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from pydantic_core import to_json

from schemas.identity import APART, MARKETS, SPOT, market_home, tree_of
from tasks.tracking.store import sqlite_path, tracking_uri
from tasks.training.shard import RESULT, is_training, shard_folders
from webapp import answers

_LOOK_S, _KEEP_S = 5, 60
_ANSWER_BYTES = 64 << 20
_seen: dict[str, Any] = {"at": 0.0, "stored": None}
"""When it was last looked at what is stored, and what that was."""

F = TypeVar("F", bound=Callable[..., Any])


def kept(function: F) -> F:
    """Keep a function's results until anything stored changes; one thread computes a result, the others wait for it."""
    cache: LRUCache[Any, Any] = LRUCache(1000)
    keep = cached(cache, lambda *args: hashkey(_seen["stored"], *args), condition=threading.Condition())
    return cast(F, keep(function))


def keeping(home: Path) -> type[APIRoute]:
    """Return the kind of routes whose answers are kept until anything stored changes."""
    bodies: TTLCache[Any, Response] = TTLCache(
        _ANSWER_BYTES, _KEEP_S, getsizeof=lambda answer: len(answer.body)
    )

    class Kept(APIRoute):
        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
            @wraps(endpoint)
            def respond(**given: Any) -> Response:
                # In this thread, not in that of all requests, where FastAPI would check the answer once more.
                made = endpoint(**given)
                if isinstance(made, Response):
                    return made
                return Response(
                    json_of(*made if isinstance(made, tuple) else (made,)), media_type="application/json"
                )

            super().__init__(path, respond, **options)

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            make = super().get_route_handler()

            async def answer(request: Request) -> Response:
                if time.monotonic() > _seen["at"] + _LOOK_S:
                    _seen["at"] = time.monotonic()  # other requests do not wait for this look
                    await run_in_threadpool(look, home)
                key = (_seen["stored"], request["path"], request["query_string"])
                if not (response := bodies.get(key)):
                    bodies[key] = response = await make(request)
                return response

            return answer

    return Kept


def json_of(answer: Any, name: str = "", rows: pl.DataFrame | None = None) -> bytes:
    """Return an answer's JSON, with `rows` as the list of that name, which is empty in the answer.

    polars writes rows of plain values in a fifth of the time that it takes to make models of them.
    """
    written = to_json(answer, inf_nan_mode="null")
    if rows is None:
        return written
    return written.replace(f'"{name}":[]'.encode(), f'"{name}":{texts(rows).write_json()}'.encode(), 1)


def texts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with their times as the API writes them."""
    return rows.with_columns(pl.selectors.datetime().dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ"))


def look(home: Path) -> None:
    """Look at what is stored now."""
    # a server's changes are not seen
    _seen["stored"] = f"{changes(home)} {sqlite_path(tracking_uri()) or time.monotonic()}"


def changes(home: Path) -> answers.Changes:
    """Return a token for each part of the stored data, from the modification of its files and folders."""

    def trees(*names: str) -> list[Path]:
        # A folder changes whenever a file in it is replaced by renaming.
        roots = [tree_of(home, name, market) for name in names for market in MARKETS]
        return [*roots, *(folder for root in roots for folder in root.glob("interval=*/symbol=*"))]

    database = sqlite_path(tracking_uri())
    board = [database, database.with_name(f"{database.name}-wal")] if database else []
    minute = "" if database else f"-{datetime.now(UTC):%H%M}"
    return answers.Changes(
        candles=_token(trees("klines", "provisional")),
        forecasts=_token(trees("forecasts", "hub")),
        ledger=_token(trees("ledger")),
        board=_token(board) + minute,
        runs=_token([*board, *at_work(home)]) + minute,
    )


def _token(paths: Iterable[Path]) -> str:
    times = []
    for path in paths:
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime_ns)
    return f"{len(times)}-{sum(times)}"


def at_work(home: Path) -> list[Path]:
    """Return the folders of the shards that processes of this machine are training."""
    roots = [market_home(home, market) for market in (SPOT, *APART)]
    shards = [folder for root in roots for folder in shard_folders(root) if not (folder / RESULT).exists()]
    return [*filter(is_training, shards)]
