"""How a fleet is cut into shards, each trained and judged by a process of its own.

A shard should be long beside what starting its process costs (2 to 3 s: Python, torch, the columns), and short beside
the whole night, so that many devices share the work and little is lost with one of them. The size follows from what is
trained alone, never from what is left to train or from how many devices there are: products of another number of
members round differently, and the same plan must give the same bits on one device and on eight.

On CPUs a shard is to take at most `CPU_SHARD_S` on one core, by a model of the cost of a member:

    seconds = copies x epochs x windows x (WINDOW_S + candles x layers x width^2 / CPU_RATE)

with the number of columns as the width of architectures without a hidden one. It is right within a factor of three.
Measured, with early stop: 6.7 s a member of the preset default (`har`) and 0.14 s (`robust-har`), where it says 7.6 and
0.15; of the seeds' presets 105 s (gru), 175 (transformer) and 1,400 (lstm), where it says 260, 130 and 2,900. On a GPU
a step takes about as long for one member as for as many as are trained at once (`fleet_size` of the profile), so a
shard holds at least that many.

| preset | architectures | CPU | GPU |
| --- | --- | --- | --- |
| smoke | all | 128 | 128 |
| default | robust-har, har (3 copies) | 128, 8 | 128, 14 |
| default | har-universal | one model per timeframe | the same |
| seed-transformer, seed-gru, seed-lstm | | 4 | 40, with gpu-6gb 20, with gpu-80gb 160 |
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import cpbmodels
from cpbmodels.arch import find
from cpbmodels.options import Preset
from schemas.handover import FleetJob, JobMember
from schemas.run import base_of

MIN_MEMBERS, MAX_MEMBERS = 4, 128
"""Members of a CPU shard. Above: candles of 128 series of two years at 15m are 2 GB in memory."""

CPU_SHARD_S = 120.0
"""Seconds that a CPU shard takes at most on one core, unless it holds the fewest members; starting it takes 2 to 3."""

WINDOW_S, CPU_RATE = 3.5e-6, 5e9
"""Of the cost model: seconds of a window in the head and the optimizer, multiplications a second of one core."""

CLOSED_FORM_S = 0.15
"""Seconds of a member that is solved at once."""

TRAINER_BYTES, ROW_BYTES = 1.0e9, 320
"""Of memory, for a trainer without data, and for a candle: its columns, as they are read and as they are trained on."""

_USUAL_WINDOWS = 20_000
"""Windows of a series where the preset limits neither its rows nor its steps."""


def shard_size(options: Preset, architecture: str, copies: int, *, gpu: bool) -> int:
    """Return the most members of a shard, by the rule above; `gpu`: the plan is for GPUs."""
    wanted = CPU_SHARD_S / member_seconds(options, architecture, copies)
    size = MIN_MEMBERS
    while size * 2 <= min(wanted, MAX_MEMBERS):
        size *= 2
    return max(size, -(-options.fleet_size // copies)) if gpu else size


def shard_seconds(job: FleetJob) -> float:
    """Return about how long one core would train a job: what the queue of shards is ordered by."""
    options = resolved(job.preset, job.architecture, job.profile, job.overrides)
    return len(job.members) * member_seconds(options, job.architecture, job.seeds)


def memory_bytes(job: FleetJob) -> int:
    """Return about how much memory the trainer of a job takes: torch and what it judges with, and the candles."""
    rows = {member.features.path: member.features.rows for member in job.members}
    return round(TRAINER_BYTES + ROW_BYTES * sum(rows.values()))


def resolved(preset: str, architecture: str, profile: str, overrides: dict[str, Any]) -> Preset:
    """Return a preset with its overrides and, where one is named, its hardware profile."""
    named = None if profile == "auto" else profile
    return cpbmodels.preset(preset, base_of(architecture), profile=named, **overrides)


def member_seconds(options: Preset, architecture: str, copies: int) -> float:
    """Return about how long one core trains a member of so many copies."""
    spec = find(base_of(architecture)).spec
    if spec.closed_form:
        return CLOSED_FORM_S
    windows = options.steps_per_epoch * options.batch_size or options.max_train_rows or _USUAL_WINDOWS
    width = options.hidden_dim if "hidden_dim" in spec.sizes else len(options.features)
    layers = 2 * options.n_layers if "n_layers" in spec.sizes else 1  # of encoder and decoder
    candles = options.context + options.horizon if options.context > 1 else 1
    window = WINDOW_S + candles * layers * width**2 / CPU_RATE
    return copies * options.epochs * -(-windows // options.stride) * window


def cut(members: Iterable[JobMember], size: int) -> list[tuple[JobMember, ...]]:
    """Return the members in shards of at most `size`, as equal as can be.

    Their order does not matter: series of the same timeframe, whose histories are of similar length, come together.
    """
    ordered = sorted(members, key=lambda m: (m.fold, m.model.series.seconds, m.name))
    number = -(-len(ordered) // size)
    edges = [i * len(ordered) // number for i in range(number + 1)] if number else []
    return [tuple(ordered[a:b]) for a, b in pairwise(edges)]


def cut_universal(members: Iterable[JobMember]) -> list[tuple[JobMember, ...]]:
    """Return a shard for each model of a universal architecture: all series of a timeframe, in a fold."""
    parts: dict[tuple[int, str], list[JobMember]] = defaultdict(list)
    for member in members:
        parts[member.fold, member.model.series.timeframe].append(member)
    return [shard for key in sorted(parts) for shard in cut(parts[key], len(parts[key]))]
