"""Tonight's and the registered models, in the gate's form."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from schemas.errors import DamagedError
from schemas.handover import FleetJudgement, Judgement, SeriesRecord
from schemas.identity import Recipe
from tasks.judging.fleet import score_file
from tasks.judging.gate import Contender, contender
from tasks.storage.model_folder import read_config
from tasks.tracking.registry import Champion
from tasks.tracking.tags import RECIPE
from tasks.training.files import member_folder, read_job

_DECIDES = "validation_crps_ratio"


@dataclass(frozen=True)
class Candidate:
    """A model of tonight in the gate's form, with its judgement, its features and the file of its losses."""

    model: Contender
    judgement: Judgement
    features: SeriesRecord
    score: Path


def tonights(root: Path, fleets: Iterable[FleetJudgement]) -> Iterator[Candidate]:
    """Yield every judged model of a run; `root`: the market's home, which holds the fleets' folders."""
    for fleet in fleets:
        shards = {judgement.shard: root / "fleets" / judgement.shard for judgement in fleet.judgements}
        planned = {member.model: member for folder in shards.values() for member in read_job(folder).members}
        for judgement in fleet.judgements:
            member = planned[judgement.model]
            place = member_folder(shards[judgement.shard], member.name)
            config = read_config(place / "model")
            model = contender(
                judgement.model.series,
                place / "model",
                config,
                run_id=judgement.run_id,
                validation=judgement.metrics.get(_DECIDES, math.nan),
            )
            yield Candidate(model, judgement, member.features, score_file(place))


def standing(champion: Champion) -> Contender:
    """Return a registered model in the gate's form; a damaged model with the readable tags and configuration."""
    validation = champion.metrics.get(_DECIDES, math.nan)
    known: dict[str, Any] = {"run_id": champion.run_id, "version": champion.version, "validation": validation}
    try:
        found = contender(
            champion.series, champion.folder, read_config(champion.folder), damage=champion.damage, **known
        )
    except (DamagedError, TypeError, ValueError) as error:  # for example an invalid date after a bit error
        found = Contender(
            series=champion.series, recipe=Recipe(champion.architecture, champion.preset, ""),
            folder=champion.folder, market=champion.series.market, damage=champion.damage or str(error), **known,
        )  # fmt: skip
    recorded = champion.tags.get(RECIPE, "")
    # If the folder is damaged, the registry's recipe is used; its candles, span and horizon still exclude older models.
    return (
        replace(found, recipe=Recipe.parse(recorded)) if found.damage and recorded.count("/") == 2 else found
    )
