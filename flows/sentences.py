"""What a run of training says: its decisions, its warnings, what was set aside, and how it ended."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flows.run import Run
from schemas.decision import Decision, decided_sentence
from schemas.errors import counted
from schemas.handover import FleetPlan, ShardResult
from schemas.presets import SEED
from schemas.run import RunSpec
from tasks.judging.accuracy import accuracy, accuracy_text, has_board
from tasks.training.cost import run_cost

_OF_MODELS = ("architectures", "preset", "overrides", "seeds", "dtype")
"""Options that say what is trained: of a run with `serving`, where nothing serves."""


def decision_lines(decisions: Iterable[Decision]) -> list[str]:
    """Return the lines about the gate's decisions: of each outcome what has become of how many coins, then the reasons.

    Decisions with the same outcome and rule share a reason: a first training makes forty champions for the same one.
    """
    by_outcome: dict[str, list[Decision]] = defaultdict(list)
    for decision in decisions:
        by_outcome[decision.outcome].append(decision)
    lines = []
    for alike in sorted(by_outcome.values(), key=len, reverse=True):
        lines.append(decided_sentence(alike))
        by_rule: dict[str, list[Decision]] = defaultdict(list)
        for decision in alike:
            by_rule[decision.rule].append(decision)
        # The reasons of a rule differ in figures alone, so the first stands for all.
        for first, *others in by_rule.values():
            more = f" (and {len(others)} more)" if others else ""
            lines.append(f"{first.series}{more}: {first.reason}")
    return lines


def fleet_warnings(shards: Sequence[ShardResult]) -> list[str]:
    """Return the distinct warnings about a fleet's members, each with the number of members it applies to."""
    members = [member for shard in shards for member in shard.members]
    texts = Counter(text for member in members for text in member_warnings(member.report))
    return [
        text if times == len(members) else f"{text} ({times} of {counted(len(members), 'member')})"
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
    return f"judged {counted(run.members, 'member')} against {references}{board}"


def accuracy_lines(run: Run) -> list[str]:
    """Return a line for each fleet of classifiers."""
    return [
        f"{fleet['fleet']}: {accuracy_text(reached)}" for fleet in run.fleets if (reached := accuracy(fleet))
    ]


def end_lines(run: Run) -> list[str]:
    """Return the last lines: what the run leaves, and what its training cost."""
    packaged = f", packaged in {run.published}" if run.published else ""
    left = f"{counted(run.champions, 'champion')}, {counted(run.forecast_rows, 'forecast row')}{packaged}"
    cost = run_cost(run.fleets, run.trained_before)
    return [left, f"cost: {cost}"] if cost else [left]
