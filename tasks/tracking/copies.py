"""What mends a damaged champion: a copy of the file, in a fleet or in the published folder, or else a new training.

The copies are known by the sha256 that the champion was registered with, so a damaged one is never taken.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.identity import market_home, tree_of
from tasks.storage.damage import VERIFY
from tasks.storage.digests import file_digest
from tasks.storage.model_folder import NEEDED
from tasks.tracking.mlflow_private import local_path

if TYPE_CHECKING:
    from tasks.tracking.registry import Champion


def find_copy(home: Path, champion: "Champion", name: str) -> Path | None:
    """Return a file with the registered digest of a champion's file `name`; None where there is none.

    Looked through are the published folder, the fleets of the market, trained or set aside, and what was fetched from
    a tracking server.
    """
    series, digest = champion.series, champion.digests.get(name)
    published = tree_of(home, "hub", series.market) / series.label / series.timeframe / name
    trained = sorted(market_home(home, series.market).glob(f"fleets/*/members/*/model/{name}"))
    fetched = [champion.folder / name] if local_path(champion.source) is None else []
    found = (
        path for path in (published, *trained, *fetched) if path.is_file() and file_digest(path) == digest
    )
    return next(found, None) if digest else None


def mending_command(home: Path, champion: "Champion") -> str:
    """Return the command that makes a damaged champion usable with the least work."""
    files = {name: champion.folder / name for name in NEEDED}
    damaged = [
        name
        for name, path in files.items()
        if not path.is_file() or file_digest(path) != champion.digests.get(name)
    ]
    copied = damaged and all(find_copy(home, champion, name) for name in damaged)
    return VERIFY if copied else training_command(champion)


def training_command(champion: "Champion") -> str:
    """Return the command that trains a champion's series again, with its architecture and preset alone."""
    chosen = {"--architectures": champion.architecture, "--preset": champion.preset}
    options = [f"{option} {shlex.quote(value)}" for option, value in chosen.items() if value]
    return " ".join(["cpb train-all", champion.series.options, *options])
