"""Trains the models of a job: seed copies of members for the ensemble, universal models, and warm starts.

A job of E seeds trains every member E times in the same fleet; the copies' quantiles are averaged, and the average is
the registered model. A universal architecture learns all series of a timeframe (and fold) in one model.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cpbmodels
from cpbmodels.data.series import Series
from cpbmodels.fleet.member import Member
from schemas.handover import JobMember, ShardJob
from schemas.run import base_of
from tasks.training.files import earlier_model
from tasks.training.plan import is_universal

log = logging.getLogger("cpb")

Loaded = Sequence[tuple[JobMember, Series]]


def train_members(
    job: ShardJob, loaded: Loaded, home: Path, *, checkpoint: Path | None = None, **how: Any
) -> list[Member]:
    """Train the job's fleet and return the model that serves each loaded series, in order.

    Args:
        loaded: the members that can be trained, with their series.
        home: `CPB_HOME`, to which the folders in `JobMember.continues` are relative.
        checkpoint: folder for checkpoints.
        how: passed to `cpbmodels.train_fleet`.
    """
    if not is_universal(job):
        return _averaged(
            job, _train(job, loaded, [s for m, _ in loaded for s in _seeds(m, job)], home, checkpoint, how)
        )
    served: dict[str, Member] = {}
    for part in _universal_parts(loaded):
        # Seeds of the first planned member, even if it could not be loaded.
        first = next(m for m in job.members if _part(m) == _part(part[0][0]))
        folder = (
            checkpoint / f"fold-{first.fold}-{first.model.series.timeframe}"
            if checkpoint and first.fold
            else checkpoint
        )
        trained = _averaged(job, _train(job, part, _seeds(first, job), home, folder, how))
        by_timeframe = {member.config["timeframe"]: member for member in trained}
        served |= {m.name: by_timeframe[m.model.series.timeframe] for m, _ in part}
    return [served[m.name] for m, _ in loaded]


def _universal_parts(loaded: Loaded) -> Iterator[Loaded]:
    """Yield the groups trained together: all of a job without folds, else each fold's timeframes separately."""
    parts: dict[tuple[int, str], list[tuple[JobMember, Series]]] = defaultdict(list)
    for member, series in loaded:
        parts[_part(member)].append((member, series))
    yield from parts.values()


def _part(member: JobMember) -> tuple[int, str]:
    return member.fold, member.model.series.timeframe if member.fold else ""


def _train(
    job: ShardJob, loaded: Loaded, seeds: list[int], home: Path, checkpoint: Path | None, how: dict[str, Any]
) -> list[Member]:
    universal = is_universal(job)
    return cpbmodels.train_fleet(
        [series for _, series in loaded] if universal else [s for _, s in loaded for _ in range(job.seeds)],
        architecture=base_of(job.architecture),
        preset=job.preset,
        seeds=seeds,
        scope="universal" if universal else "per-series",
        warm_start=_earlier_rows(job, loaded, home),
        checkpoint=checkpoint,
        **how,
        **job.overrides,
    )


def _averaged(job: ShardJob, trained: list[Member]) -> list[Member]:
    """Return one model per group of copies; its report records if any copy diverged."""
    copies = (trained[i : i + job.seeds] for i in range(0, len(trained), job.seeds))
    return [one[0] if len(one) == 1 else cpbmodels.ensemble(one) for one in copies]


def _seeds(member: JobMember, job: ShardJob) -> list[int]:
    return [member.model.seed + i for i in range(job.seeds)]


def _earlier_rows(job: ShardJob, loaded: Loaded, home: Path) -> list[Member | None] | None:
    """Return the registered model that each new member continues, None for members trained from scratch."""
    if not any(m.continues for m in job.members):
        return None
    folders = [m.continues for m, _ in loaded]
    if is_universal(job):  # any folder of a timeframe: they contain the same model
        timeframes = dict.fromkeys(m.model.series.timeframe for m, _ in loaded)
        folders = [
            next((m.continues for m, _ in loaded if m.model.series.timeframe == t), None) for t in timeframes
        ]
    return [row for folder in folders for row in _rows(job, earlier_model(home, folder) if folder else None)]


def _rows(job: ShardJob, folder: Path | None) -> list[Member | None]:
    """Return the rows of a registered model, one per copy; all None if its shape differs from the new model's."""
    if folder is None:
        return [None] * job.seeds
    old = cpbmodels.load(folder)
    if old.parts:  # trained anew: most of an average is solved in seconds
        return [None] * job.seeds
    wanted = cpbmodels.preset(job.preset, base_of(job.architecture), **job.overrides)
    shape = ("context", "horizon", "features", "calendar", "calendar_dim", "hidden_dim", "n_layers", "head")
    differing = [k for k in shape if getattr(old.options, k) != getattr(wanted, k)]
    if len(old.rows) != job.seeds:
        differing.append("number of seeds")
    if differing:
        log.warning("warm start: %s has another %s; this member starts anew", folder, ", ".join(differing))
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
