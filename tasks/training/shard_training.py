"""The training of a shard, from its job to its result, and the forecasts of the spans to be judged.

It reads `job.json`, writes a folder per member, and then the record of the result; a checkpoint per epoch lets a killed
process be continued with bit-identical results.

A job with `seeds` = E trains every member E times, together; the copies' quantiles are averaged, and the average is the
registered model. A universal architecture learns all series of a timeframe (and fold) in one model.
"""

import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cpbmodels
from cpbmodels.arch.options import profile_for
from cpbmodels.data.cross_section import CrossSection
from cpbmodels.data.series import Series
from cpbmodels.data.wide import NO_MARKET
from cpbmodels.device.monitor import Monitor
from cpbmodels.fleet.member import Member
from cpbmodels.fleet.net import pick_device
from cpbmodels.fleet.predict import predict_each
from schemas.errors import CpbError, DamagedError, MemberError, log
from schemas.failure import Failure
from schemas.fleets import base_of, is_universal
from schemas.handover import DeviceWork, JobMember, ShardJob, ShardProgress, ShardResult, TrainedMember
from tasks.signals.feature_files import cross_sections, market_key, read_features, with_bounds
from tasks.storage.arrays import write_npz
from tasks.storage.folders import new_folder
from tasks.storage.records import write_record
from tasks.storage.sealed import seal
from tasks.training.epochs import EpochFile, plain, read_epochs
from tasks.training.plan import job_key
from tasks.training.progress import ProgressFile
from tasks.training.shard import CHECKPOINTS, EPOCHS, RESULT, home_of, read_job

Loaded = Sequence[tuple[JobMember, Series]]

_MEMBERS_AT_ONCE = 8
"""Members whose forecasts are computed and written together."""


def train_members(
    job: ShardJob, loaded: Loaded, *, checkpoint: Path | None = None, **how: Any
) -> list[Member]:
    """Train the job's fleet and return the model that serves each loaded series, in order.

    Args:
        loaded: the members that can be trained, with their series.
        checkpoint: folder for checkpoints.
        how: passed to `cpbmodels.train_fleet`.
    """
    if not is_universal(job.architecture):
        return _train(
            job, loaded, [seed for member, _ in loaded for seed in _seeds(member, job)], checkpoint, how
        )
    # Trained together: all of a job without folds, else each fold's timeframes separately.
    # A universal model of one fold must not see another's candles: their spans overlap, and a later fold's training
    # span holds an earlier one's test span.
    parts: dict[tuple[int, str], list[tuple[JobMember, Series]]] = defaultdict(list)
    for member, series in loaded:
        parts[_part(member)].append((member, series))
    served: dict[str, Member] = {}
    for key, part in parts.items():
        # Seeds of the first planned member, even if it could not be loaded.
        first = next(member for member in job.members if _part(member) == key)
        folder = checkpoint
        if checkpoint and first.fold:
            folder = checkpoint / f"fold-{first.fold}-{first.model.series.timeframe}"
        models = _train(job, part, _seeds(first, job), folder, how)
        by_timeframe = {model.config["timeframe"]: model for model in models}
        served |= {m.name: by_timeframe[m.model.series.timeframe] for m, _ in part}
    return [served[m.name] for m, _ in loaded]


def _part(member: JobMember) -> tuple[int, str]:
    return member.fold, member.model.series.timeframe if member.fold else ""


def _train(
    job: ShardJob, loaded: Loaded, seeds: list[int], checkpoint: Path | None, how: dict[str, Any]
) -> list[Member]:
    """Return one model per group of copies; its report records if any copy diverged."""
    universal = is_universal(job.architecture)
    trained = cpbmodels.train_fleet(
        [series for _, series in loaded] if universal else [s for _, s in loaded for _ in range(job.seeds)],
        architecture=base_of(job.architecture),
        preset=job.preset,
        seeds=seeds,
        scope="universal" if universal else "per-series",
        checkpoint=checkpoint,
        **how,
        **job.overrides,
    )
    # Copies of a member are adjacent rows, in the order in which they were laid out above.
    copies = (trained[i : i + job.seeds] for i in range(0, len(trained), job.seeds))
    return [same[0] if len(same) == 1 else cpbmodels.ensemble(same) for same in copies]


def _seeds(member: JobMember, job: ShardJob) -> list[int]:
    return [member.model.seed + i for i in range(job.seeds)]


def train_job(folder: Path, without_kernels: str = "") -> ShardResult:
    """Train, predict the validation and test spans, and write every member's folder, then the result.

    without_kernels: why `cpbmodels.kernels` are not used although the job allows them.
    """
    job = read_job(folder)
    progress = ProgressFile(folder, job.architecture)
    home = home_of(folder, job)
    loaded, failures = _load(job, home)
    if not loaded:
        raise CpbError(
            f"no series of this shard can be trained; the first: {failures[0].reason}", code="empty-fleet"
        )
    started = time.perf_counter()

    epochs = EpochFile(folder / EPOCHS)

    def on_epoch(record: cpbmodels.EpochRecord) -> None:
        epochs.add(record)
        progress.on_epoch(record)

    device = str(pick_device(job.device.partition(":")[0]))  # the trainer of cuda:1 sees only that GPU
    with measured(device) as work:
        models = train_members(
            job,
            loaded,
            checkpoint=folder / CHECKPOINTS,
            resume=True,
            device=device,
            profile=profile_of(job.profile, job.device),
            dtype=job.dtype,
            on_epoch=on_epoch,
            on_step=progress.on_step,
            kernels=job.kernels and (without_kernels or True),
        )
        good: Trained = []
        for (member, series), model in zip(loaded, models, strict=True):
            if not model.report.get("diverged"):
                good.append((member, series, model))
                continue
            # Such a model would be saved with its initial weights.
            why = model.report.get("reason") or "the loss was not finite in the first epoch"
            reason = f"{member.model}: training diverged ({why}); try a smaller learning rate"
            failures.append(Failure.of(member.model, "train", MemberError(reason, code="diverged")))
        # Members as a whole or not at all, and the result after them: a killed trainer leaves a shard that is
        # trained on, never one that looks finished.
        with new_folder(folder / "members") as draft:
            members = tuple(_write_members(draft, job, good, progress, device))
        reported = read_epochs(folder / EPOCHS)
        result = ShardResult(
            key=job_key(job),
            architecture=job.architecture,
            members=members,
            failures=tuple(failures),
            train_seconds=time.perf_counter() - started,
            work=work(),
            epochs=tuple(epoch.metrics for epoch in reported),
            progress=tuple(ShardProgress(**epoch.model_dump(exclude={"metrics"})) for epoch in reported),
        )
    write_record(folder / RESULT, result)
    (folder / EPOCHS).unlink(missing_ok=True)  # the result contains them
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    return result


@contextmanager
def measured(device: str) -> Iterator[Callable[[], DeviceWork]]:
    """Measure the device from here to the call of what is yielded, at the end of the block."""
    begin, cpu = time.time(), time.process_time()
    with Monitor(device, quiet=True) as monitor:

        def work() -> DeviceWork:
            # Time of day, not a monotonic clock: shards of several processes and nodes are put on one axis.
            end, on_gpu = time.time(), device != "cpu"
            share = monitor.summary().get("gpu_util_mean") if on_gpu else None
            return DeviceWork(
                device=os.environ.get("CUDA_VISIBLE_DEVICES", "") if on_gpu else "",
                begin=begin,
                end=end,
                busy_s=None if share is None else share / 100 * (end - begin),
                cpu_s=time.process_time() - cpu,
            )

        yield work


def profile_of(requested: str, device: str) -> str | None:
    """Return the hardware profile: as requested, or by the GPU's memory; None on a CPU."""
    if requested != "auto":
        return requested
    if device == "cpu" or not torch.cuda.is_available():
        return None
    return profile_for(torch.cuda.get_device_properties(0).total_memory)


def _load(job: ShardJob, home: Path) -> tuple[Loaded, list[Failure]]:
    loaded, failures = [], []
    records = {member.features.path: member.features for member in job.members}
    # A universe's candles are most of a trainer's memory: copies per fold would multiply them.
    read = cache(lambda path: read_features(home, records[path]))  # folds of a series share its arrays
    # Without the profile, which changes neither the columns nor the context: only fleet size, precision and graphs.
    presets = [
        cpbmodels.preset(job.preset, base_of(job.architecture), timeframe=timeframe, **job.overrides)
        for timeframe in {record.series.timeframe for record in records.values()}
    ]
    shared: dict[tuple[str, str], CrossSection] = {}
    if any(NO_MARKET in options.features for options in presets):
        # What coins share is computed once, over the series of this shard alone: it is part of its job, so its
        # digest covers it.
        coins = {}
        for record in records.values():
            with suppress(DamagedError, OSError):  # a failure of that coin, below
                coins[record.series] = read(record.path)
        shared = cross_sections(coins)
    for member in job.members:
        try:
            series = with_bounds(read(member.features.path), member.model.series, member.bounds)
            series = replace(series, cross_section=shared.get(market_key(member.model.series)))
        except (MemberError, DamagedError, OSError) as error:
            failures.append(Failure.of(member.model, "train", error))
            continue
        if reason := cpbmodels.ineligible_reason(
            series, base_of(job.architecture), job.preset, **job.overrides
        ):
            failures.append(Failure.of(member.model, "train", MemberError(reason, code="too-short")))
        else:
            loaded.append((member, series))
    return loaded, failures


Trained = list[tuple[JobMember, cpbmodels.Series, cpbmodels.Member]]


def _write_members(
    draft: Path, job: ShardJob, trained: Trained, progress: ProgressFile, device: str
) -> Iterator[TrainedMember]:
    """Write every member's folder, a few at a time: the forecasts of 40 members would take half a gigabyte."""
    for start in range(0, len(trained), _MEMBERS_AT_ONCE):
        progress.forecasting(start, len(trained))
        part = trained[start : start + _MEMBERS_AT_ONCE]
        for member, series, model in part:
            folder = draft / member.name / "model"
            model.save(folder, extra=_extra(job, member, series, model))
            yield TrainedMember(
                model=member.model,
                name=member.name,
                history=tuple(plain(model.history)),
                report=plain(model.report),
                flat_band=model.config.get("flat_band"),
            )
        for split in ("validation", "test"):
            for (member, _, _), forecast in zip(part, _predict(part, split, device), strict=True):
                # An error is left to the member's judge, which asks the model and reports it.
                if isinstance(forecast, cpbmodels.Prediction):
                    write_npz(draft / member.name / f"{split}.npz", forecast.arrays())
        for member, _, _ in part:
            seal(draft / member.name)


def _predict(trained: Trained, split: str, device: str) -> list[cpbmodels.Prediction | cpbmodels.ModelError]:
    """Return the forecasts of a span on the device that trained, on the CPU where its memory does not suffice."""
    series, models = [s for _, s, _ in trained], [m for _, _, m in trained]
    origins = [s.origins(split, m.context, m.horizon) for _, s, m in trained]
    try:
        return predict_each(models, series, origins, device=device)
    except torch.OutOfMemoryError:
        if device == "cpu":
            raise
    log.warning("too little GPU memory for the forecasts of the %s span: they are computed on the CPU", split)
    torch.cuda.empty_cache()
    return predict_each(models, series, origins)


def _extra(
    job: ShardJob, member: JobMember, series: cpbmodels.Series, model: cpbmodels.Member
) -> dict[str, Any]:
    times = series.times
    assert times is not None
    # The candles that were learnt from: a preset may use the newest rows of the span alone.
    first, stop = series.spans["train"]
    if most := model.options.max_train_rows:
        first = max(first, stop - most)
    of = member.model.series
    return {
        "market": of.market,
        "symbol": of.symbol,
        "timeframe": of.timeframe,
        "scope": "universal" if is_universal(job.architecture) else "per-series",
        "data_digest": member.features.digest,
        "rows": member.features.rows,
        "training_span": [
            str(np.datetime64(int(times[first]), "us")) + "Z",
            str(np.datetime64(int(times[max(first, stop - 1)]), "us")) + "Z",
        ],
        "bounds": member.bounds.model_dump(mode="json"),
        "preset": job.preset,
        "recipe": member.model.recipe,
        "code_digest": job.code,
        "versions": {"torch": torch.__version__, "numpy": np.__version__, "python": sys.version.split()[0]},
    }
