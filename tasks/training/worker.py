"""The process that trains one fleet: `python -m tasks.training.worker FOLDER`, started by `launch`.

Reads `job.json`, leaves a folder per member and then `done.json`; a checkpoint per epoch lets a killed
process be continued to the same bits. Knows no orchestrator and no MLflow.
"""

import fcntl
import json
import os
import shutil
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cpbmodels
from cpbmodels.device.doctor import profile_for
from schemas.errors import CpbError, MemberError
from schemas.records import Failure
from tasks.storage.files import new_folder, write_json
from tasks.signals.store import load_series
from tasks.training.job import Job, JobMember
from tasks.training.lineup import Loaded, train_members

_AT_ONCE = 8
"""Members whose forecasts are made and written together."""


def main(folder: Path) -> int:
    """Train the job in `folder`; returns the exit code."""
    torch.set_num_threads(int(os.environ.get("CPB_THREADS", "1")))
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done.json").exists():
            train_job(folder)
    return 0


def _die_with_parent(parent: int) -> None:
    """End when the flow is gone: a training nobody waits for must not race with the re-run's."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def train_job(folder: Path) -> None:
    """Train, predict the validation and test spans, and write every member's folder, then `done.json`."""
    job = Job.load(folder)
    loaded, failures = _load(job)
    if not loaded:
        raise CpbError(f"no series of this fleet can be trained; the first: {failures[0].reason}")
    started = time.perf_counter()
    members = train_members(
        job,
        loaded,
        device=job.device,
        profile=_profile(job),
        dtype=job.dtype,
        checkpoint=folder / "checkpoints",
        resume=True,
        on_epoch=lambda record: write_json(folder / "progress.json", _progress(job, record)),
    )
    with new_folder(folder / "members") as draft:
        _write_members(draft, job, loaded, members)
    write_json(
        folder / "done.json",
        {
            "train_seconds": time.perf_counter() - started,
            "failures": [f.model_dump() for f in failures],
            "members": [m.name for m, _ in loaded],
        },
    )
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _profile(job: Job) -> str | None:
    """Return the hardware profile: as asked, or by the GPU's memory; on a CPU the preset stands as it is."""
    if job.profile != "auto":
        return job.profile
    if job.device == "cpu" or not torch.cuda.is_available():
        return None
    return profile_for(torch.cuda.get_device_properties(0).total_memory)


def _load(job: Job) -> tuple[Loaded, list[Failure]]:
    loaded: Loaded = []
    failures = []
    for member in job.members:
        try:
            series = load_series(member.features, job.bounds[member.timeframe], member.symbol)
        except MemberError as error:
            failures.append(_failure(job, member, str(error)))
            continue
        reason = cpbmodels.why_not(series, job.base_architecture, job.preset, **job.overrides)
        if reason:
            failures.append(_failure(job, member, reason))
        else:
            loaded.append((member, series))
    return loaded, failures


def _failure(job: Job, member: JobMember, reason: str) -> Failure:
    return Failure(
        symbol=member.symbol,
        timeframe=member.timeframe,
        step="train",
        reason=reason,
        architecture=job.architecture,
    )


def _progress(job: Job, record: cpbmodels.EpochRecord) -> dict[str, Any]:
    return json.loads(json.dumps({"architecture": job.architecture} | asdict(record), default=float))


def _write_members(draft: Path, job: Job, loaded: Loaded, members: list[cpbmodels.Member]) -> None:
    """Write every member's folder, a few at a time: the forecasts of 40 members would fill half a gigabyte."""
    for start in range(0, len(loaded), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        _write_some(draft, job, loaded[part], members[part])


def _write_some(draft: Path, job: Job, loaded: Loaded, members: list[cpbmodels.Member]) -> None:
    pairs = [(series, member) for (_, series), member in zip(loaded, members, strict=True)]
    for (spec, series), member in zip(loaded, members, strict=True):
        folder = draft / spec.name
        member.save(folder / "model", extra=_extra(job, spec, series, member))
        write_json(folder / "history.json", {"history": member.history, "report": member.report})
    for split in ("validation", "test"):
        origins = [series.origins(split, m.context, m.horizon) for series, m in pairs]
        forecasts = cpbmodels.predict(members, [series for series, _ in pairs], origins)
        for (spec, _), one in zip(loaded, forecasts, strict=True):
            _save_forecasts(draft / spec.name / f"{split}.npz", one)


def _save_forecasts(path: Path, forecasts: cpbmodels.Prediction) -> None:
    """Keep a split's forecasts for judging: float32 is plenty for log-returns and half the disk."""
    arrays = {"quantiles": forecasts.quantiles, "candle": forecasts.candle}
    if forecasts.probabilities is not None:
        arrays["probabilities"] = forecasts.probabilities
    np.savez(path, origins=forecasts.origins, **{k: v.astype(np.float32) for k, v in arrays.items()})


def _extra(job: Job, spec: JobMember, series: cpbmodels.Series, member: cpbmodels.Member) -> dict[str, Any]:
    times = series.times
    assert times is not None
    first, stop = series.spans["train"]
    if most := member.options.max_train_rows:
        first = max(first, stop - most)
    return {
        "symbol": spec.symbol,
        "timeframe": spec.timeframe,
        "scope": "universal" if job.universal else "per-series",
        "data_digest": spec.digest,
        "rows": spec.rows,
        "warm_start": str((job.warm_start or {}).get(spec.name, "")) or None,
        "training_span": [
            str(np.datetime64(int(times[first]), "us")) + "Z",
            str(np.datetime64(int(times[max(first, stop - 1)]), "us")) + "Z",
        ],
        "bounds": job.bounds[spec.timeframe].model_dump(mode="json"),
        "preset": job.preset,
        "code_digest": job.code,
        "versions": {"torch": torch.__version__, "numpy": np.__version__, "python": sys.version.split()[0]},
    }


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1])))
    except (CpbError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
