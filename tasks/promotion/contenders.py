"""Tonight's models and the registered ones, as the gate sees them."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import DamagedError
from schemas.handover import FleetJudgement, Judgement, SeriesRecord
from schemas.identity import Recipe
from tasks.judging.fleet import score_file
from tasks.judging.gate import Contender, contender
from tasks.storage.model_folder import read_config
from tasks.tracking.registry import Champion
from tasks.tracking.tags import RECIPE
from tasks.training.fleet_files import member_folder, read_job

_DECIDES = "validation_crps_ratio"


@dataclass(frozen=True)
class Candidate:
    """One of tonight's models: as the gate sees it, with its judgement, its features and its losses' file."""

    model: Contender
    judgement: Judgement
    features: SeriesRecord
    score: Path


def tonights(root: Path, fleets: Iterable[FleetJudgement]) -> Iterator[Candidate]:
    """Yield every judged model of a run; `root`: the market's home, which holds the fleets' folders."""
    for fleet in fleets:
        folder = root / "fleets" / fleet.key
        planned = {member.model: member for member in read_job(folder).members}
        for judgement in fleet.judgements:
            member = planned[judgement.model]
            place = member_folder(folder, member.name)
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
    """Return a registered model as the gate sees it; of a damaged one only what its tags say."""
    validation = champion.metrics.get(_DECIDES, math.nan)
    known = {"run_id": champion.run_id, "version": champion.version, "validation": validation}
    if not champion.damage:
        try:
            return contender(champion.series, champion.folder, read_config(champion.folder), **known)
        except DamagedError as error:  # its digests were never recorded
            return _damaged(champion, str(error))
    return _damaged(champion, champion.damage)


def _damaged(champion: Champion, why: str) -> Contender:
    told = champion.tags.get(RECIPE, "")
    recipe = (
        Recipe.parse(told) if told.count("/") == 2 else Recipe(champion.architecture, champion.preset, "")
    )
    return Contender(
        series=champion.series, recipe=recipe, folder=champion.folder, run_id=champion.run_id,
        version=champion.version, market=champion.series.market, damage=why,
    )  # fmt: skip
