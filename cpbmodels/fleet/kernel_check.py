"""Whether the kernels compute on this chip what they should: before a fleet uses them, at its own shape.

Three members take one forward and backward pass, one step of the optimizer and one validation: with the kernels, on
torch's path in the same precision, and in float64. What random weights and random walks cannot show, such as a fault
that needs thousands of steps, it does not find. The verdict is stored in Triton's cache folder.
"""

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from cpbmodels.arch import find
from cpbmodels.arch.options import IN_RATE, Preset
from cpbmodels.device.chips import driver_version
from cpbmodels.fleet.config import write_whole
from cpbmodels.fleet.graphs import EAGER_RUNS, Graphs
from cpbmodels.fleet.kernel_switch import off_reason
from cpbmodels.fleet.net import Net, compute_dtype
from cpbmodels.fleet.one_step import FleetStep, fleet_step
from cpbmodels.kernels.support import compile_ahead

log = logging.getLogger(__name__)

WRONG = "wrong on this chip"
MEMBERS = 3
GRADIENT_RATIO, GRADIENT_EXTRA, MAX_GRADIENT_DISTANCE = 1.25, 1e-3, 0.02
"""Distance of a gradient [K, P] from float64's, by its norm: at most torch's own x ratio + extra, and the maximum."""
MAX_LOSS_DISTANCE = 5e-3  # relative distance of the losses [K] from float64's
# of an update [K, P] and of both moments from torch's optimizer, which is in float32, too
MAX_UPDATE_DISTANCE = 5e-4
NO_SHAPE = (
    *IN_RATE,
    "patience",
    "steps_per_epoch",
    "max_train_rows",
    "stride",
    "max_validation_windows",
    "fleet_size",
    "workers",
    "cuda_graph",
)
"""Options that change neither what a step launches nor the shape of its tensors."""

_verdicts: dict[str, str] = {}  # of this process


def kernels_off(
    architecture: str,
    options: Preset,
    device: torch.device,
    compute: torch.dtype | None = None,
    *,
    wanted: bool | str = True,
) -> str:
    """Why fleets with these options keep torch's path, "" if they use the kernels, which are compiled and checked here.

    compute: dtype of the products; None: what a training would choose. wanted: see `off_reason`.
    """
    if options.members:  # each has its own preset, and is asked for when it is trained
        return "an average"
    compute = compute or compute_dtype(options, architecture, device, torch.float32)
    reason = off_reason(find(architecture), options, device, compute, wanted=wanted)
    return reason or fault(architecture, options, device, compute)


def fault(architecture: str, options: Preset, device: torch.device, compute: torch.dtype) -> str:
    """Why fleets with these options must not use the kernels on this device, "" if they may; compiles the kernels.

    Raises torch's error if a launch cost the process its GPU: nothing more can be computed in it.
    """
    key = _key(architecture, options, device, compute)
    if key not in _verdicts:
        try:
            _verdicts[key] = _verdict(key, architecture, options, device, compute)
        except Exception as error:  # noqa: BLE001 - torch's path trains without them
            if device.type == "cuda":
                torch.cuda.synchronize(device)  # raises if the GPU is lost
            _verdicts[key] = f"they do not run here: {' '.join(str(error).split())[:200]}"
        if _verdicts[key]:
            log.warning("Triton kernels of %s are off: %s", architecture, _verdicts[key])
    return _verdicts[key]


def _verdict(key: str, architecture: str, options: Preset, device: torch.device, compute: torch.dtype) -> str:
    """The verdict that is kept on disk, or a new one."""
    begun = time.perf_counter()
    ours = _trial(architecture, options, device, torch.float32, compute, kernels=True)
    made = compile_ahead(lambda: _all_launches(ours))
    log.info("%d kernels of %s compiled or cached in %.1f s", made, architecture, time.perf_counter() - begun)
    place = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    path = Path(place) / f"cpb-{key}.txt"
    with suppress(OSError):
        return path.read_text()
    wrong = list(faults(compare(architecture, options, device, compute)))
    if not wrong:
        bits = same_bits(architecture, options, device, compute)
        wrong = [f"other bits with {name}" for name, same in bits.items() if not same]
    verdict = f"{WRONG}: {', '.join(wrong)}" if wrong else ""
    with suppress(OSError):  # measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, verdict.encode())
    return verdict


def compare(
    architecture: str, options: Preset, device: torch.device, compute: torch.dtype, *, kernels: bool = True
) -> dict[str, float]:
    """Distances from float64 of losses, validation losses and gradient, by the kernels and (`torch_`) by torch's path.

    `update`: the distance of the optimizer's kernels from torch's optimizer, on one gradient. kernels: False leaves all
    but torch's out.
    """
    names = ("loss", "validation", "gradient")
    exact = _pass(_trial(architecture, options, device, torch.float64, torch.float64, kernels=False))
    torchs = _trial(architecture, options, device, torch.float32, compute, kernels=False)
    out = {f"torch_{name}": _distance(*pair) for name, *pair in zip(names, _pass(torchs), exact, strict=True)}
    if kernels:
        ours = _trial(architecture, options, device, torch.float32, compute, kernels=True)
        first = _pass(ours)
        out |= {name: _distance(*pair) for name, *pair in zip(names, first, exact, strict=True)}
        updates = zip(_update(ours, first[2]), _update(torchs, first[2]), strict=True)
        out["update"] = max(_distance(*pair) for pair in updates)
    return out


def same_bits(
    architecture: str, options: Preset, device: torch.device, compute: torch.dtype
) -> dict[str, bool]:
    """Whether losses and gradient keep all bits in a repeat, without and beside other members, and as a graph."""
    step = _trial(architecture, options, device, torch.float32, compute, kernels=True)
    first = _pass(step)
    out = {"a repeat": _equal(_pass(step), first), "one member less": _equal(_pass(step, MEMBERS - 1), first)}
    if device.type == "cuda":
        out["a graph"] = _equal(_replayed(step, device), first)
    step.fleet.flat[-1] = torch.nan
    beside = _pass(step)
    out["a neighbour of NaN"] = _equal([tensor[:-1] for tensor in beside], first) and bool(
        beside[0][-1].isnan()
    )
    return out


def faults(distances: Mapping[str, float]) -> Iterator[str]:
    """What is too far off in a result of `compare`, in words."""
    limits = {
        "gradient": min(GRADIENT_RATIO * distances["torch_gradient"] + GRADIENT_EXTRA, MAX_GRADIENT_DISTANCE),
        "loss": MAX_LOSS_DISTANCE,
        "validation": MAX_LOSS_DISTANCE,
        "update": MAX_UPDATE_DISTANCE,
    }
    for name, limit in limits.items():
        if not distances[name] <= limit:  # NaN, too
            yield f"{name} {distances[name]:.1e} off, {limit:.1e} allowed"


def _trial(
    architecture: str,
    options: Preset,
    device: torch.device,
    dtype: torch.dtype,
    compute: torch.dtype,
    *,
    kernels: bool,
) -> FleetStep:
    options = replace(options, stride=1, max_train_rows=0)
    net = Net(architecture, options, device, dtype, compute if kernels else None)
    rows = 900 + 4 * options.batch_size
    step = fleet_step(architecture, options, MEMBERS, device, compute, rows, dtype=dtype, net=net)
    # The open well above the close: the candle's high is the larger of both, and where they are almost equal, as with
    # initial weights, rounding decides which of them gets a gradient.
    net.layout.views(step.fleet.flat)["out.bias"][..., 1] += 1
    return step


def _all_launches(step: FleetStep) -> None:
    """All that a training launches, rows that take no step included."""
    gradient = _pass(step)[2]
    _update(step, gradient)
    step.fleet.update(step.fleet.prefix(MEMBERS), gradient, step.runner.rates[0], None, 0)


def _pass(step: FleetStep, members: int | None = None) -> list[Tensor]:
    """Training losses [K], validation losses [K] and gradient [K, P] of all or the first members, on a batch's part."""
    fleet, options = step.fleet, step.fleet.net.options
    part = options.batch_size // options.accumulate
    origins, weight = step.origins[:members, :part], step.weight[:members, :part]
    validation = fleet.evaluate(step.bank, origins, weight, part)
    fleet.loss_sum.zero_()
    gradient = fleet.backward(step.bank, origins, weight / part, fleet.prefix(len(origins)), 0)
    return [fleet.loss_sum[:members].clone(), validation, gradient.clone()]


def _update(step: FleetStep, gradient: Tensor) -> list[Tensor]:
    """Change of the weights and both moments [K, P] by one step, which the last row does not take; undone."""
    fleet, long = step.fleet, gradient * 1e3  # longer than `clip` allows, so that the norm counts, too
    tensors = fleet.flat, fleet.first, fleet.second, fleet.steps
    before = [tensor.clone() for tensor in tensors]
    held = torch.zeros(MEMBERS, device=gradient.device)
    held[-1] = 1
    fleet.grad.copy_(long)  # torch's optimizer reads it there
    fleet.update(fleet.prefix(MEMBERS), long, step.runner.rates[0], held, 1)
    changes = [tensor - old for tensor, old in zip(tensors, before, strict=True)]
    for tensor, old in zip(tensors, before, strict=True):
        tensor.copy_(old)
    return changes[:3]


def _replayed(step: FleetStep, device: torch.device) -> list[Tensor]:
    """`_pass` as a graph."""
    graphs, out = Graphs(device), list[Tensor]()

    def work() -> None:
        out[:] = _pass(step)

    for _ in range(EAGER_RUNS + 1):
        graphs.run("check", work)
    return out


def _distance(computed: Tensor, right: Tensor) -> float:
    """Norm of the difference over the norm of what is right."""
    return float((computed.double() - right.double()).norm() / right.double().norm().clamp(min=1e-30))


def _equal(some: list[Tensor], all_members: list[Tensor]) -> bool:
    return all(
        torch.equal(computed, every[: len(computed)])
        for computed, every in zip(some, all_members, strict=True)
    )


def _key(architecture: str, options: Preset, device: torch.device, compute: torch.dtype) -> str:
    """Digest of all that a verdict depends on: source, Triton, torch, driver, chip and shape."""
    import triton

    shape = {name: value for name, value in options.as_dict().items() if name not in NO_SHAPE}
    chip = torch.cuda.get_device_properties(device).name if device.type == "cuda" else "cpu"
    facts = _source(), triton.__version__, torch.__version__, _driver(), chip, architecture, compute, shape
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


_driver = cache(driver_version)


@cache
def _source() -> str:
    root = Path(__file__).parents[1]  # of the package: a verdict holds for the whole source that was tried
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(root.rglob("*.py")))).hexdigest()
