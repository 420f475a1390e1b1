"""What a person should know of a training beside its figures."""

from collections import Counter
from pathlib import Path
from typing import Any

from tasks.storage.files import read_json


def standing(folder: Path) -> str:
    """Return how far the fleet in `folder` had come before: trained, begun, or "" for not at all."""
    if (folder / "done.json").exists():
        return "trained before by the same command"
    checkpoints = folder / "checkpoints"
    begun = checkpoints.is_dir() and any(checkpoints.iterdir())
    return "from its last checkpoint on" if begun else ""


def of_fleet(folder: Path) -> list[str]:
    """Return what the trained members in `folder` have to say, each sentence once."""
    reports = [read_json(file)["report"] for file in sorted((folder / "members").glob("*/history.json"))]
    said = Counter(sentence for report in reports for sentence in of_member(report))
    some = {sentence: f" ({count} of {len(reports)} members)" for sentence, count in said.items()}
    return [text + (some[text] if count < len(reports) else "") for text, count in said.items()]


def of_member(report: dict[str, Any]) -> list[str]:
    """Return a NaN, a batch cut for lack of memory, an idle GPU."""
    out = []
    if report.get("stopped") == "nan":
        out.append(f"stopped early: {report['reason']}")
    if report.get("accumulate", 1) > 1:
        out.append(f"memory was short: each batch went in {report['accumulate']} parts")
    return [*out, *filter(None, [report.get("device_warning")])]
