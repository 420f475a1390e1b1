"""Step 5, promote: the best architecture of each coin x timeframe becomes the champion."""

import logging
from collections.abc import Sequence

from prefect import task
from prefect.cache_policies import NO_CACHE

from schemas.records import FleetRecord
from tasks.storage.files import read_json
from tasks.judging.promotion import Candidate, choose
from tasks.tracking.registry import SIMULATOR, champions, of_source, register_champion

log = logging.getLogger(__name__)


@task(name="promote", cache_policy=NO_CACHE, persist_result=False)
def promote(fleets: Sequence[FleetRecord], source: str | None = None) -> dict[str, str]:
    """Move the alias `champion` of every coin x timeframe; return member name -> registered version.

    A model of simulated candles never takes the place of one that learnt from real ones.
    """
    choices = choose([c for fleet in fleets for c in _candidates(fleet)])
    if source == SIMULATOR:
        real = {f"{c.symbol}-{c.timeframe}" for c in of_source(champions(), None)}
        kept = [choice for choice in choices if choice.best.name in real]
        choices = [choice for choice in choices if choice.best.name not in real]
        if kept:
            names = ", ".join(choice.best.name for choice in kept)
            log.warning(
                "%s: the champion learnt from real candles and stays; a simulated one does not count", names
            )
    return {
        choice.best.name: register_champion(
            choice.best.symbol,
            choice.best.timeframe,
            choice.best.run_id,
            reason=choice.reason,
            metrics=choice.best.metrics,
            tags={"architecture": choice.best.architecture, "verdict": choice.best.verdict},
        )
        for choice in choices
    }


def _candidates(fleet: FleetRecord) -> list[Candidate]:
    found = []
    for name, run_id in fleet.run_ids.items():
        metrics = read_json(fleet.folder / "members" / name / "model" / "metrics.json")
        symbol, _, timeframe = name.rpartition("-")
        verdict = metrics.pop("verdict")
        found.append(Candidate(name, symbol, timeframe, fleet.architecture, run_id, metrics, verdict))
    return found
