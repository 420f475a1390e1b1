"""`warm_start=champion`: which registered models a training continues from."""

import logging
from collections.abc import Sequence
from pathlib import Path

from schemas.handover import SeriesRecord
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.storage.model_folder import read_config
from tasks.tracking.registry import Champion, champions
from tasks.tracking.store import open_store

log = logging.getLogger("cpb")

MAX_GROWTH = 1.1
"""A model is continued while its series has grown by less than a tenth; after that it starts anew."""


def continued_from(spec: RunSpec, architecture: str, records: Sequence[SeriesRecord]) -> dict[SeriesId, str]:
    """Return the model folder that each series continues from; empty without `warm_start`, without damaged ones.

    A champion that was trained on exactly this data is this run's own, from before a kill: then the folder it
    was itself continued from is returned, so that the repeated run finds its finished fleets.
    """
    if spec.warm_start is None:
        return {}
    known = {r.series: r for r in records}
    found = {}
    for champion in champions(list(known), store=open_store()):
        if (
            champion.architecture == architecture
            and not champion.damage
            and (folder := _origin(champion, known[champion.series]))
        ):
            found[champion.series] = folder
    if not found:
        log.warning(
            "warm start: no champion of %s fits (none yet, damaged, or its series has grown by a tenth); "
            "training starts anew",
            architecture,
        )
    return found


def _origin(champion: Champion, record: SeriesRecord) -> str | None:
    config = read_config(champion.folder)
    if config.data_digest == record.digest:
        before = config.warm_start
        return before if before and Path(before).exists() else None
    return str(champion.folder) if record.rows < config.rows * MAX_GROWTH else None
