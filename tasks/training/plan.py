"""The shards of a fleet, specified so completely that a shard's digest identifies its result.

A fleet is all models of one architecture, preset and options. It is cut into shards, each trained and judged in
separate processes.

A shard should take long compared with starting its process (2 to 3 s: Python, torch, the columns), and short compared
with the whole night, so that many devices share the work and losing a device loses little. Its size depends only on the
models, never on the remaining work or the number of devices: matrix products over a different number of members round
differently, and the same plan must give the same bits on one device and on eight.

On CPUs a shard should take at most `CPU_SHARD_S` on one core, by this cost model of a member:

    seconds = copies x epochs x windows x (WINDOW_S + candles x layers x width^2 / CPU_RATE)

with the number of columns as width for architectures without hidden layers. It is accurate within a factor of three.
Measured seconds per member, with early stopping (cost model in brackets): 6.7 (7.6) for `har` and 0.14 (0.15) for
`robust-har` of preset default; 105 (260) for gru, 175 (130) for transformer and 1,400 (2,900) for lstm of the
presets `seed-…`. On a GPU a step takes about as long for one member as for all members trained together (`fleet_size`
of the profile), so a shard has at least that many.

| preset | architectures | CPU | GPU |
| --- | --- | --- | --- |
| smoke | all | 128 | 128 |
| default | robust-har, har (3 copies) | 128, 8 | 128, 14 |
| default | har-universal | one model per timeframe | the same |
| seed-transformer, seed-gru, seed-lstm | | 4 | 40, with gpu-6gb 20, with gpu-80gb 160 |
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import cpbmodels
from cpbmodels.arch import find
from cpbmodels.arch.options import Preset
from cpbmodels.arch.presets import by_timeframe, of_members
from cpbmodels.errors import ModelError
from cpbmodels.fleet.config import PARTS
from schemas.fleets import FleetSpec, base_of, copies_of, is_universal
from schemas.handover import FleetPlan, JobMember, SeriesRecord, ShardJob, SplitBounds
from schemas.identity import ModelId, Recipe, SeriesId
from schemas.run import RunSpec
from tasks.storage.model_folder import ModelConfig
from tasks.storage.recipes import recipe_of
from tasks.storage.records import value_digest
from tasks.storage.source_code import code_digest

_NOT_DECISIVE = {"members": {"__all__": {"features": {"path", "file_digest"}}}}
"""Fields of a job that are locations of its data, not its contents."""

_TRAINING = ("cpbmodels", "tasks/training/trainer.py", "tasks/signals")
"""Code that determines a trained model; its imports count too, except for `_NOT_TRAINING`."""

_NOT_TRAINING = (
    # Parts of the light library not used in training: user frames, published models, other programs.
    "cpbmodels/__init__.py",
    "cpbmodels/data/candles.py",
    "cpbmodels/errors.py",
    "cpbmodels/freqtrade.py",
    "cpbmodels/hub.py",
    "cpbmodels/mlflow.py",
    # Measure a device: they say how a model is trained, like the device itself.
    "cpbmodels/device",
    "cpbmodels/doctor",
    # Records and contracts: a job contains their values. Candles: a job contains the digest of its training candles.
    "schemas",
    "tasks/market",
    "tasks/storage",
    # Plans jobs, whose digest covers the plan; stores, starts and reports them.
    "tasks/training/checkpoint.py",
    "tasks/training/cost.py",
    "tasks/training/epochs.py",
    "tasks/training/fleet_progress.py",
    "tasks/training/gpu_locks.py",
    "tasks/training/gpus.py",
    "tasks/training/local.py",
    "tasks/training/plan.py",
    "tasks/training/progress.py",
    "tasks/training/shard.py",
    "tasks/training/shard_retention.py",
    "tasks/training/trainers.py",
    "tasks/running",
)

MIN_MEMBERS, MAX_MEMBERS = 4, 128
"""Bounds of a CPU shard's members. The maximum: candles of 128 series over two years at 15m take 2 GB of memory."""

CPU_SHARD_S = 120.0
"""Maximum seconds of a CPU shard on one core, unless it has `MIN_MEMBERS`; starting a shard takes 2 to 3 s."""

WINDOW_S, CPU_RATE = 3.5e-6, 5e9
"""Cost model: seconds per window in head and optimizer, and multiplications per second of one core."""

CLOSED_FORM_S = 0.15
"""Seconds of a member solved in closed form."""

TRAINER_BYTES, ROW_BYTES = 1.0e9, 320
"""Memory of a trainer without data, and of a candle: its columns, as read and as trained on."""

_USUAL_WINDOWS = 20_000
"""Assumed windows of a series if the preset limits neither rows nor steps."""


def training_code() -> str:
    """Return a digest of the source code that determines a trained model; a change makes older fleets stale."""
    return code_digest(*_TRAINING, without=_NOT_TRAINING)


def job_key(job: ShardJob) -> str:
    """Return the digest (16 hex digits) of everything that determines the result: the name of the shard's folder."""
    return value_digest(job.model_dump(mode="json", exclude=_NOT_DECISIVE))[:16]


def member_seed(seed: int, architecture: str, series: SeriesId, fold: int = 0) -> int:
    """Return a member's seed: it must not depend on the other members of the fleet.

    `fold`: number of a backtest's fold, from 1; 0 for a training without folds.
    """
    text = f"{seed}/{architecture}/{series.label}/{series.timeframe}" + (f"/{fold - 1}" if fold else "")
    return zlib.crc32(text.encode())


def preset_label(fleet: FleetSpec) -> str:
    """Return the preset's name, followed by a digest of the changed options if there are any: `smoke+1f0c2a3b`."""
    # Copies and precision make other models than the preset's: a label that hid them would let two recipes share a
    # name.
    changed = fleet.model_dump(include={"overrides", "seeds", "dtype"})
    copies = copies_of(fleet.architecture, fleet.preset)
    standard = {"overrides": {}, "seeds": copies, "dtype": "float32"}
    return fleet.preset if changed == standard else f"{fleet.preset}+{value_digest(changed)[:8]}"


def fleet_names(fleets: Sequence[FleetSpec]) -> list[str]:
    """Return what people see of each fleet of a run: its architecture, with the preset's label if it is not the only
    fleet of that architecture, `gru/seed-gru`.
    """
    of_architecture = Counter(fleet.architecture for fleet in fleets)
    return [
        fleet.architecture
        if of_architecture[fleet.architecture] == 1
        else f"{fleet.architecture}/{preset_label(fleet)}"
        for fleet in fleets
    ]


def plan_member(
    spec: RunSpec, fleet: FleetSpec, record: SeriesRecord, bounds: SplitBounds, fold: int = 0
) -> JobMember:
    """Return the member of a fleet on a series, with the spans of a fold (0: no folds)."""
    seed = member_seed(spec.seed, fleet.architecture, record.series, fold)
    model = ModelId(fleet.architecture, preset_label(fleet), record.series, seed)
    return JobMember(model=model, features=record, bounds=bounds, fold=fold)


def plan_fleet(
    spec: RunSpec, fleet: FleetSpec, members: Sequence[JobMember], *, name: str = "", gpu: bool = False
) -> FleetPlan:
    """Return the plan that trains a fleet on `members`, in shards (see the module's docstring).

    Args:
        name: what people see of it (`fleet_names`); default: its architecture.
        gpu: the plan is for GPUs, on this machine or in a cluster.
    """
    if is_universal(fleet.architecture):
        # a model for a timeframe in a fold
        groups: dict[tuple[int, str], list[JobMember]] = defaultdict(list)
        for member in members:
            groups[member.fold, member.model.series.timeframe].append(member)
        parts = [shard for key in sorted(groups) for shard in cut(groups[key], len(groups[key]))]
    else:
        options = resolved(fleet, spec.profile)
        # A power of two: a change of a few percent in the model's estimate must not change the shards, and with them
        # bits and digests.
        size, wanted = MIN_MEMBERS, CPU_SHARD_S / member_seconds(options, fleet.architecture, fleet.seeds)
        while size * 2 <= min(wanted, MAX_MEMBERS):
            size *= 2
        parts = cut(members, max(size, -(-options.fleet_size // fleet.seeds)) if gpu else size)
    shards = tuple(plan_job(spec, fleet, part) for part in parts)
    return FleetPlan(
        key=value_digest([job_key(shard) for shard in shards])[:16],
        name=name or fleet.architecture,
        architecture=fleet.architecture,
        shards=shards,
    )


def shards_of(fleets: Iterable[FleetPlan]) -> list[ShardJob]:
    """Return the shards of all fleets in queue order: largest first, so that no long shard is left for the end."""
    return sorted((shard for fleet in fleets for shard in fleet.shards), key=shard_seconds, reverse=True)


def plan_job(spec: RunSpec, fleet: FleetSpec, members: Sequence[JobMember]) -> ShardJob:
    """Return the job that trains a fleet on `members`."""
    return ShardJob(
        **fleet.model_dump(),
        device=spec.device,
        profile=spec.profile,
        kernels=spec.kernels,
        members=tuple(members),
        code=training_code(),
    )


def shard_seconds(job: ShardJob) -> float:
    """Return the estimated training time of a job on one core: the sort key of the shard queue."""
    # With the profile: it may change batch and epochs, and so the time, on which the order of the queue rests.
    options = resolved(job.spec, job.profile)
    return len(job.members) * member_seconds(options, job.architecture, job.seeds)


def memory_bytes(job: ShardJob) -> int:
    """Return the estimated memory of a job's trainer: torch and the libraries for judging, and the candles."""
    # By file, as folds of a series share its candles.
    rows = {member.features.path: member.features.rows for member in job.members}
    return round(TRAINER_BYTES + ROW_BYTES * sum(rows.values()))


def resolved(fleet: FleetSpec, profile: str, timeframe: str = "") -> Preset:
    """Return a fleet's preset at a timeframe with its overrides and its hardware profile, if named."""
    named = None if profile == "auto" else profile
    return cpbmodels.preset(fleet.preset, base_of(fleet.architecture), named, timeframe, **fleet.overrides)


def planned_recipe(fleet: FleetSpec, timeframe: str) -> Recipe:
    """Return the recipe of a fleet's models at a timeframe, as it is read from their folders afterwards.

    Raises:
        ModelError: the architecture, the preset or an option is unknown.
    """
    # a profile changes how a model is trained, not the model
    options = resolved(fleet, "auto", timeframe)
    members = of_members(fleet.preset, options, timeframe=timeframe, **fleet.overrides)
    parts = [{"architecture": name, **member.as_dict()} for name, member in members.items()]
    scope = "universal" if is_universal(fleet.architecture) else "per-series"
    fields: dict[str, Any] = {
        "architecture": base_of(fleet.architecture),
        "preset": fleet.preset,
        "scope": scope,
        "dtype": fleet.dtype,
    }
    fields |= {"seeds": [0] * fleet.seeds} | ({PARTS: parts} if parts else {})
    return recipe_of(ModelConfig(**options.as_dict() | fields))


def fleet_of_recipe(fleet: FleetSpec, recipe: str, timeframe: str) -> FleetSpec:
    """Return what trains a recipe at a timeframe in this release, given the fleet that trained it.

    That is the same fleet, unless its preset has got options of this timeframe since: then the fleet without these. A
    fleet that trains another recipe either way, or cannot be planned, is returned as it is.
    """
    with suppress(ModelError):
        members = resolved(fleet, "auto").members
        if added := by_timeframe(fleet.preset, base_of(fleet.architecture), members).get(timeframe):
            before = {name: getattr(Preset(), name) for name in added} | fleet.overrides
            without = fleet.model_copy(update={"overrides": before})
            if str(planned_recipe(without, timeframe)) == recipe:
                return without
    return fleet


def member_seconds(options: Preset, architecture: str, copies: int) -> float:
    """Return the estimated seconds to train a member with `copies` copies on one core."""
    spec = find(base_of(architecture)).spec
    if spec.closed_form:
        return CLOSED_FORM_S
    # What an epoch visits: a fixed number of steps, or all rows up to the preset's limit.
    windows = options.steps_per_epoch * options.batch_size or options.max_train_rows or _USUAL_WINDOWS
    width = options.hidden_dim if "hidden_dim" in spec.sizes else len(options.features)
    # Only shape counts here: attention, gates and heads differ by a factor of two or three, which the bound of a
    # shard allows.
    layers = 2 * options.n_layers if "n_layers" in spec.sizes else 1  # encoder and decoder
    candles = options.context + options.horizon if options.context > 1 else 1
    window = WINDOW_S + candles * layers * width**2 / CPU_RATE
    return copies * options.epochs * -(-windows // options.stride) * window


def cut(members: Iterable[JobMember], size: int) -> list[tuple[JobMember, ...]]:
    """Return the members in shards of at most `size`, as equal as possible.

    Independent of the input order: series of the same timeframe, with histories of similar length, are grouped.
    """
    # Equal lengths train together: in a fleet of mixed histories, short ones wait for the longest.
    ordered = sorted(members, key=lambda m: (m.fold, m.model.series.seconds, m.name))
    number = -(-len(ordered) // size)
    # Equal parts, not full ones and a rest: nine members of at most eight are 4 and 5, where 8 and 1 would leave a
    # device idle.
    edges = [i * len(ordered) // number for i in range(number + 1)] if number else []
    return [tuple(ordered[a:b]) for a, b in pairwise(edges)]
