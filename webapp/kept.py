"""What is kept between requests until the stored files change: answers, and results that many answers need.

Whether they have changed is looked at every `_LOOK_S` seconds. No answer is kept for more than `_KEEP_S` seconds,
because ages and the processes of runs change without a write. Only options that a route knows tell its answers apart,
and keys count towards the memory that answers may take: what a client makes up is not kept.
"""

import threading
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar, cast

import polars as pl
from cachetools import LRUCache, TTLCache, cached
from cachetools.keys import hashkey
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic_core import to_json

from schemas.identity import APART, MARKETS, SPOT, market_home, tree_of
from tasks.training.shard import RESULT, is_training, shard_folders
from webapp import answers, last

_LOOK_S, _KEEP_S = 5, 60
_ANSWER_BYTES = 64 << 20
_RESPONSE_BYTES = 2048
"""Of a kept answer's objects, besides its body and key."""
_MAX_RESULTS = 1000
_seen: dict[str, Any] = {"at": 0.0, "stored": None, "files": None}
"""When it was last looked at what is stored; what that was; and its part that is not MLflow's."""
_kept: list[Any] = []
"""The functions of `kept`."""

F = TypeVar("F", bound=Callable[..., Any])


def kept(function: F) -> F:
    """Keep a function's results until files change; one thread computes a result, the others wait for it.

    Its arguments exist in the home: of anything else nothing is asked of it.
    """
    cache: LRUCache[Any, Any] = LRUCache(_MAX_RESULTS)
    keep = cached(cache, lambda *args: hashkey(_seen["files"], *args), condition=threading.Condition())
    _kept.append(made := keep(function))
    return cast(F, made)


def keeping(home: Path) -> type[APIRoute]:
    """Return the kind of routes whose answers are kept until anything stored changes."""
    bodies: TTLCache[Any, tuple[Response, int]] = TTLCache(_ANSWER_BYTES, _KEEP_S, getsizeof=itemgetter(1))
    of: dict[str, Any] = {"stored": None}

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
            make, names = super().get_route_handler(), _option_names(self.dependant)

            async def answer(request: Request) -> Response:
                if time.monotonic() > _seen["at"] + _LOOK_S:
                    _seen["at"] = time.monotonic()  # other requests do not wait for this look
                    await run_in_threadpool(look, home)
                stored = _seen["stored"]
                if of["stored"] != stored:
                    of["stored"] = stored
                    bodies.clear()
                options = [
                    (name, given) for name, given in request.query_params.multi_items() if name in names
                ]
                key = (stored, request["path"], *sorted(options, key=itemgetter(0)))
                if found := bodies.get(key):
                    return found[0]
                response = await make(request)
                size = len(response.body) + len(str(key)) + _RESPONSE_BYTES
                bodies[key] = response, size
                return response

            return answer

    return Kept


def _option_names(dependant: Dependant) -> set[str]:
    """Return the names of a route's options in the query, its dependencies' too."""
    names = {str(option.alias) for option in dependant.query_params}
    return names.union(*map(_option_names, dependant.dependencies))


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
    """Look at what is stored now, and forget what was kept of files that have changed."""
    now = changes(home)
    files = f"{home} {now.candles} {now.forecasts} {now.ledger}"
    if files != _seen["files"]:
        _seen["files"] = files
        for function in _kept:
            function.cache_clear()
    _seen["stored"] = f"{files} {now.runs}"


def changes(home: Path) -> answers.Changes:
    """Return a token for each part of the stored data, from the modification of its files and folders."""

    def trees(*names: str) -> list[Path]:
        # A folder changes whenever a file in it is replaced by renaming.
        roots = [tree_of(home, name, market) for name in names for market in MARKETS]
        return [*roots, *(folder for root in roots for folder in root.glob("interval=*/symbol=*"))]

    board = last.version()
    return answers.Changes(
        candles=last.file_times(trees("klines", "provisional")),
        forecasts=last.file_times(trees("forecasts", "hub")),
        ledger=last.file_times(trees("ledger")),
        board=board,
        runs=f"{board} {last.file_times(at_work(home))}",
    )


def at_work(home: Path) -> list[Path]:
    """Return the folders of the shards that processes of this machine are training."""
    roots = [market_home(home, market) for market in (SPOT, *APART)]
    shards = [folder for root in roots for folder in shard_folders(root) if not (folder / RESULT).exists()]
    return [*filter(is_training, shards)]
