"""What a person should know of a training beside its figures: it stopped early, memory was short, the GPU was idle."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from schemas.handover import FleetResult
from schemas.wording import count


def fleet_warnings(shards: Sequence[FleetResult]) -> list[str]:
    """Return the warnings about a fleet's members, each sentence once, and for how many members it holds."""
    members = [member for one in shards for member in one.members]
    number = len(members)
    found = Counter(text for member in members for text in member_warnings(member.report))
    return [
        text if times == number else f"{text} ({times} of {count(number, 'member')})"
        for text, times in found.items()
    ]


def member_warnings(report: dict[str, Any]) -> list[str]:
    """Return the warnings in the report of one member's training (`TrainedMember.report`)."""
    found = []
    if report.get("stopped") == "nan":
        found.append(f"stopped early: {report['reason']}")
    if at_once := report.get("halved_to"):
        found.append(f"memory was short: the fleet was halved, to {count(at_once, 'model')} at once")
    if report.get("accumulate", 1) > 1:
        found.append(f"memory was short: each batch was split into {report['accumulate']} parts")
    return [*found, *filter(None, [report.get("device_warning")])]
