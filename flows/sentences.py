"""What a run of training says: its decisions, its warnings, what was set aside, and how it ended."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flows.console import finding
from flows.run import Run
from schemas.decision import Decision, decided_sentence
from schemas.errors import counted
from schemas.handover import FleetJudgement, FleetPlan, ShardResult
from schemas.presets import SEED
from schemas.run import RunSpec
from tasks.judging.accuracy import accuracy, accuracy_text, has_board
from tasks.training.cost import run_cost

_AGAINST = {"better": "better than", "no different": "no different from", "worse": "worse than"}
"""Findings against the random walk, as they go on in a sentence."""

_RECIPE, _PLAIN_RECIPE = re.compile(r"([\w-]+)/([\w.-]+)/[0-9a-f]{12}\b"), r"\1 of preset \2"
"""A recipe in a reason, and how it is told."""

_OF_MODELS = ("architectures", "preset", "overrides", "seeds", "dtype")
"""Options that say what is trained: of a run with `serving`, where nothing serves."""


def decision_lines(decisions: Iterable[Decision], judged: Iterable[FleetJudgement] = ()) -> list[str]:
    """Return the lines about the gate's decisions: what has become of how many coins, and by which reasons.

    Decisions with the same outcome, architecture and rule share a reason: a first training makes forty champions for
    the same one.

    Args:
        judged: the fleets of the run; their verdicts are told of the models that serve now.
    """
    verdicts = {model.run_id: finding(model.verdict) for fleet in judged for model in fleet.judgements}
    alike: dict[tuple[str, str], list[Decision]] = defaultdict(list)
    for decision in decisions:
        alike[decision.outcome, decision.architecture].append(decision)
    lines = []
    for group in sorted(alike.values(), key=len, reverse=True):
        lines.append(f"{decided_sentence(group)}{_judged_clause(group, verdicts)}")
        by_rule: dict[str, list[Decision]] = defaultdict(list)
        for decision in group:
            by_rule[decision.rule].append(decision)
        # The reasons of a rule differ in figures alone, so the first stands for all.
        for first, *others in by_rule.values():
            more = f" and {len(others)} more" if others else ""
            lines.append(f"{first.series}{more}: {_RECIPE.sub(_PLAIN_RECIPE, first.reason)}")
    return lines


def _judged_clause(decisions: Iterable[Decision], verdicts: Mapping[str, str]) -> str:
    """Return what the run has found about models of one architecture; "" if it has judged none of them."""
    runs = [decision.serving.run_id for decision in decisions if decision.serving]
    found = Counter(verdicts[run] for run in runs if run in verdicts)
    if not found:
        return ""
    (first, times), *others = found.most_common()
    than = f"{_AGAINST[first]} a random walk's" if first in _AGAINST else "not judged"
    parts = [f"{than} for {times}" if others else than, *(f"{f or 'not judged'} for {n}" for f, n in others)]
    return f": on the test span its bands were {', '.join(parts)}"


def fleet_warnings(shards: Sequence[ShardResult]) -> list[str]:
    """Return the distinct warnings about a fleet's members, each with the number of models it applies to."""
    members = [member for shard in shards for member in shard.members]
    texts = Counter(text for member in members for text in member_warnings(member.report))
    return [
        text if times == len(members) else f"{text} ({times} of {counted(len(members), 'model')})"
        for text, times in texts.items()
    ]


def member_warnings(report: dict[str, Any]) -> list[str]:
    """Return the warnings in the report of a member's training (`TrainedMember.report`)."""
    warnings = []
    if report.get("stopped") == "nan":
        warnings.append(f"stopped early: {report['reason']}")
    if at_once := report.get("halved_to"):
        warnings.append(f"memory ran out: the fleet was halved, to {counted(at_once, 'model')} at once")
    if parts := report.get("split_to"):  # more than `accumulate` asked for
        warnings.append(f"memory ran out: each batch was split into {parts} parts")
    return [*warnings, *filter(None, [report.get("device_warning")])]


def profile_lines(spec: RunSpec, fleets: Iterable[FleetPlan]) -> list[str]:
    """Return a sentence for each preset of a run's fleets whose models the hardware profile has changed."""
    from cpbmodels.arch.options import ALIASES, PROFILE_SIZES

    # What a person has typed wins over the profile, and is no surprise.
    typed = {ALIASES.get(name, name) for name in spec.overrides}
    sizes = {n: value for n, value in PROFILE_SIZES.get(spec.profile, {}).items() if n not in typed}
    lines = {}
    for job in (fleet.shards[0] for fleet in fleets):
        set_by_it = [f"{n} {value}" for n, value in sizes.items() if job.overrides.get(n) == value]
        if set_by_it and job.preset.startswith(SEED):
            lines[job.preset] = (
                f"profile {spec.profile} sets {', '.join(set_by_it)} of preset {job.preset}: "
                "other models than the preset's own"
            )
    return list(lines.values())


def set_aside_lines(spec: RunSpec, fleets: Sequence[FleetPlan]) -> Iterator[str]:
    """Yield which options count for nothing in a run with `serving`, if any."""
    if spec.serving and not any(fleet.spec in spec.fleets for fleet in fleets):
        values = RunSpec.model_fields
        given = [
            n for n in _OF_MODELS if getattr(spec, n) != values[n].get_default(call_default_factory=True)
        ]
        if given:
            yield (
                f"--serving trains what serves, as it was trained, and something serves in each timeframe: "
                f"{', '.join(given)} {'counts' if len(given) == 1 else 'count'} for nothing here"
            )


def judged_line(run: Run) -> str:
    """Return how many models were judged and against what: classifiers have a reference of their own."""
    # Fleets without a model have no seconds and no accuracy: they are no sign of either kind.
    classifies = {bool(accuracy(fleet)) for fleet in run.fleets if "seconds" in fleet}
    references = " and ".join(
        "the class frequencies" if classes else "the random walk" for classes in sorted(classifies)
    )
    board = f" (`cpb leaderboard --run {run.run_id[:8]}`)" if has_board(run.fleets) else ""
    return f"judged {counted(run.members, 'model')} against {references}{board}"


def accuracy_lines(run: Run) -> list[str]:
    """Return a line for each fleet of classifiers."""
    return [
        f"{fleet['fleet']}: {accuracy_text(reached)}" for fleet in run.fleets if (reached := accuracy(fleet))
    ]


def end_lines(run: Run) -> list[str]:
    """Return the last lines: what the run leaves, and what its training cost."""
    where = f"packaged in {run.published}" if run.published else "not packaged"
    champions = (
        f"{counted(run.champions, 'champion')} {where}" if run.champions else "no model became champion"
    )
    rows = counted(run.forecast_rows, "row")
    left = f"{champions}; {f'{rows} of forecasts stored' if run.forecast_rows else 'no forecast was made'}"
    cost = run_cost(run.fleets, run.trained_before)
    return [left, f"cost: {cost}"] if cost else [left]
