"""Step 6, promote: the best architecture of each coin x timeframe becomes the champion."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from schemas.handover import Decision, FleetJudgement, SeriesRecord
from tasks.judging.promotion import choose
from tasks.step import step
from tasks.storage.model_folder import read_config
from tasks.tracking.registry import champions, register_champion, retire_champion


@step("promote")
def promote(fleets: Sequence[FleetJudgement], stopped: Sequence[SeriesRecord] = ()) -> tuple[Decision, ...]:
    """Move the alias `champion` of every coin x timeframe that was judged, and say why.

    Series that have stopped trading lose their champion, unless it has seen more candles than this run has.
    """
    choices = choose(judgement for fleet in fleets for judgement in fleet.judgements)
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
                outcome="promoted",
                version_number=version,
                model=best.model,
                run_id=best.run_id,
                reason=choice.reason,
            )
        )
    return (*decisions, *_retired(stopped))


def _retired(stopped: Sequence[SeriesRecord]) -> Iterator[Decision]:
    records = {r.series: r for r in stopped}
    for champion in champions(list(records)) if records else []:
        record = records[champion.series]
        if (
            read_config(champion.folder).rows > record.rows
        ):  # an older as_of must not retire a living coin's champion
            continue
        last = datetime.fromtimestamp(record.last_us / 1e6, UTC)
        reason = f"{champion.series} has not been traded since {last:%Y-%m-%d}"
        retire_champion(champion, reason)
        yield Decision(
            series=champion.series, outcome="retired", version_number=champion.version, reason=reason
        )
