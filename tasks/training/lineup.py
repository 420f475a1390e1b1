"""Who is trained for a job: copies of every member for the ensemble, their seeds, and what they continue from.

A job of E seeds trains every member E times in the same fleet; the copies' quantiles are averaged, and the
average is the registered model.
"""

import sys
from dataclasses import replace
from pathlib import Path

import cpbmodels
from cpbmodels.member import Member
from cpbmodels.series import Series
from tasks.training.job import Job, JobMember

Loaded = list[tuple[JobMember, Series]]


def train_members(job: Job, loaded: Loaded, **how: object) -> list[Member]:
    """Train the job's fleet and return the model that serves each loaded series, in order."""
    trained = cpbmodels.train_fleet(
        [series for _, series in loaded]
        if job.universal
        else [s for _, s in loaded for _ in range(job.seeds)],
        architecture=job.base_architecture,
        preset=job.preset,
        seeds=_universal_seeds(job) if job.universal else [x for m, _ in loaded for x in _seeds(m, job)],
        scope="universal" if job.universal else "per-series",
        warm_start=_warm(job, loaded),
        **how,
        **job.overrides,
    )
    groups = [_averaged(trained[i : i + job.seeds]) for i in range(0, len(trained), job.seeds)]
    if not job.universal:
        return groups
    serves = {member.config["timeframe"]: member for member in groups}
    return [serves[m.timeframe] for m, _ in loaded]


def _averaged(copies: list[Member]) -> Member:
    return copies[0] if len(copies) == 1 else cpbmodels.ensemble(copies)


def _seeds(member: JobMember, job: Job) -> list[int]:
    return [member.seed + i for i in range(job.seeds)]


def _universal_seeds(job: Job) -> list[int]:
    """Return the seeds of the universal models; the first planned member's, whoever could be loaded."""
    return _seeds(job.members[0], job)


def _warm(job: Job, loaded: Loaded) -> list[Member | None] | None:
    """Return the registered model that each new member continues, None for those that start anew."""
    if not job.warm_start:
        return None
    folders = {m.name: job.warm_start.get(m.name) for m, _ in loaded}
    if job.universal:  # any of a timeframe's folders: they hold the same model
        timeframes = dict.fromkeys(m.timeframe for m, _ in loaded)
        chosen = [next((folders[m.name] for m, _ in loaded if m.timeframe == t), None) for t in timeframes]
    else:
        chosen = list(folders.values())
    return [row for folder in chosen for row in _rows(job, folder)]


def _rows(job: Job, folder: Path | None) -> list[Member | None]:
    """Return the rows of a registered model, one per copy; None for each where it does not fit the new one."""
    if folder is None:
        return [None] * job.seeds
    old = cpbmodels.load(folder)
    wanted = cpbmodels.preset(job.preset, job.base_architecture, **job.overrides)
    shape = ("context", "horizon", "features", "calendar", "calendar_dim", "hidden_dim", "n_layers", "head")
    differing = [k for k in shape if getattr(old.options, k) != getattr(wanted, k)]
    if len(old.rows) != job.seeds:
        differing.append("number of seeds")
    if differing:
        why = f"warm start: {folder} has another {', '.join(differing)}; this member starts anew"
        print(why, file=sys.stderr)
        return [None] * job.seeds
    return [_row(old, i) for i in range(job.seeds)]


def _row(member: Member, i: int) -> Member:
    one = slice(i, i + 1)
    return replace(
        member,
        rows=member.rows[one],
        mean=member.mean[one],
        inverse=member.inverse[one],
        table=member.table[one],
    )
