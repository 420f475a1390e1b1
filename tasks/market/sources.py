"""Sources of candles: Binance Vision, a mirror's URL or folder, a user's tables, or the simulator."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from schemas.errors import UsageError
from schemas.identity import OWN, SIM
from schemas.scope import Scope
from schemas.tables import is_table
from tasks.market import simulator
from tasks.market.client import (
    BINANCE,
    BINANCE_BUCKET,
    BINANCE_REST,
    HttpSource,
    Limits,
)
from tasks.market.folder import FolderSource
from tasks.market.tables import TableSource

Source = HttpSource | FolderSource | TableSource
"""Where candles come from: each has a `name`, `notes` for the user and a number of `requests`."""


def check_source(scope: Scope) -> None:
    """Raise `UsageError` if a market of tables has no table as its source; the options check others."""
    if scope.market == OWN and not is_table(scope.source):
        raise UsageError(
            "market own is read from a table: give the table it came from, as in --source candles.csv",
            code="source",
        )


@contextmanager
def open_source(scope: Scope, limits: Limits | None = None) -> Iterator[Source]:
    """Open Binance Vision, a mirror, a user's tables, or the simulator, as in `scope`; errors as in `check_source`.

    Offline, opens the store itself, from which nothing is fetched.
    """
    check_source(scope)
    source, limits = scope.source or "", limits or Limits()
    if scope.offline:
        yield FolderSource(scope.root)
        return
    if scope.market == OWN:
        yield TableSource(
            Path(source), ",".join(scope.symbols) or "all", ",".join(scope.timeframes), scope.reading
        )
        return
    # the folder of a mirror; a URL may name a server on this machine
    if source and scope.market != SIM and "://" not in source:
        yield FolderSource(Path(source))
        return
    with ExitStack() as stack:
        if scope.market == SIM:
            market = simulator.SimulatedMirror(scope.as_of, scope.since)
            url = stack.enter_context(simulator.serve(market))
            opened = HttpSource(url, limits=limits, name="the market simulator")
        elif source:
            opened = HttpSource(source, limits=limits)
        else:
            hosts = BINANCE, BINANCE_BUCKET, BINANCE_REST[scope.market]
            opened = HttpSource(*hosts, limits=limits, name="Binance Vision")
        stack.callback(opened.close)
        yield opened
