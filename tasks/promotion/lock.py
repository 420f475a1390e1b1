"""The lock under which champions change: a night's decisions, an hour's switch and a person's command one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.identity import market_home
from tasks.storage.locks import locked
from tasks.tracking.connection import Store, alone_everywhere


@contextmanager
def promotion_lock(store: Store, home: Path, market: str) -> Iterator[None]:
    """Hold the promotions of all markets that share a home's root, and on a server those of all homes that use it.

    Waits for another process's to end, and for another machine's as far as `alone_everywhere` can.
    """
    with locked(market_home(home, market) / "promotion.lock"), alone_everywhere(store, "registry"):
        yield
