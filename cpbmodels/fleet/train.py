"""`train_fleet`: from series to trained members, fleet by fleet, side by side on a CPU.

The members of a call are cut into fleets. Where memory runs out a fleet is halved, then the batch of a single member is
split; neither changes the result beyond rounding. An architecture may instead solve its members in closed form
(`Architecture.solve`), or fit the weights from which they start (`Architecture.initial_weights`).
"""

import gc
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpbmodels.arch import find, presets
from cpbmodels.arch.line import AVERAGE
from cpbmodels.arch.options import PER_MEMBER, Preset, fleet_key, overrides_by_member
from cpbmodels.arch.task import MemberData
from cpbmodels.data.series import Series
from cpbmodels.device.monitor import Monitor
from cpbmodels.errors import ModelError
from cpbmodels.fleet.average import average
from cpbmodels.fleet.bank import (
    Bank,
    MemberPlan,
    bank_columns,
    evenly_spread,
    make_task,
    plan_members,
    plan_tasks,
)
from cpbmodels.fleet.checkpoints import Checkpoints
from cpbmodels.fleet.export import export
from cpbmodels.fleet.extremes import with_extremes
from cpbmodels.fleet.fleet import Fleet
from cpbmodels.fleet.job import FleetJob, Stopped
from cpbmodels.fleet.kernel_check import fault
from cpbmodels.fleet.loop import Loop
from cpbmodels.fleet.member import Member
from cpbmodels.fleet.net import DTYPES, compute_dtype, pick_device, windows_in_flight
from cpbmodels.fleet.records import OnEpoch, OnStep

log = logging.getLogger(__name__)
_WAIT_SLICE_S = 0.2


def train_fleet(
    series: Sequence[Series],
    architecture: str = "har",
    preset: str = "default",
    seeds: Sequence[int] | int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    scope: str = "per-series",
    checkpoint: str | Path | None = None,
    *,
    resume: bool = False,
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
    profile: str | None = None,
    kernels: bool | str = True,
    **overrides: Any,
) -> list[Member]:
    """Train one member per series (or, `scope="universal"`, one per timeframe and seed) and return them in order.

    seeds: one per series; for universal members, each seed gives one member per timeframe. Default 0.
    checkpoint: folder for a checkpoint per epoch; `resume` continues from its newest one.
    on_epoch: called after every epoch of every fleet; it may return indices of members that must stop now.
    on_step: called with a `StepRecord` before the first step of every fleet and about every 0.3 s within an epoch;
        if it returns True, that fleet's members stop immediately, each with the snapshot of its best epoch so far.
    kernels: use the kernels of `cpbmodels.kernels` if the GPU and the options allow it; False, or a text that says why:
        torch's path alone.
    overrides: any field of the preset (`epochs=5`, `batch_size=32` ..), for all members or a list with one value per
        member. Members that differ in `arch.options.PER_MEMBER` train in one fleet, others in separate fleets.
    Raises ModelError for impossible options or data. A member whose training diverged is returned like any other:
    look at `member.report["diverged"]`.
    """
    series = list(series)
    if not series:
        raise ModelError("train_fleet needs at least one series.")
    place, folder = pick_device(device), Path(checkpoint) if checkpoint is not None else None
    if dtype not in DTYPES:
        raise ModelError(
            f"dtype {dtype!r} is unknown: choose float32 or float64 (mixed_precision adds bf16)."
        )
    plans = plan_members(series, seeds, scope)

    def train_architecture(
        architecture: str, values_of_all: dict[str, Any], folder: Path | None, stage: int = 1, stages: int = 1
    ) -> list[Member]:
        resolved: dict[tuple[str, str], Preset] = {}  # equal timeframes and overrides once
        options = []
        for plan, values in zip(plans, overrides_by_member(values_of_all, len(plans)), strict=True):
            timeframe = series[plan.series[0]].timeframe
            if (key := (timeframe, repr(values))) not in resolved:
                resolved[key] = presets.preset(preset, architecture, profile, timeframe, **values)
            options.append(resolved[key])
        if architecture == AVERAGE:
            common = {name: value for name, value in values_of_all.items() if name != "members"}
            return _train_average(
                lambda name, folder, stage, stages: train_architecture(name, common, folder, stage, stages),
                options,
                folder,
            )
        jobs = _fleet_jobs(
            plans,
            options,
            series=series,
            architecture=architecture,
            device=place,
            dtype=DTYPES[dtype],
            checkpoint=folder,
            resume=resume,
            kernels=kernels,
            on_epoch=on_epoch,
            on_step=on_step,
            of_members=len(plans),
            stage=stage,
            stages=stages,
            lock=threading.Lock(),
            stop=threading.Event(),
        )
        return _train_jobs(jobs)

    members = train_architecture(architecture, overrides, folder)
    return [
        with_extremes(member, [series[index] for index in plan.series], str(place))
        for member, plan in zip(members, plans, strict=True)
    ]


def _fleet_jobs(members: Sequence[MemberPlan], options: Sequence[Preset], **common: Any) -> list[FleetJob]:
    """A job for the members of each `fleet_key`, with the fields in `common`; equal columns are one bank."""
    series, device, dtype = (common[name] for name in ("series", "device", "dtype"))
    groups: dict[Any, dict[int, MemberPlan]] = defaultdict(dict)
    for index, member in enumerate(members):
        groups[fleet_key(options[index])][index] = member
    banks: dict[tuple[str, ...], Bank] = {}
    jobs = []
    for group in groups.values():
        shared = options[next(iter(group))]
        columns = bank_columns(shared)
        # Fleets that differ in other options share one copy of the candles on the device.
        if columns not in banks:
            banks[columns] = Bank.build(series, shared, device, dtype)
        tasks = plan_tasks(banks[columns], series, group, options)
        compute = compute_dtype(shared, common["architecture"], device, dtype)
        jobs.append(FleetJob(options=shared, compute=compute, bank=banks[columns], tasks=tasks, **common))
    return jobs


def ineligible_reason(
    series: Series, architecture: str = "har", preset: str = "default", **overrides: Any
) -> str:
    """Why a series cannot be trained on with these options, or "": the reason to leave it out of a fleet.

    A series with a test span must also have an origin there, else its model could not be evaluated.
    """
    options = presets.preset(preset, architecture, timeframe=series.timeframe, **overrides)
    try:
        # Windows are counted and nothing is computed: any device and type will do.
        bank = Bank.build([series], options, torch.device("cpu"), torch.float32)
        make_task(bank, [series], MemberPlan((0,), 0, ""), options)
    except ModelError as reason:
        return str(reason)
    first, end = series.spans.get("test", (0, 0))
    origins = series.origins("test", options.context, options.horizon)
    if series.is_frozen(origins):
        return f"{series.label}: its price never moves in its test span: leave it out."
    if first < end and not len(origins):
        return (
            f"{series.label}: no window of {options.context} + {options.horizon} candles fits into its test span; "
            "give it more history."
        )
    return ""


def _train_average(
    train: Callable[[str, Path | None, int, int], list[Member]],
    options: Sequence[Preset],
    checkpoint: Path | None,
) -> list[Member]:
    """Train every member of an average for all models of the call, one architecture after the other.

    Args:
        train: trains all models of a member's architecture, given its folder for checkpoints, the number of its stage
            from 1, and the number of stages.
        options: the resolved preset of each model; all of them have the same members.
    """
    names = options[0].members
    if any(preset.members != names for preset in options):
        raise ModelError(
            "members must be the same in all models of a call: train the others in a separate call."
        )
    trained = []
    for place, name in enumerate(names):
        folder = None if checkpoint is None else checkpoint / f"{place}-{name}"
        trained.append(train(name, folder, place + 1, len(names)))
    return [average(parts, preset) for parts, preset in zip(zip(*trained, strict=True), options, strict=True)]


def _train_jobs(jobs: Sequence[FleetJob]) -> list[Member]:
    """Fleet after fleet; on a CPU, `workers` fleets side by side with one core each. Members in the callers' order.

    Threads within an operation wait for one another at every step: on two busy cores that was ten times slower.
    """
    cores, first = torch.get_num_threads(), jobs[0]
    total = sum(len(job.tasks) for job in jobs)
    # A GPU gets one fleet at a time: side by side they would take turns on it.
    workers = min(first.options.workers or cores, total) if first.device.type == "cpu" else 1
    width = find(first.architecture).spec.threads_from_width

    def train_part(job: FleetJob) -> list[Member]:
        wide = width is not None and job.options.hidden_dim >= width
        if job.device.type == "cpu":  # of this thread: OpenMP's and MKL's setting is per thread
            torch.set_num_threads(max(cores // workers, 1) if wide else 1)
        return _train_halving_on_oom(job)

    parts = []
    for job in jobs:
        # Evenly, for the longest part decides when the call ends; no member's result depends on the cut.
        size = -(-len(job.tasks) // workers)
        cuts = range(0, len(job.tasks), size)
        parts += [replace(job, tasks=job.tasks[start : start + size]) for start in cuts]
    try:
        fleets = list(map(train_part, parts)) if workers == 1 else _side_by_side(train_part, parts, workers)
    finally:
        torch.set_num_threads(cores)
    tasks = [task for job in parts for task in job.tasks]
    members = [member for fleet in fleets for member in fleet]
    return [member for _, member in sorted(zip(tasks, members, strict=True), key=lambda pair: pair[0].index)]


def _side_by_side(
    train: Callable[[FleetJob], list[Member]], jobs: list[FleetJob], workers: int
) -> list[list[Member]]:
    """Job by job on `workers` threads. An error or Ctrl-C anywhere stops all of them at their next step."""
    with ThreadPoolExecutor(min(workers, len(jobs)), thread_name_prefix="fleet") as pool:
        futures = [pool.submit(train, job) for job in jobs]
        try:
            # In slices: an untimed wait is not ended by Ctrl-C if a library has set SA_RESTART for SIGINT.
            while wait(futures, timeout=_WAIT_SLICE_S, return_when=FIRST_EXCEPTION).not_done and not any(
                future.done() and future.exception() for future in futures
            ):
                pass
        finally:
            if not all(future.done() and not future.exception() for future in futures):
                # One event for all jobs of a call: each of them looks at it before its next step.
                jobs[0].stop.set()
    failed = [error for future in futures if (error := future.exception()) is not None]
    # The cause first, not the fleets that were stopped because of it.
    for error in sorted(failed, key=lambda error: isinstance(error, Stopped)):
        raise error
    return [future.result() for future in futures]


def _train_halving_on_oom(job: FleetJob) -> list[Member]:
    """Fleet after fleet; out of memory halves the fleet, then the micro-batch (same batch, in two parts)."""
    members: list[Member] = []
    size, tasks = job.options.fleet_size, job.tasks
    while tasks:
        part = replace(job, tasks=tasks[:size])
        try:
            members += _train_fleet_job(part)
            tasks = tasks[size:]
            continue
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
        # Outside the except block: inside, the error's traceback keeps the fleet's tensors in memory.
        size, job = _shrink(job, len(part.tasks))
    return members


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also during a graph's capture, which then fails with an error of its own."""
    if error is None:
        return False
    said = str(error)  # the last as Triton says it, of a kernel that is loaded
    named = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(
        words in said for words in ("can't allocate memory", "Error [CUDA]: out of memory")
    )
    return named or _out_of_memory(error.__context__)


def _shrink(job: FleetJob, size: int) -> tuple[int, FleetJob]:
    """Half the fleet; a single member gets half the micro-batch."""
    gc.collect()  # cycles in code that is not ours (another package's architecture) may hold the fleet's tensors
    if job.device.type == "cuda":
        torch.cuda.empty_cache()
    if size > 1:
        log.warning("Out of memory with %d members together: continuing with %d.", size, size // 2)
        return size // 2, replace(job, halved_to=size // 2)
    parts = job.options.accumulate * 2
    if job.options.batch_size % parts:
        raise ModelError(
            f"Not enough memory for one member with batch_size {job.options.batch_size} in {job.options.accumulate} "
            "parts: choose a smaller batch_size or hidden_dim."
        )
    log.warning(
        "Out of memory with one member: its batch of %d now has %d parts.", job.options.batch_size, parts
    )
    return 1, replace(job, options=replace(job.options, accumulate=parts), split_to=parts)


def _train_fleet_job(job: FleetJob) -> list[Member]:
    """One fleet, from initial weights (or checkpoint) to finished members."""
    # Members that agree in an option give the fleet their plain number, not that of the training's first member.
    first = job.tasks[0].options
    job = replace(job, options=replace(job.options, **{name: getattr(first, name) for name in PER_MEMBER}))
    if find(job.architecture).spec.closed_form:
        return _solve_one(job)
    if not (off := job.kernels_off):
        off = fault(job.architecture, job.options, job.device, job.compute)
    job = replace(job, kernels=off or True)
    precision = torch.get_float32_matmul_precision()
    if job.device.type == "cuda" and job.dtype == torch.float32:
        torch.set_float32_matmul_precision("high")  # TF32
    try:
        with Monitor(job.device) as monitor:
            fleet = job.fleet()
            set_initial_weights(job, fleet)
            loop = Loop(job, fleet, monitor)
            if job.checkpoint is None:
                loop.run(None)
                return export(loop)
            store = Checkpoints(job.checkpoint / f"fleet-{job.tasks[0].index:04d}")
            # Before the first epoch: a checkpoint of an earlier training would be newer by its number.
            if not (job.resume and loop.resume(store)):
                store.clear()
            try:
                loop.run(store)
            finally:
                store.close()
            return export(loop)
    finally:
        torch.set_float32_matmul_precision(precision)


def set_initial_weights(job: FleetJob, fleet: Fleet) -> None:
    """Write what the architecture fits before training into the members; those of the same series share one fit."""
    net = fleet.net
    fitted: dict[tuple[int, ...], Mapping[str, np.ndarray]] = {}
    for k, task in enumerate(job.tasks):
        if task.series_indices not in fitted:
            fitted[task.series_indices] = net.architecture.initial_weights(_member_data(job, fleet, k))
        views = net.layout.views(fleet.flat[k : k + 1])  # [1, ...] by name: writing to a view writes the row
        for name, values in fitted[task.series_indices].items():
            # What is fitted may be fewer rows than the weight has; the others keep their random start.
            views[name][0, : len(values)] = torch.as_tensor(values).to(fleet.flat)
    fleet.best.copy_(fleet.flat)


def _member_data(job: FleetJob, fleet: Fleet, k: int) -> MemberData:
    net, task = fleet.net, job.tasks[k]
    inputs = slice(*net.span)
    return MemberData(
        columns=net.input_columns,
        mean=task.mean[inputs],
        inverse=task.inverse[inputs],
        task=task,
        series=job.series,
        starts=job.bank.starts,
    )


def _solve_one(job: FleetJob) -> list[Member]:
    """One fleet solved in closed form, member by member: seconds, so without checkpoints; one epoch of history.

    The inputs are not scaled: a closed form's penalty is meant for the columns as they are. `train_loss` is taken on at
    most as many training windows as there are for validation, evenly spread.
    """
    tasks = [
        replace(
            task,
            options=replace(task.options, epochs=1),
            mean=np.zeros_like(task.mean),
            inverse=np.ones_like(task.inverse),
        )
        for task in job.tasks
    ]
    job = replace(job, tasks=tasks, compute=job.dtype, options=replace(job.options, epochs=1))
    with Monitor(job.device) as monitor:
        fleet = job.fleet()
        loop = Loop(job, fleet, monitor)
        loop.report_step(0, 1)
        started = time.perf_counter()
        solved: dict[tuple[int, ...], int] = {}  # the row of each: the seeds of a universal model are equal
        for k, task in enumerate(job.tasks):
            if job.stop.is_set():
                raise Stopped("this fleet was stopped with the others")
            if task.series_indices in solved:
                fleet.flat[k] = fleet.flat[solved[task.series_indices]]
                continue
            solved[task.series_indices] = k
            views = fleet.net.layout.views(fleet.flat[k : k + 1].zero_())
            for name, values in fleet.net.architecture.solve(_member_data(job, fleet, k)).items():
                views[name][0] = torch.as_tensor(np.ascontiguousarray(values)).to(fleet.flat)
        fleet.best.copy_(fleet.flat)  # a solution is its own best snapshot: no epoch could be better
        batch = max(windows_in_flight(job.options.context, job.device) // len(tasks), 1)
        validation = fleet.evaluate(job.bank, *loop.validation_windows(), batch)
        sample = [evenly_spread(task.train, job.options.max_validation_windows) for task in tasks]
        # [K, width]: a shorter sample is padded with its last window, at weight 0.
        train = fleet.evaluate(job.bank, *loop.padded(sample, [rows[-1] for rows in sample]), batch)
        losses = zip(train.double().tolist(), validation.double().tolist(), strict=True)
        for progress, (train_loss, val_loss) in zip(loop.progress, losses, strict=True):
            progress.record(0, train_loss, val_loss, 0.0, job.options)
            if progress.stopped != "nan":
                progress.stopped = "closed_form"
                progress.reason = "solved in closed form: there is nothing to repeat"
        loop.epoch, loop.windows = 1, sum(len(task.train) for task in tasks)
        loop.seconds = time.perf_counter() - started
        loop.report_epoch(loop.windows, loop.seconds)
        return export(loop)
