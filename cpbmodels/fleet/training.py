"""`train_fleet`: from series to trained members, fleet by fleet, side by side on a CPU.

A job's tasks (members to be) are cut into fleets. Where memory runs out the fleet is halved, then the batch of a single
member is split; neither changes the result beyond rounding. `on_step` is told how far an epoch has come,
`on_epoch` what it cost and reached.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpbmodels.arch import find
from cpbmodels.arch.average import NAME as AVERAGE
from cpbmodels.arch.options import Preset
from cpbmodels.arch.per_member import fleet_key, fleet_options, overrides_by_member
from cpbmodels.arch.presets import preset as resolve
from cpbmodels.data.series import Series
from cpbmodels.device.monitor import Monitor
from cpbmodels.errors import ModelError
from cpbmodels.fleet.bank import Bank, Task, bank_columns
from cpbmodels.fleet.checkpoint import Checkpoints
from cpbmodels.fleet.closed_form import set_initial_weights, solve, unscaled
from cpbmodels.fleet.export import export
from cpbmodels.fleet.loop import EpochRecord, Job, Loop, OnEpoch, OnStep, StepRecord, Stopped, make_fleet
from cpbmodels.fleet.member import Member, average
from cpbmodels.fleet.net import DTYPES, Net
from cpbmodels.fleet.plan import Planned, compute_dtype, pick_device, plan_members, plan_tasks
from cpbmodels.kernels.check import kernels_off

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
    resume: bool = False,
    warm_start: Sequence[Member | None] | None = None,
    on_epoch: OnEpoch | None = None,
    on_step: OnStep | None = None,
    profile: str | None = None,
    kernels: bool | str = True,
    **overrides: Any,
) -> list[Member]:
    """Train one member per series (or, `scope="universal"`, one per timeframe and seed) and return them in order.

    seeds: one per series; for universal members, each seed gives one member per timeframe. Default 0.
    checkpoint: folder for a checkpoint per epoch; `resume` continues from its newest one.
    warm_start: trained members with equal options, one per new member, to continue from; None starts
        that member from new weights.
    on_epoch: called after every epoch of every fleet; it may return indices of members that must stop now.
    on_step: called with a `StepRecord` before the first step of every fleet and about every 0.3 s within an epoch;
        if it returns True, that fleet's members stop immediately, each with the snapshot of its best epoch so far.
    kernels: use the kernels of `cpbmodels.kernels` if the GPU and the options allow it; False, or a text that says why:
        torch's path alone.
    overrides: any field of the preset (`epochs=5`, `batch_size=32` ..), for all members or a list with one value per
        member. Members that differ in `per_member.PER_MEMBER` train in one fleet, others in separate fleets.
    Raises ModelError for impossible options or data. A member whose training diverged is returned like any other:
    look at `member.report["diverged"]`.
    """
    series = list(series)
    if not series:
        raise ModelError("train_fleet needs at least one series.")
    place = pick_device(device)
    if dtype not in DTYPES:
        raise ModelError(
            f"dtype {dtype!r} is unknown: choose float32 or float64 (mixed_precision adds bf16)."
        )
    members = dict(enumerate(plan_members(series, seeds, scope)))
    options = _resolved(preset, architecture, profile, overrides_by_member(overrides, len(members)))
    if architecture == AVERAGE:
        own = {name: value for name, value in overrides.items() if name != "members"}
        alike = partial(
            train_fleet, series, preset=preset, seeds=seeds, device=device, dtype=dtype, scope=scope, resume=resume,
            on_epoch=on_epoch, on_step=on_step, profile=profile, kernels=kernels, **own,
        )  # fmt: skip
        return _train_average(
            alike, options, Path(checkpoint) if checkpoint is not None else None, warm_start
        )
    job = Job(
        series=series,
        architecture=architecture,
        options=options[0],
        device=place,
        dtype=DTYPES[dtype],
        compute=compute_dtype(options[0], architecture, place, DTYPES[dtype]),
        checkpoint=Path(checkpoint) if checkpoint is not None else None,
        resume=resume,
        warm=list(warm_start) if warm_start is not None else None,
        on_epoch=on_epoch,
        on_step=on_step,
        of_members=len(members),
        kernels=kernels,
    )
    if job.warm is not None and len(job.warm) != len(members):
        raise ModelError(f"warm_start needs one member per new member: {len(members)}, not {len(job.warm)}.")
    return _train_shares(job, _groups(job, members, options))


def _train_average(
    train: Callable[..., list[Member]],
    options: Sequence[Preset],
    checkpoint: Path | None,
    warm: Sequence[Member | None] | None,
) -> list[Member]:
    """Train every member of an average for all models of the call, one architecture behind the other.

    Args:
        train: `train_fleet` with all arguments that are the same for every member.
        options: the resolved preset of each model; all of them have the same members.
    """
    names = options[0].members
    if any(one.members != names for one in options):
        raise ModelError(
            "members must be the same in all models of a call: train the others in a separate call."
        )
    trained = []
    for place, name in enumerate(names):
        earlier = None if warm is None else [one.parts[place] if one and one.parts else None for one in warm]
        folder = None if checkpoint is None else checkpoint / f"{place}-{name}"
        trained.append(train(architecture=name, checkpoint=folder, warm_start=earlier))
    return [average(parts, own) for parts, own in zip(zip(*trained, strict=True), options, strict=True)]


def _resolved(
    preset: str, architecture: str, profile: str | None, overrides: list[dict[str, Any]]
) -> list[Preset]:
    """The preset of each member; equal overrides are resolved once."""
    made: dict[str, Preset] = {}
    for own in overrides:
        if repr(own) not in made:
            made[repr(own)] = resolve(preset, architecture, profile, **own)
    return [made[repr(own)] for own in overrides]


@dataclass(frozen=True)
class Share:
    """Members that can be rows of one fleet, with the options they have in common and the candles they read."""

    job: Job
    bank: Bank
    tasks: list[Task]


def _groups(job: Job, members: dict[int, Planned], options: list[Preset]) -> list[Share]:
    """The members by `fleet_key`. Groups that read the same columns share one bank."""
    found: dict[Any, dict[int, Planned]] = {}
    for index, one in members.items():
        found.setdefault(fleet_key(options[index]), {})[index] = one
    banks: dict[tuple[str, ...], Bank] = {}
    out = []
    for own in found.values():
        common = options[next(iter(own))]
        columns = bank_columns(common)
        if columns not in banks:
            banks[columns] = Bank.build(job.series, common, job.device, job.dtype)
        compute = compute_dtype(common, job.architecture, job.device, job.dtype)
        tasks = plan_tasks(banks[columns], job.series, own, options)
        out.append(Share(replace(job, options=common, compute=compute), banks[columns], tasks))
    return out


def _train_shares(job: Job, groups: list[Share]) -> list[Member]:
    """Fleet after fleet; on a CPU, `workers` fleets side by side with one core each. Members in the callers' order.

    Threads within an operation wait for one another at every step: on two busy cores that was ten times slower.
    """
    cores = torch.get_num_threads()
    every = [task.index for group in groups for task in group.tasks]
    workers = min(job.options.workers or cores, len(every)) if job.device.type == "cpu" else 1
    width = find(job.architecture).spec.threads_from_width

    def train(share: Share) -> list[Member]:
        wide = width is not None and share.job.options.hidden_dim >= width
        if job.device.type == "cpu":  # of this thread: OpenMP's and MKL's setting is per thread
            torch.set_num_threads(max(cores // workers, 1) if wide else 1)
        return _train_in_memory(share.job, share.bank, share.tasks)

    shares = [part for group in groups for part in _cut(group, workers)]
    try:
        made = (
            [train(share) for share in shares] if workers == 1 else _side_by_side(job, train, shares, workers)
        )
    finally:
        torch.set_num_threads(cores)
    trained = {
        task.index: member
        for share, members in zip(shares, made, strict=True)
        for task, member in zip(share.tasks, members, strict=True)
    }
    return [trained[index] for index in sorted(every)]


def _cut(group: Share, workers: int) -> list[Share]:
    size = -(-len(group.tasks) // workers)
    return [
        replace(group, tasks=group.tasks[start : start + size]) for start in range(0, len(group.tasks), size)
    ]


def _side_by_side(
    job: Job, train: Callable[[Share], list[Member]], shares: list[Share], workers: int
) -> list[list[Member]]:
    """Share by share on `workers` threads. An error or Ctrl-C anywhere stops all of them at their next step."""
    with ThreadPoolExecutor(min(workers, len(shares)), thread_name_prefix="fleet") as pool:
        futures = [pool.submit(train, share) for share in shares]
        try:
            # In slices: an untimed wait is not ended by Ctrl-C if a library has set SA_RESTART for SIGINT.
            while wait(futures, timeout=_WAIT_SLICE_S, return_when=FIRST_EXCEPTION).not_done and not any(
                future.done() and future.exception() for future in futures
            ):
                pass
        except BaseException:
            job.stop.set()
            raise
        if any(future.done() and future.exception() for future in futures):
            job.stop.set()
    failed = [e for e in (future.exception() for future in futures) if e is not None]
    for error in sorted(failed, key=lambda e: isinstance(e, Stopped)):
        raise error
    return [future.result() for future in futures]


def _train_in_memory(job: Job, bank: Bank, tasks: list[Task]) -> list[Member]:
    """Fleet after fleet; out of memory halves the fleet, then the micro-batch (same batch, in two parts)."""
    members: list[Member] = []
    size, start = job.options.fleet_size, 0
    while start < len(tasks):
        chunk = tasks[start : start + size]
        try:
            trained = _train_one(job, bank, chunk)
            if all(one.report["stopped"] == "nan" and one.report["kernels"] == "on" for one in trained):
                log.warning("No member's loss stayed finite: trained again without Triton kernels.")
                plain = replace(job, kernels="no loss stayed finite with them", resume=False)
                trained = _train_one(plain, bank, chunk)
            members += trained
            start += len(chunk)
            continue
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
        # Outside the except block: inside, the error's traceback keeps the fleet's tensors in memory.
        size, job = _shrink(job, len(chunk))
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


def _shrink(job: Job, size: int) -> tuple[int, Job]:
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
    return 1, replace(job, options=replace(job.options, accumulate=parts))


def _train_one(job: Job, bank: Bank, tasks: list[Task]) -> list[Member]:
    """One fleet, from initial weights (or checkpoint) to finished members."""
    job = replace(job, options=fleet_options(job.options, [task.options for task in tasks]))
    if find(job.architecture).spec.closed_form:
        return _solve_one(job, bank, tasks)
    off = kernels_off(job.architecture, job.options, job.device, job.compute, job.kernels)
    job = replace(job, kernels=off or True)
    net = job.net()
    with Monitor(job.device) as monitor, fast_matmul(job):
        fleet = make_fleet(job, net, tasks)
        set_initial_weights(job, fleet, bank, tasks)
        on_step = step_reporter(job, bank) if job.on_step is not None else None
        loop = Loop(fleet, bank, tasks, job.options, monitor, job.stop, on_step)
        store = (
            Checkpoints(job.checkpoint / f"fleet-{tasks[0].index:04d}")
            if job.checkpoint is not None
            else None
        )
        if store is not None and not (job.resume and loop.resume(store)):
            store.clear()
        try:
            loop.run(store, epoch_reporter(job) if job.on_epoch is not None else None)
        finally:
            if store is not None:
                store.close()
        return export(job, bank, loop)


def _solve_one(job: Job, bank: Bank, tasks: list[Task]) -> list[Member]:
    """One fleet solved in closed form: a matter of seconds, so without checkpoints; a warm start has no meaning."""
    job = replace(job, compute=job.dtype, warm=None, options=replace(job.options, epochs=1))
    net = Net(job.architecture, job.options, job.device, job.dtype)
    with Monitor(job.device) as monitor:
        tasks = [replace(task, options=replace(task.options, epochs=1)) for task in unscaled(tasks)]
        loop = Loop(make_fleet(job, net, tasks), bank, tasks, job.options, monitor, job.stop)
        if job.on_step is not None:
            step_reporter(job, bank)(loop, 0, 1)
        solve(job, loop)
        if job.on_epoch is not None:
            epoch_reporter(job)(loop, loop.windows, loop.seconds)
        return export(job, bank, loop)


@contextmanager
def fast_matmul(job: Job) -> Iterator[None]:
    """TF32 for float32 products on a GPU, during a training."""
    before = torch.get_float32_matmul_precision()
    if job.device.type == "cuda" and job.dtype == torch.float32:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def step_reporter(job: Job, bank: Bank) -> Callable[[Loop, int, int], bool]:
    """Calls `on_step` with how far the loop has come within its epoch; whether the members shall stop now."""
    rows = bank.rows

    def report(loop: Loop, step: int, steps: int) -> bool:
        record = StepRecord(
            epoch=loop.epoch + 1,
            epochs=max(own.epochs for own in loop.own_options),
            step=step,
            steps=steps,
            members=[loop.tasks[task].index for task in loop.order[: loop.active]],
            of_members=job.of_members,
            device=str(rows.device),
            data=(rows.shape[0], rows.shape[1]),
            data_dtype=str(rows.dtype).removeprefix("torch."),
            data_mb=rows.numel() * rows.element_size() / 1e6,
        )
        assert job.on_step is not None
        with job.lock:  # fleets side by side report one at a time
            return bool(job.on_step(record))

    return report


def epoch_reporter(job: Job) -> Callable[[Loop, int, float], None]:
    """Calls `on_epoch` with the members that trained in the loop's last epoch, and stops those it returns."""

    def report(loop: Loop, windows: int, seconds: float) -> None:
        members = [
            {
                "index": loop.tasks[task].index,
                "symbol": loop.tasks[task].symbol,
                "timeframe": loop.tasks[task].timeframe,
                "seed": loop.tasks[task].seed,
                "best_val_loss": progress.best,
                "stopped": progress.stopped,
                **progress.history[-1],
            }
            for task, progress in enumerate(loop.progress)
            if progress.history and progress.history[-1]["epoch"] == loop.epoch
        ]
        assert job.on_epoch is not None
        record = EpochRecord(
            epoch=loop.epoch,
            epochs=max(own.epochs for own in loop.own_options),
            lr=members[0]["lr"],
            members=members,
            windows_per_s=windows / seconds,
            seconds=seconds,
            memory=loop.monitor.latest(),
        )
        with job.lock:  # fleets side by side report one at a time
            unwanted = set(job.on_epoch(record) or ())
        for task, progress in zip(loop.tasks, loop.progress, strict=True):
            if task.index in unwanted and not progress.stopped:
                progress.stopped, progress.reason = (
                    "on_request",
                    f"stopped on request after epoch {loop.epoch}",
                )

    return report
