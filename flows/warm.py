"""`--warm-start champion`: which registered models a training may continue from."""

from pathlib import Path

from flows.console import say
from schemas.config import TrainConfig
from schemas.errors import UsageError
from schemas.records import SeriesRecord
from tasks.storage.files import read_json
from tasks.tracking.registry import Champion, champions
from tasks.tracking.store import open_store

MOST_GROWTH = 1.1
"""A model is continued while its series has grown by less than a tenth; after that it starts anew."""


def warm_folders(config: TrainConfig, records: list[SeriesRecord]) -> dict[str, dict[str, Path]]:
    """Return, per architecture, member name -> model folder to continue from; empty without `warm_start`.

    A champion that was trained on exactly this data is this run's own, from before a kill: then the folder it
    was itself continued from is returned, so that the repeated run finds its finished fleets.
    """
    if config.warm_start is None:
        return {}
    if config.warm_start != "champion":
        raise UsageError(f"--warm-start {config.warm_start!r} is unknown: the only value is champion")
    known = {(r.symbol, r.timeframe): r for r in records}
    found: dict[str, dict[str, Path]] = {}
    for champion in champions(config.scope.symbols, config.scope.timeframes, open_store()):
        record = known.get((champion.symbol, champion.timeframe))
        folder = _origin(champion, record) if record else None
        if folder:
            name = f"{champion.symbol}-{champion.timeframe}"
            found.setdefault(champion.tags["architecture"], {})[name] = folder
    if not found:
        say(
            "warm start: no champion fits (none yet, or its series has grown by a tenth); training starts anew"
        )
    return found


def _origin(champion: Champion, record: SeriesRecord) -> Path | None:
    model = read_json(champion.folder / "config.json")
    if model["data_digest"] == record.digest:
        before = model.get("warm_start")
        return Path(before) if before and Path(before).exists() else None
    return champion.folder if record.rows < model["rows"] * MOST_GROWTH else None
