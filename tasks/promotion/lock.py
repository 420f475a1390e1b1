"""The lock under which champions change: a night's decisions, an hour's switch and a person's command one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from schemas.identity import market_home
from tasks.storage.locks import locked


@contextmanager
def promotion_lock(home: Path, market: str) -> Iterator[None]:
    """Hold the promotions of all markets that share a home's root; waits for another process's to end."""
    with locked(market_home(home, market) / "promotion.lock"):
        yield
