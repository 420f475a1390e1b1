"""Whether a fleet uses the kernels of `cpbmodels.kernels`, as far as chip and options say; no triton is imported.

On from sm_80 with mixed precision in bf16: older chips have no bf16 products, and in float64 or TF32 the tiles do not
fit into shared memory. Everything else keeps torch's path. Whether they compute right, `kernel_check` says.
"""

from functools import cache
from importlib.util import find_spec

import torch

from cpbmodels.arch.base import Architecture
from cpbmodels.arch.options import Preset
from cpbmodels.kernels.support import shared_bytes

MIN_CAPABILITY = (8, 0)
ROWS = 16
"""Rows of the smallest tile of a product: a step's windows per member must be a multiple of it."""
MIN_SHARED_BYTES = 101_376
"""Shared memory a program may ask for (`shared_memory_per_block_optin`): sm_86 has as little, sm_80 and sm_90 more."""


def off_reason(
    architecture: type[Architecture],
    options: Preset,
    device: torch.device,
    compute: torch.dtype,
    *,
    wanted: bool | str = True,
) -> str:
    """Why a fleet with these options on this device, products in `compute`, keeps torch's path; "" if it does not.

    wanted: False or the reason why not. Whether they compute right on this device, `kernel_check.kernels_off` says.
    """
    # Of one micro-batch: this is what a launch sees.
    windows = options.batch_size // options.accumulate
    if wanted is not True:
        return wanted or "kernels=false"
    if device.type != "cuda":
        return f"they need an NVIDIA GPU, not {device.type}"
    if find_spec("triton") is None:
        return "triton is not installed"
    if torch.version.cuda is None or torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return "they need an NVIDIA GPU of compute capability 8.0 or newer"
    if shared_bytes(device) < MIN_SHARED_BYTES:
        return f"the GPU has {shared_bytes(device):,} bytes of shared memory a program, {MIN_SHARED_BYTES:,} are needed"
    if compute != torch.bfloat16:
        return f"products are in {str(compute).removeprefix('torch.')}, not bf16"
    if options.head != "point":
        return f"they support only the head point, not {options.head}"
    if windows % ROWS:
        return f"{windows} windows a member and step are not a multiple of {ROWS}"
    # What the architecture says of its own widths. A subclass inherits the answer, but not the computation.
    reason = architecture.no_kernels(options)
    if not reason and "no_kernels" not in vars(architecture):
        reason = "a subclass may compute something else"
    return reason or driver_fault()


@cache
def driver_fault() -> str:
    """Why Triton cannot run kernels in this process, "" if it can.

    At its first use it builds its driver: that takes a C compiler, Python's headers and a cache that can be written.
    """
    try:
        import triton

        _ = triton.runtime.driver.active.utils
    except Exception as error:  # noqa: BLE001 - torch's path trains without it
        return f"triton cannot compile here: {' '.join(str(error).split())[:200]}"
    return ""


def described(reason: str) -> str:
    """`on` or `off (reason)`, as a run's parameters name it."""
    return f"off ({reason})" if reason else "on"
