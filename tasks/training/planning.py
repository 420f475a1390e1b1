"""What a fleet is to learn, shard by shard, written down so completely that a shard's digest names its result."""

import zlib
from collections.abc import Iterable, Sequence

import cpbmodels
from schemas.handover import FleetJob, FleetPlan, JobMember
from schemas.identity import SeriesId
from schemas.run import UNIVERSAL, RunSpec, base_of
from tasks.storage.digests import code_digest, value_digest
from tasks.training.shards import cut, cut_universal, resolved, shard_seconds, shard_size

_NOT_DECISIVE = {"members": {"__all__": {"features": {"path", "file_digest"}}}}
"""Fields of a job that say where its data lies, not what it is."""


_TRAINING = ("cpbmodels", "tasks/training/worker.py", "tasks/signals")
"""What trains, and what computes the features; with all that it imports, but for:"""

_NOT_TRAINING = (
    # The light library beside training: other people's frames, published models, other programs.
    "cpbmodels/__init__.py", "cpbmodels/candles.py", "cpbmodels/errors.py", "cpbmodels/files.py",
    "cpbmodels/freqtrade.py", "cpbmodels/hub.py", "cpbmodels/mlflow.py", "cpbmodels/onnx_export.py",
    "cpbmodels/rows.py",
    # Measures a device. It also chooses the profile, which like the device itself says how a model is trained.
    "cpbmodels/device",
    # Records and contracts: a job holds their values. Candles: a job holds the digest of those that are learnt from.
    "schemas", "tasks/market", "tasks/storage",
    # Plans jobs, whose digest covers what is planned; keeps and starts them, and reports on them.
    "tasks/training/epochs.py", "tasks/training/fleet_files.py", "tasks/training/planning.py",
    "tasks/training/process.py", "tasks/training/progress.py", "tasks/training/shards.py",
    "tasks/training/slots.py",
)  # fmt: skip


def training_code() -> str:
    """Return a digest of the source that decides a trained model; a change makes older fleets stale."""
    return code_digest(*_TRAINING, without=_NOT_TRAINING)


def job_key(job: FleetJob) -> str:
    """Return the digest (16 hex digits) of everything that decides the result: the name of the fleet's folder."""
    return value_digest(job.model_dump(mode="json", exclude=_NOT_DECISIVE))[:16]


def member_seed(seed: int, architecture: str, series: SeriesId, fold: int = 0) -> int:
    """Return a member's own seed: it must not depend on which other members are in the fleet.

    `fold`: number of a backtest's fold, from 1; 0 for a training without folds.
    """
    text = f"{seed}/{architecture}/{series.label}/{series.timeframe}" + (f"/{fold - 1}" if fold else "")
    return zlib.crc32(text.encode())


def recipe_of(spec: RunSpec, architecture: str) -> str:
    """Return how a model is made, as one word: the preset, with a digest of what was changed in it."""
    changed = {"overrides": spec.overrides, "seeds": spec.copies(architecture), "dtype": spec.dtype}
    plain = RunSpec(preset=spec.preset)
    standard = {"overrides": {}, "seeds": plain.copies(architecture), "dtype": plain.dtype}
    return spec.preset if changed == standard else f"{spec.preset}+{value_digest(changed)[:8]}"


def is_universal(job: FleetJob) -> bool:
    """Whether one model learns all series of a timeframe."""
    return job.architecture.endswith(UNIVERSAL)


def plan_fleet(
    spec: RunSpec, architecture: str, members: Sequence[JobMember], *, gpu: bool = False
) -> FleetPlan:
    """Return the fleet that trains `architecture` on `members`, in shards (`tasks/training/shards.py` says which).

    `gpu`: the plan is for GPUs, whichever machine has them.
    """
    if architecture.endswith(UNIVERSAL):
        parts = cut_universal(members)
    else:
        options = resolved(spec.preset, architecture, spec.profile, spec.overrides)
        parts = cut(members, shard_size(options, architecture, spec.copies(architecture), gpu=gpu))
    shards = tuple(plan_job(spec, architecture, part) for part in parts)
    return FleetPlan(
        key=value_digest([job_key(shard) for shard in shards])[:16], architecture=architecture, shards=shards
    )


def shards_of(fleets: Iterable[FleetPlan]) -> list[FleetJob]:
    """Return the shards of all fleets as they are queued: the dearest first, so that none is left for the end."""
    return sorted((shard for fleet in fleets for shard in fleet.shards), key=shard_seconds, reverse=True)


def plan_job(spec: RunSpec, architecture: str, members: Sequence[JobMember]) -> FleetJob:
    """Return the job that trains `architecture` on `members`."""
    return FleetJob(
        architecture=architecture,
        preset=spec.preset,
        seeds=spec.copies(architecture),
        overrides=spec.overrides,
        device=spec.device,
        profile=spec.profile,
        dtype=spec.dtype,
        members=tuple(members),
        code=training_code() + cpbmodels.architecture(base_of(architecture)).package,
    )
