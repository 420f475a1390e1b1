"""Step 6, promote: the best architecture of each coin x timeframe becomes the champion."""

from collections.abc import Sequence

from schemas.handover import Decision, FleetJudgement
from tasks.judging.promotion import choose
from tasks.step import step
from tasks.tracking.registry import register_champion
from tasks.tracking.store import open_store
from tasks.tracking.versions import champion_version, series_with_champion


@step("promote")
def promote(fleets: Sequence[FleetJudgement]) -> tuple[Decision, ...]:
    """Move the alias `champion` of every coin x timeframe that was judged, and say why."""
    choices = choose(judgement for fleet in fleets for judgement in fleet.judgements)
    store = open_store()
    serving = {one: str(champion_version(store, one).version) for one in series_with_champion(store)}
    decisions = []
    for choice in choices:
        best = choice.best
        version = register_champion(
            best.model.series,
            best.run_id,
            reason=choice.reason,
            metrics=best.metrics,
            tags={
                "architecture": best.model.architecture,
                "recipe": best.model.recipe,
                "verdict": best.verdict,
            },
            files=best.files,
        )
        decisions.append(
            Decision(
                series=best.model.series,
                outcome="kept" if serving.get(best.model.series) == version else "promoted",
                version_number=version,
                model=best.model,
                run_id=best.run_id,
                reason=choice.reason,
            )  # fmt: skip
        )
    return tuple(decisions)
