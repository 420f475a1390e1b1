"""Several trained members as one model: an average of architectures, an ensemble of seeds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from cpbmodels.arch import find
from cpbmodels.arch.line import AVERAGE
from cpbmodels.arch.options import Preset
from cpbmodels.data.extremes import Extremes
from cpbmodels.errors import ModelError
from cpbmodels.fleet.config import OPTIONS, PART_FIELDS, PARTS
from cpbmodels.fleet.member import Member

_COSTS = (
    "train_seconds",
    "trained_at",
    "rss_peak_mb",
    "gpu_mem_allocated_peak_mb",
    "gpu_mem_reserved_peak_mb",
)
"""Figures of a report that say what a training cost, as `_cost` adds them up."""


def average(parts: Sequence[Member], options: Preset) -> Member:
    """One model of trained members.

    Its history, and its report apart from `diverged`, `halved_to`, `split_to` and what the training of all cost, are
    the first member's.
    """
    first, nothing = parts[0], torch.empty(0)
    shared = {name: value for name, value in first.config.items() if name not in OPTIONS}
    described = [
        {name: part.config[name] for name in (*PART_FIELDS, *OPTIONS) if name in part.config}
        for part in parts
    ]
    return Member(
        config={**shared, "architecture": AVERAGE, **options.as_dict(), PARTS: described},
        rows=nothing,
        mean=nothing,
        inverse=nothing,
        table=nothing,
        parts=tuple(parts),
        history=first.history,
        report={
            **first.report,
            **_shortage(parts),
            **_cost(parts),
            "diverged": any(part.report.get("diverged", False) for part in parts),
        },
    )


def ensemble(members: list[Member]) -> Member:
    """One model of several trained with equal options and other seeds: their quantiles and candles are averaged.

    Its history, and its report apart from `diverged`, `accumulate`, `halved_to`, `split_to` and `ensemble`, are the
    first member's.
    """
    if not members:
        raise ModelError("An ensemble needs at least one member.")
    if members[0].parts:
        # Copy by copy; a closed form's copies are equal, so the first stands for all.
        copies = [list(same) for same in zip(*(member.parts for member in members), strict=True)]
        solved = [find(same[0].config["architecture"]).spec.closed_form for same in copies]
        parts = [same[0] if alone else ensemble(same) for same, alone in zip(copies, solved, strict=True)]
        return replace(average(parts, members[0].options), extremes=_mean_extremes(members))
    # `accumulate` may have grown for want of memory between one member and the next; it changes no result.
    first, ignored = members[0], {"seed", "seeds", "accumulate"}
    for other in members[1:]:
        differing = [k for k in first.config if k not in ignored and other.config.get(k) != first.config[k]]
        if differing:
            raise ModelError(f"An ensemble needs equal options, these differ: {', '.join(differing)}.")
    seeds = [seed for member in members for seed in member.config.get("seeds", [member.config["seed"]])]
    return Member(
        config={**first.config, "seeds": seeds},
        rows=torch.cat([member.rows for member in members]),
        mean=torch.cat([member.mean for member in members]),
        inverse=torch.cat([member.inverse for member in members]),
        table=torch.cat([member.table for member in members]),
        history=first.history,
        report={
            **first.report,
            "ensemble": len(seeds),
            "accumulate": max(member.report.get("accumulate", 1) for member in members),
            **_shortage(members),
            "diverged": any(member.report.get("diverged", False) for member in members),
        },
        extremes=_mean_extremes(members),
    )


def _cost(parts: Sequence[Member]) -> dict[str, Any]:
    """What the parts of an average cost that were trained one after the other, as far as their reports have it.

    Their seconds together, the end of the last, the peaks of memory over all, and the throughput of those that were
    trained by gradient steps.
    """
    reports = [part.report for part in parts]
    known = {name: [report[name] for report in reports if name in report] for name in _COSTS}
    cost = {name: sum(of) if name == "train_seconds" else max(of) for name, of in known.items() if of}
    stepped = [
        report for report in reports if report.get("stopped") != "closed_form" and "windows_per_s" in report
    ]
    if seconds := sum(report["train_seconds"] for report in stepped):
        # By time, not by part: the mean of rates would count a short part as much as a long one.
        windows = sum(report["windows_per_s"] * report["train_seconds"] for report in stepped)
        cost["windows_per_s"] = windows / seconds
    return cost


def _shortage(members: Sequence[Member]) -> dict[str, int]:
    """What the lack of memory did to any of them: the fewest together, the most parts of a batch; 0 if nothing."""
    halved = [at_once for member in members if (at_once := member.report.get("halved_to", 0))]
    return {
        "halved_to": min(halved, default=0),
        "split_to": max(member.report.get("split_to", 0) for member in members),
    }


def _mean_extremes(members: Sequence[Member]) -> Extremes | None:
    """The mean of the members' tables: their forecasts are about as wide as the mean forecast is."""
    tables = [member.extremes for member in members if member.extremes is not None]
    if len(tables) < len(members):
        return None
    arrays = [table.tensors() for table in tables]
    # In float64, since sums of float16 lose digits; rounded again as each was.
    means = {
        name: np.mean([each[name].astype(np.float64) for each in arrays], axis=0).astype(first.dtype)
        for name, first in arrays[0].items()
        if all(name in each for each in arrays)
    }
    return Extremes.of_tensors(means)
