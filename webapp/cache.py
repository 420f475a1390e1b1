"""The cache of answers, and of results that many answers need: both hold until the stored files change.

Whether these have changed is checked every `_CHECK_S` seconds. No answer is cached for more than `_MAX_AGE_S` seconds,
because ages and the processes of runs change without a write. Only options that a route knows tell its answers apart,
and keys count towards the memory that answers may take: what a client makes up is not cached.
"""

import threading
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar, cast

from cachetools import LRUCache, TTLCache, cached
from cachetools.keys import hashkey
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from webapp.answers import Changes
from webapp.changes import change_tokens
from webapp.formats import json_of

_CHECK_S, _MAX_AGE_S = 5, 60
_ANSWER_BYTES = 64 << 20
_RESPONSE_BYTES = 2048
"""Of a cached answer's objects, besides its body and key."""
_MAX_RESULTS = 1000
_stored: dict[str, Any] = {"checked": 0.0, "everything": None, "files": None}
"""When the stored data was last checked (monotonic clock); its token then, and the part that is not MLflow's."""
_tokens: dict[Path, Changes] = {}
"""Of the same check, the tokens that a home's page is told."""
_cached_functions: list[Any] = []
"""The functions of `until_files_change`."""

F = TypeVar("F", bound=Callable[..., Any])


def until_files_change(function: F) -> F:
    """Cache a function's results until files change; one thread computes a result, the others wait for it.

    Its arguments exist in the home: of anything else nothing is asked of it.
    """
    cache: LRUCache[Any, Any] = LRUCache(_MAX_RESULTS)
    decorate = cached(cache, lambda *args: hashkey(_stored["files"], *args), condition=threading.Condition())
    _cached_functions.append(made := decorate(function))
    return cast(F, made)


def cached_routes(home: Path) -> type[APIRoute]:
    """Return the kind of routes whose answers are cached until anything stored changes."""
    bodies: TTLCache[Any, tuple[Response, int]] = TTLCache(_ANSWER_BYTES, _MAX_AGE_S, getsizeof=itemgetter(1))
    of: dict[str, Any] = {"stored": None}

    class Cached(APIRoute):
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
                if time.monotonic() > _stored["checked"] + _CHECK_S:
                    _stored["checked"] = time.monotonic()  # other requests do not wait for this check
                    await run_in_threadpool(drop_changed, home)
                stored = _stored["everything"]
                if of["stored"] != stored:
                    of["stored"] = stored
                    bodies.clear()
                options = [
                    (name, given) for name, given in request.query_params.multi_items() if name in names
                ]
                # With the token: an answer that was begun before a change is never found after it.
                key = (stored, request["path"], *sorted(options, key=itemgetter(0)))
                if found := bodies.get(key):
                    return found[0]
                response = await make(request)
                size = len(response.body) + len(str(key)) + _RESPONSE_BYTES
                if of["stored"] == stored:
                    bodies[key] = response, size
                return response

            return answer

    return Cached


def _option_names(dependant: Dependant) -> set[str]:
    """Return the names of a route's options in the query, its dependencies' too."""
    names = {str(option.alias) for option in dependant.query_params}
    return names.union(*map(_option_names, dependant.dependencies))


def checked_tokens(home: Path) -> Changes:
    """Return the tokens of the last check: newer ones would tell a page of a change that answers do not have yet."""
    if home not in _tokens:
        drop_changed(home)
    return _tokens[home]


def drop_changed(home: Path) -> None:
    """Check what is stored now, and drop what was cached of files that have changed."""
    now = change_tokens(home)
    files = f"{home} {now.candles} {now.forecasts} {now.ledger}"
    if files != _stored["files"]:
        _stored["files"] = files
        for function in _cached_functions:
            function.cache_clear()
    _stored["everything"] = f"{files} {now.runs}"
    _tokens[home] = now
