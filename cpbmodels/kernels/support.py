"""Whether a fleet uses the kernels, and how they are launched, compiled ahead and listed.

On from sm_80 with mixed precision in bf16: older chips have no bf16 products, and in float64 or TF32 the tiles do not
fit into shared memory. Everything else keeps torch's path. No triton is imported here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpbmodels.arch.options import Preset

if TYPE_CHECKING:
    from cpbmodels.arch.base import Architecture

MIN_CAPABILITY = (8, 0)
ROWS = 16
"""Rows of the smallest tile of a product: a step's windows per member must be a multiple of it."""
MIN_SHARED_BYTES = 101_376
"""Shared memory a program may ask for (`shared_memory_per_block_optin`): sm_86 has as little, sm_80 and sm_90 more."""

Listener = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""(kernel, its arguments, its constants and options) of a launch that is not run."""
_listener: Listener | None = None


def off_reason(
    architecture: type[Architecture],
    options: Preset,
    device: torch.device,
    compute: torch.dtype,
    *,
    wanted: bool | str = True,
) -> str:
    """Why a fleet with these options on this device, products in `compute`, keeps torch's path; "" if it does not.

    wanted: False or the reason why not. Whether they compute right on this device, `check.kernels_off` says.
    """
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


def shared_bytes(device: torch.device) -> int:
    """Shared memory that one program may request; without a GPU (interpreter, offline compiler) an H100's."""
    if device.type != "cuda":
        return 232_448
    # "optin": more than the 48 KB that a program gets unasked
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # torch's stubs leave it out


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run a kernel on the current stream; within `listening`, only report the launch.

    args: tensors, of which some may be None, and numbers. constants: the `constexpr` arguments, num_warps, num_stages.
    """
    if _listener is not None:
        _listener(kernel, args, constants)
        return
    with _device_of(args):
        kernel[grid](*args, **constants)


def _device_of(args: tuple[Any, ...]) -> torch.cuda.device_of:
    """Triton launches on the current device, whichever the tensors are on."""
    return torch.cuda.device_of(next(argument for argument in args if isinstance(argument, Tensor)))


def partial_sums(like: Tensor, programs: int) -> Tensor:
    """float32 [K, programs, columns]: room for the sums that each program makes of a [K, .., columns] tensor."""
    return torch.empty(len(like), programs, like.shape[-1], device=like.device, dtype=torch.float32)


def summed(part: Tensor, like: Tensor) -> Tensor:
    """[K, programs, columns] -> [K, 1, columns] in the dtype of `like`: one reduction in a fixed order."""
    return part.sum(1, keepdim=True).to(like.dtype)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [K, n, i] times weight [K, i, o]: [K, n, o].

    A width that is not a multiple of 8 is padded with zeros: cuBLAS loads 16 bytes at once, eight bf16, and ran
    products of width 4 several times slower on an H100.
    """
    i, o = weight.shape[1:]
    if i % 8:
        x, weight = F.pad(x, (0, -i % 8)), F.pad(weight, (0, 0, 0, -i % 8))
    return torch.bmm(x, F.pad(weight, (0, -o % 8)))[..., :o] if o % 8 else torch.bmm(x, weight)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report every launch instead of running it: what a step computes meanwhile is meaningless."""
    global _listener  # autograd's backward pass runs in threads of its own: no context variable reaches them
    before, _listener = _listener, listener
    try:
        yield
    finally:
        _listener = before


def variant(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> tuple[Any, ...]:
    """Equal for launches that run the same machine code, if plain numbers make no variants (`do_not_specialize`)."""
    # As Triton decides it: by dtype and 16-byte alignment of tensors, and by the type alone of plain numbers.
    kinds = tuple(
        (argument.dtype, argument.data_ptr() % 16 == 0) if isinstance(argument, Tensor) else type(argument)
        for argument in args
    )
    return (kernel, kinds, *sorted(constants.items()))


def compile_ahead(step: Callable[[], object]) -> int:
    """Compile all kernels that `step` launches, in threads, each variant once; returns their number.

    `step` runs at once, without its kernels. triton keeps what it compiled on disk, below `TRITON_CACHE_DIR`.
    """

    def build(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> None:
        with _device_of(args):  # a thread starts on the first GPU
            # `run` builds the launcher and loads the code: at the first launch that would take turns.
            _ = kernel.warmup(*args, grid=(1,), **constants).run

    made: dict[tuple[Any, ...], Future[Any]] = {}
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="compile") as pool:

        def submit(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> None:
            key = variant(kernel, args, constants)
            if key not in made:
                made[key] = pool.submit(build, kernel, args, constants)

        with listening(submit):
            step()
        for compilation in made.values():  # raises what a compilation raised
            compilation.result()
    return len(made)
