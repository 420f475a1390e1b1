"""How kernels are launched, compiled ahead and listed, and the sums and products around them. No triton is imported."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Listener = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
"""(kernel, its arguments, its constants and options) of a launch that is not run."""
_listener: Listener | None = None


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
