"""The run of a flow in MLflow: the key by which the same command finds it again, and what compares it with others."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from schemas.handover import FleetJudgement, FleetPlan, SeriesRecord
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.judging.gate import rank
from tasks.storage.records import value_digest
from tasks.tracking.fleet_log import is_classifier
from tasks.tracking.metrics import CLASSIFIER_SKILL, SKILL
from tasks.tracking.runs import start_parent
from tasks.tracking.tags import (
    AS_OF,
    BEST,
    BEST_CLASSIFIER,
    COMMAND,
    NEWEST,
    run_name,
    scope_tags,
    spec_params,
)
from tasks.training.plan import training_code


def start_flow(spec: RunSpec, records: Sequence[SeriesRecord], fleets: Sequence[FleetPlan], name: str) -> str:
    """Open the run of planned fleets: the same command on the same data continues the same run.

    Args:
        name: name of the command.
    """
    # Of the planned fleets, not of the options: with `serving` these are the champions' presets.
    presets = ", ".join(dict.fromkeys(fleet.spec.preset for fleet in fleets))
    as_of = spec.scope.as_of.isoformat() if spec.scope.as_of else NEWEST
    about = {"preset": presets, "market": spec.market, AS_OF: as_of, COMMAND: name}
    key, scope = _run_key(spec, records, fleets), scope_tags(spec, records)
    params = spec_params(spec) | {"architectures": [fleet.name for fleet in fleets]}
    return start_parent(key, params, scope | about, run_name(name, presets, scope)).run_id


def _run_key(spec: RunSpec, records: Sequence[SeriesRecord], fleets: Sequence[FleetPlan]) -> str:
    """Return a digest of the options and the data, so that the same command on the same data is the same run."""
    # What the records of the series and the scope contain, and what changes the way of training but not its result.
    aside = {
        "coins",
        "timeframes",
        "source",
        "since",
        "as_of",
        "train_timeout_s",
        "tail",
        "offline",
        "prune",
        "wandb",
        "engine",
        "columns",
        "decimal",
        # What the fleets contain: neither a preset file's name nor its place decides anything.
        "architectures",
        "preset",
        "preset_files",
        "seeds",
        "overrides",
        "dtype",
    }
    options = spec.model_dump(mode="json", exclude=aside) | spec.scope.model_dump(
        mode="json", exclude={"home", "source", "offline", "reading"}
    )
    # The candles themselves, not the dates: a corrected history is another run.
    data = [(r.series.name, r.digest) for r in records]
    planned = [fleet.spec.model_dump(mode="json") for fleet in fleets]
    # With the code of the training: after an upgrade the same command trains again.
    return value_digest([options, planned, data, training_code()])[:16]


def run_skill(judged: Iterable[FleetJudgement]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metrics and tags of a flow's run that compare it with others: by timeframe, the skill of its best
    fleet under the name that it has on the fleet's own run, and which fleet that is.

    The best on the validation span, as the gate ranks recipes: the best of several test scores would be no fair
    estimate. Classifiers have no score there, so only a single one stands for its run.
    """
    metrics, tags = dict[str, float](), dict[str, str]()
    fleets: dict[tuple[str, bool], dict[str, FleetJudgement]] = defaultdict(dict)
    for fleet in judged:
        for timeframe in fleet.skill:
            fleets[timeframe, is_classifier(fleet.architecture)][_label(fleet)] = fleet
    for (timeframe, classifies), rivals in fleets.items():
        if not classifies:
            best = next(iter(rank({name: _validation(fleet, timeframe) for name, fleet in rivals.items()})))
            metrics[SKILL.format(timeframe)] = rivals[best].skill[timeframe]
            tags[BEST.format(timeframe)] = best
        # Of several classifiers none is named: the best by test score would be chosen by what is to be judged.
        elif len(rivals) == 1:
            ((best, fleet),) = rivals.items()
            metrics[CLASSIFIER_SKILL.format(timeframe)] = fleet.skill[timeframe]
            tags[BEST_CLASSIFIER.format(timeframe)] = best
    return metrics, tags


def _label(fleet: FleetJudgement) -> str:
    """Return a fleet's architecture and preset, with the digest of its changed options: `har/default`."""
    return f"{fleet.architecture}/{fleet.judgements[0].model.recipe}"


def _validation(fleet: FleetJudgement, timeframe: str) -> dict[SeriesId, float]:
    return {
        judgement.model.series: judgement.metrics["validation_crps_ratio"]
        for judgement in fleet.judgements
        if judgement.model.series.timeframe == timeframe
    }
