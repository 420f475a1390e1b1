"""What trainings cost, in figures and in words."""

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

from schemas.errors import counted
from schemas.handover import DeviceWork, ShardResult

_GPU, _CPU = "gpu_mem_allocated_peak_mb", "rss_peak_mb"


def fleet_cost(shards: Sequence[ShardResult]) -> dict[str, Any]:
    """Return what training a fleet cost, also if an earlier run trained it; empty if it has no model.

    `seconds`: those of all its shards, with the forecasts of the spans to be judged; `windows_per_s`, `best_epoch`,
    `epochs_run`: means over the models, None of what was not measured, or is fitted without epochs; the peaks of memory
    in MB (2^20 bytes), over all stages; `device`. `epochs_of`: of an average, the member whose epochs these are.
    """
    reports = [member.report for shard in shards for member in shard.members]
    if not reports:
        return {}
    # Peaks are measured per epoch in the process of the shard, so the largest over both is the fleet's.
    epochs = [epoch for shard in shards for epoch in shard.epochs]
    cost: dict[str, Any] = {
        "seconds": sum(shard.train_seconds for shard in shards),
        "windows_per_s": _mean(report.get("windows_per_s") or None for report in reports),
        "device": ", ".join(sorted({str(report["device"]) for report in reports if "device" in report})),
    }
    for name in (_CPU, _GPU):
        cost[name] = max((figures.get(name) or 0.0 for figures in (*reports, *epochs)), default=0.0) or None
    # A closed form has no epochs: as zeros they would lower the means.
    learned = [report for report in reports if report.get("stopped") != "closed_form"]
    for name in ("best_epoch", "epochs_run"):
        cost[name] = _mean(report.get(name) for report in learned)
    parts = {
        epoch.architecture for shard in shards for epoch in shard.progress if epoch.stages > epoch.stage == 1
    }
    cost["epochs_of"] = min(parts) if parts and learned else None
    return cost


def cost_text(cost: Mapping[str, Any]) -> str:
    """Return a fleet's cost in words: seconds, windows/s, device, peak memory, best epoch."""
    parts = [f"{cost['seconds']:,.1f} s" if cost.get("seconds") else ""]
    device = f" on {cost['device']}" if cost.get("device") else ""
    if cost.get("windows_per_s"):
        parts.append(f"{cost['windows_per_s']:,.0f} windows/s{device}")
    elif device:
        parts.append(device.strip())
    parts.append(peak_text(cost))
    if cost.get("best_epoch"):
        of = f" ({cost['epochs_of']})" if cost.get("epochs_of") else ""
        parts.append(f"best epoch {_number(cost['best_epoch'])} of {_number(cost['epochs_run'])}{of}")
    return ", ".join(filter(None, parts))


def peak_text(cost: Mapping[str, Any]) -> str:
    """Return the peak of memory in words: a GPU's if one was used, else the process's; "" if not measured."""
    if cost.get(_GPU):
        return f"at most {gigabytes(cost[_GPU])} GB of GPU memory"
    return f"at most {cost[_CPU]:,.0f} MB of memory" if cost.get(_CPU) else ""


def run_cost(fleets: Sequence[Mapping[str, Any]], before: Collection[str] = ()) -> str:
    """Return what the fleets of a run (`flows.run.Run.fleets`) cost together; "" if none has a model.

    Args:
        before: names of fleets whose cost is that of an earlier run.
    """
    known = [fleet for fleet in fleets if "seconds" in fleet]
    if not known:
        return ""
    seconds = sum(fleet["seconds"] for fleet in known)
    devices = ", ".join(sorted({fleet["device"] for fleet in known if fleet["device"]}))
    each = ", ".join(f"{fleet['fleet']} {fleet['seconds']:,.1f} s" for fleet in known)
    # Not the sum: fleets train one after the other on a device.
    peaks = {name: max(fleet[name] or 0.0 for fleet in known) for name in (_CPU, _GPU)}
    parts = [f"{seconds:,.1f} s of training{f' on {devices}' if devices else ''} ({each})", peak_text(peaks)]
    earlier = [fleet["fleet"] for fleet in known if fleet["fleet"] in before]
    return ", ".join(filter(None, parts)) + (f"; by an earlier run: {', '.join(earlier)}" if earlier else "")


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def busy_share(work: Sequence[DeviceWork], cores: int) -> dict[str, float]:
    """Return `device_busy_share`: the share of time from the first shard's start to the last's end with devices busy.

    For GPUs, the seconds in which a kernel ran, averaged over the GPUs that trained; nothing if a driver does not say
    it. For a CPU, the trainers' CPU time divided by its cores.
    """
    # From the first shard's start to the last's end: gaps between shards are time in which a device waited, and
    # count.
    span = max(shard.end for shard in work) - min(shard.begin for shard in work)
    gpus = {shard.device for shard in work if shard.device}
    seconds = [shard.busy_s if shard.device else shard.cpu_s for shard in work]
    if span <= 0 or None in seconds:
        return {}
    return {"device_busy_share": sum(filter(None, seconds)) / (span * (len(gpus) or cores))}


def device_figures(cost: Mapping[str, float], cores: int) -> str:
    """Return the memory and the use of a device in an epoch: of a GPU if one was used, else of the process.

    Args:
        cost: figures of `cpbmodels.device.monitor.Monitor.latest`.
        cores: those that the process may use.
    """
    if "gpu_mem_allocated_mb" in cost:
        names = {
            "allocated": "gpu_mem_allocated_mb",
            "reserved": "gpu_mem_reserved_mb",
            "peak": "gpu_mem_allocated_peak_mb",
        }
        first, *others = (f"{gigabytes(cost[name])} {word}" for word, name in names.items())
        first = first.replace(" ", " GB ", 1)
        use = f"{cost['gpu_util']:.0f} %" if "gpu_util" in cost else "use not measured"
        return ", ".join([f"GPU {first}", *others, use])
    memory = (
        f"{cost['rss_mb']:,.0f} MB, {cost['rss_peak_mb']:,.0f} peak"
        if cost.get("rss_peak_mb")
        else "memory not measured"
    )
    used = cost.get("cpu_util", 0.0) / 100 * cores
    return f"CPU {memory}, {used:.1f} of {counted(cores, 'core')}"


def gigabytes(megabytes: float) -> str:
    """Return MB as `Monitor` counts them (2^20 bytes) in GB (10^9 bytes), as in `2.34`."""
    return f"{megabytes * 2**20 / 1e9:.2f}"
