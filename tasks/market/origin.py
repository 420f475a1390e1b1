"""Keeps simulated candles apart from real ones: a store holds either, never both.

A store that the simulator filled carries the file `SIMULATED`. Real candles replace all of it (it can be made
again at any time); the simulator never writes into a store of real candles (`schemas.scope.home_for`).
"""

import logging
import shutil
from pathlib import Path

from schemas.scope import SIMULATED

_TREES = (
    "klines", "cache", "offgrid", "provisional", "quarantine", "reports", "features", "forecasts", "issued", "ledger",
    "hub",
)  # fmt: skip

log = logging.getLogger(__name__)


def settle(home: Path, simulated: bool) -> None:
    """Mark a new store of the simulator, or clear one that real candles are about to enter."""
    mark = home / SIMULATED
    if simulated:
        if not (home / "klines").exists():
            mark.touch()
    elif mark.exists():
        log.warning("%s held simulated candles; they make room for real ones", home)
        for tree in _TREES:
            shutil.rmtree(home / tree, ignore_errors=True)
        for file in home.glob("manifest.db*"):
            file.unlink()
        mark.unlink()  # last: a kill before this leaves the mark, and the next run clears the rest
