"""What is kept between requests, until anything stored changes: answers, and results of which many are made.

Whether it has is looked at every `_LOOK_S` seconds, and with each request of `/api/changes`. Nothing is kept for more
than `_KEEP_S` seconds, because ages and the processes of runs change without a write.
"""

import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from cachetools import TTLCache, cached
from cachetools.keys import hashkey
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from schemas.identity import APART, MARKETS, SPOT, market_home, tree_of
from tasks.tracking.store import sqlite_path, tracking_uri
from tasks.training.shard import PROGRESS, RESULT, is_training, shard_folders
from tasks.tuning.at_work import searches_at_work
from webapp import answers

_LOOK_S, _KEEP_S = 5, 60
_ANSWER_BYTES = 64 << 20
_results: TTLCache[Any, Any] = TTLCache(1000, _KEEP_S)
_results_changed = threading.Condition()
_looking = threading.Lock()
_seen: dict[str, Any] = {"at": 0.0, "stored": None}
"""When it was last looked at what is stored, and what that was."""

F = TypeVar("F", bound=Callable[..., Any])


def kept(function: F) -> F:
    """Keep a function's results until anything stored changes; one thread computes a result, the others wait for it."""

    def key(*args: Any) -> Any:
        return hashkey(function, _seen["stored"], *args)

    return cast(F, cached(_results, key=key, condition=_results_changed)(function))


def keeping(home: Path) -> type[APIRoute]:
    """Return the kind of routes whose answers are kept until anything stored changes."""
    bodies: TTLCache[Any, Response] = TTLCache(_ANSWER_BYTES, _KEEP_S, getsizeof=lambda answer: len(answer.body))

    class Kept(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            make = super().get_route_handler()

            async def answer(request: Request) -> Response:
                if time.monotonic() > _seen["at"] + _LOOK_S:
                    _seen["at"] = time.monotonic()  # other requests do not wait for this look
                    await run_in_threadpool(changes, home)
                key = (_seen["stored"], request["path"], request["query_string"])
                if not (response := bodies.get(key)):
                    response = await make(request)
                    bodies[key] = response
                return response

            return answer

    return Kept


def changes(home: Path) -> answers.Changes:
    """Return a token for each part of the stored data, from the modification of its files and folders."""
    with _looking:
        trees = {name: _trees(home, name) for name in ("klines", "provisional", "forecasts", "ledger")}
        database = sqlite_path(tracking_uri())
        board = [database, database.with_name(f"{database.name}-wal")] if database else []
        minute = "" if database else f"-{datetime.now(UTC):%H%M}"  # a server's changes are not seen
        training = [path for folder in at_work(home) for path in (folder, folder / PROGRESS)]
        records = [
            tree_of(home, "ledger", market) / name
            for market in MARKETS
            for name in ("summary.json", "watch.json")
        ]
        now = answers.Changes(
            candles=_token([*trees["klines"], *trees["provisional"]]),
            forecasts=_token(trees["forecasts"]),
            ledger=_token([*trees["ledger"], *records]),
            board=_token(board) + minute,
            runs=_token([*board, *training]) + minute,
        )
        looked = time.monotonic()
        _seen.update(at=looked, stored=(home, tracking_uri(), now.model_dump_json(), database or looked))
        return now


def _trees(home: Path, tree: str) -> list[Path]:
    """Return the series' folders of a tree in all markets; they change whenever a file is replaced by renaming."""
    return [
        folder for market in MARKETS for folder in tree_of(home, tree, market).glob("interval=*/symbol=*")
    ]


def _token(paths: Iterable[Path]) -> str:
    times = []
    for path in paths:
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime_ns)
    return f"{len(times)}-{sum(times)}"


def at_work(home: Path) -> list[Path]:
    """Return the folders of the shards and searches that processes of this machine are training."""
    roots = [market_home(home, market) for market in (SPOT, *APART)]
    shards = [folder for root in roots for folder in shard_folders(root) if not (folder / RESULT).exists()]
    searches = [folder for root in roots for folder, _ in searches_at_work(root)]
    return [*filter(is_training, shards), *searches]
