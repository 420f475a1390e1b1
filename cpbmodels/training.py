"""`train_fleet`: from series to trained members, fleet by fleet, side by side on a CPU.

A job's tasks (members to be) are cut into fleets. Where memory runs out the fleet is halved, then the batch of a single
member is split; neither changes the result beyond rounding.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch import find
from cpbmodels.bank import Bank, Scaling, Task
from cpbmodels.checkpoint import Checkpoints
from cpbmodels.closed_form import set_initial_weights, solve, unscaled
from cpbmodels.device.monitor import Monitor
from cpbmodels.errors import ModelError
from cpbmodels.export import export
from cpbmodels.fleet import Fleet
from cpbmodels.job import EpochRecord, Job, Stopped
from cpbmodels.loop import EpochCost, Loop
from cpbmodels.member import Member
from cpbmodels.model import DTYPES
from cpbmodels.net import Net
from cpbmodels.plan import compute_dtype, pick_device, plan_tasks
from cpbmodels.presets import preset as resolve
from cpbmodels.series import Series

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
    on_epoch: Callable[[EpochRecord], None] | None = None,
    profile: str | None = None,
    **overrides: Any,
) -> list[Member]:
    """Train one member per series (or, `scope="universal"`, one per timeframe and seed) and return them in order.

    seeds: one per series; for universal members, each seed gives one member per timeframe. Default 0.
    checkpoint: folder for a checkpoint per epoch; `resume` continues from its newest one.
    warm_start: trained members with equal options, one per new member, to continue from; None starts
        that member anew.
    overrides: any field of the preset (`epochs=5`, `batch_size=32` ..).
    Raises ModelError for impossible options or data. A member whose training diverged is returned like any other:
    look at `member.report["diverged"]`.
    """
    series = list(series)
    options = resolve(preset, architecture, profile, **overrides)
    place = pick_device(device)
    if dtype not in DTYPES:
        raise ModelError(
            f"dtype {dtype!r} is unknown: choose float32 or float64 (mixed_precision adds bf16)."
        )
    kind = DTYPES[dtype]
    bank = Bank.build(_nonempty(series), options, place, kind)
    tasks = plan_tasks(bank, series, seeds, scope, options)
    job = Job(
        series=series,
        architecture=architecture,
        options=options,
        device=place,
        dtype=kind,
        compute=compute_dtype(options, architecture, place, kind),
        checkpoint=Path(checkpoint) if checkpoint is not None else None,
        resume=resume,
        warm=list(warm_start) if warm_start is not None else None,
        on_epoch=on_epoch,
    )
    if job.warm is not None and len(job.warm) != len(tasks):
        raise ModelError(f"warm_start needs one member per new member: {len(tasks)}, not {len(job.warm)}.")
    return _train_chunks(job, bank, tasks)


def _nonempty(series: list[Series]) -> list[Series]:
    if not series:
        raise ModelError("train_fleet needs at least one series.")
    return series


def _train_chunks(job: Job, bank: Bank, tasks: list[Task]) -> list[Member]:
    """Fleet after fleet; on a CPU, `workers` fleets side by side with one core each.

    Threads within an operation wait for one another at every step: on two busy cores that was ten times slower.
    """
    if job.device.type != "cpu":
        return _train_in_memory(job, bank, tasks, 0)
    cores = torch.get_num_threads()
    workers = min(job.options.workers or cores, len(tasks))
    share = -(-len(tasks) // workers)
    starts = range(0, len(tasks), share)
    width = find(job.architecture).spec.threads_from_width
    threads = max(cores // workers, 1) if width is not None and job.options.hidden_dim >= width else 1

    def train_share(start: int) -> list[Member]:
        torch.set_num_threads(threads)  # of this thread: OpenMP's and MKL's setting is per thread
        return _train_in_memory(job, bank, tasks[start : start + share], start)

    try:
        return train_share(0) if workers == 1 else _side_by_side(job, train_share, starts)
    finally:
        torch.set_num_threads(cores)


def _side_by_side(job: Job, train: Callable[[int], list[Member]], starts: Sequence[int]) -> list[Member]:
    """One thread per start. An error or Ctrl-C anywhere stops all of them at their next step."""
    with ThreadPoolExecutor(len(starts), thread_name_prefix="fleet") as pool:
        futures = [pool.submit(train, start) for start in starts]
        try:
            # In slices: an untimed wait is not ended by Ctrl-C where a library has set SA_RESTART for SIGINT.
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
    return [member for future in futures for member in future.result()]


def _train_in_memory(job: Job, bank: Bank, tasks: list[Task], first: int) -> list[Member]:
    """Fleet after fleet; out of memory halves the fleet, then the micro-batch (same batch, in two parts)."""
    members: list[Member] = []
    size, start = job.options.fleet_size, 0
    while start < len(tasks):
        chunk = tasks[start : start + size]
        try:
            members += _train_one(job, bank, chunk, first + start)
            start += len(chunk)
            continue
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
        # Outside the except block: inside, the error's traceback keeps the fleet's tensors in memory.
        size, job = _shrink(job, len(chunk))
    return members


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also where that ended a graph's capture, which then fails with an error of its own."""
    if error is None:
        return False
    named = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
    return named or _out_of_memory(error.__context__)


def _shrink(job: Job, size: int) -> tuple[int, Job]:
    """Half the fleet; a single member gets half the micro-batch."""
    gc.collect()  # cycles in code that is not ours (another package's architecture) may hold the fleet's tensors
    if job.device.type == "cuda":
        torch.cuda.empty_cache()
    if size > 1:
        log.warning("Out of memory with %d members at once: going on with %d.", size, size // 2)
        return size // 2, replace(job, halved_to=size // 2)
    parts = job.options.accumulate * 2
    if job.options.batch_size % parts:
        raise ModelError(
            f"Not enough memory for one member with batch_size {job.options.batch_size} in {job.options.accumulate} "
            "parts: choose a smaller batch_size or hidden_dim."
        )
    log.warning(
        "Out of memory with one member: its batch of %d now goes in %d parts.", job.options.batch_size, parts
    )
    return 1, replace(job, options=replace(job.options, accumulate=parts))


def _train_one(job: Job, bank: Bank, tasks: list[Task], start: int) -> list[Member]:
    """One fleet, from initial weights (or checkpoint) to finished members."""
    if find(job.architecture).spec.closed_form:
        return _solve_one(job, bank, tasks, start)
    net = Net(job.architecture, job.options, job.device, job.dtype)
    with Monitor(job.device) as monitor, fast_matmul(job):
        fleet = make_fleet(job, net, tasks, start)
        set_initial_weights(job, fleet, bank, tasks, start)
        loop = Loop(fleet, bank, tasks, job.options, monitor, job.stop)
        store = Checkpoints(job.checkpoint / f"fleet-{start:04d}") if job.checkpoint is not None else None
        if store is not None and not (job.resume and loop.resume(store)):
            store.clear()
        try:
            loop.run(store, _reporter(job, start) if job.on_epoch is not None else None)
        finally:
            if store is not None:
                store.close()
        return export(job, net, bank, loop)


def _solve_one(job: Job, bank: Bank, tasks: list[Task], start: int) -> list[Member]:
    """One fleet solved in closed form: a matter of seconds, so without checkpoints; a warm start has no meaning."""
    job = replace(job, compute=job.dtype, warm=None, options=replace(job.options, epochs=1))
    net = Net(job.architecture, job.options, job.device, job.dtype)
    with Monitor(job.device) as monitor:
        tasks = unscaled(tasks)
        loop = Loop(make_fleet(job, net, tasks, start), bank, tasks, job.options, monitor, job.stop)
        cost = solve(job, loop)
        if job.on_epoch is not None:
            _reporter(job, start)(loop, cost)
        return export(job, net, bank, loop)


@contextmanager
def fast_matmul(job: Job) -> Iterator[None]:
    """TF32 for float32 products on a GPU, for the time of a training."""
    before = torch.get_float32_matmul_precision()
    if job.device.type == "cuda" and job.dtype == torch.float32:
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def make_fleet(job: Job, net: Net, tasks: list[Task], start: int) -> Fleet:
    """A fleet with the initial weights of each task, or those of the member it continues from, on the device."""
    warm = job.warm[start : start + len(tasks)] if job.warm is not None else [None] * len(tasks)
    rows = [
        _warm_row(net, old) if old else _new_row(net, task) for task, old in zip(tasks, warm, strict=True)
    ]
    flat = torch.cat(rows)
    scaling = Scaling(*(_stack(tasks, name, job) for name in ("mean", "inverse")))
    seeds = torch.tensor([task.seed for task in tasks], device=job.device)
    return Fleet(net, flat.to(job.device, job.dtype), seeds, scaling, job.compute)


def _stack(tasks: list[Task], name: str, job: Job) -> Tensor:
    return torch.as_tensor(np.stack([getattr(task, name) for task in tasks])).to(job.device, job.dtype)


def _new_row(net: Net, task: Task) -> Tensor:
    return torch.as_tensor(net.layout.initial(task.seed))[None]


def _warm_row(net: Net, member: Member) -> Tensor:
    if member.rows.shape != (1, net.layout.size):
        raise ModelError(
            f"warm_start: {member.config.get('symbol')} has other dimensions than the new model (or is an ensemble): "
            "start without it, or with its options."
        )
    return member.rows


def _reporter(job: Job, start: int) -> Callable[[Loop, EpochCost], None]:
    """Calls `on_epoch` with the members that trained in the loop's last epoch; `start`: index of its first task."""

    def report(loop: Loop, cost: EpochCost) -> None:
        members = [
            {
                "index": start + task,
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
            epochs=job.options.epochs,
            lr=members[0]["lr"],
            members=members,
            windows_per_s=cost.windows_per_s,
            seconds=cost.seconds,
            memory=cost.memory,
        )
        with job.lock:  # fleets side by side report one at a time
            job.on_epoch(record)

    return report
