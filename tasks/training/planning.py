"""What one fleet is to learn, written down so completely that its digest names the result."""

import zlib
from collections.abc import Sequence

import cpbmodels
from schemas.handover import FleetJob, JobMember
from schemas.identity import SeriesId
from schemas.run import UNIVERSAL, RunSpec, base_of
from tasks.storage.digests import code_digest, value_digest

_NOT_DECISIVE = {"members": {"__all__": {"features": {"path", "file_digest"}}}}
"""Fields of a job that say where its data lies, not what it is."""


def training_code() -> str:
    """Return a digest of the source that decides a trained model; a change makes older fleets stale."""
    return code_digest("cpbmodels", "tasks/training/worker.py", "tasks/signals")


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
