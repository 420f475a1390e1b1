"""Kernels compiled for chips that are not there: spills and shared memory, as ptxas says them."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_BYTES = {80: 166_912, 86: 101_376, 90: 232_448}
"""Shared memory a program may ask for, by chip: NVIDIA's compute capability tables, less the 1 KB that CUDA keeps."""
_TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True)
class Compiled:
    """What a program asks for: bytes of stack and local memory a thread, bytes of shared memory."""

    name: str
    stack: int
    shared: int


def compile_for(chip, kernel, args, constants):
    """Compile one launch (`cpbmodels.kernels.support.launch`) for a chip as 80, 86 or 90."""
    constants = dict(constants)
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages") if name in constants}
    signature, values, attributes = {}, {}, {}
    plain = [name for name in kernel.arg_names if name not in constants]
    given = dict(zip(plain, args, strict=True)) | constants
    for place, (name, param) in enumerate(zip(kernel.arg_names, kernel.params, strict=True)):
        value = given[name]
        if name in constants or value is None:
            signature[name], values[(place,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = f"*{_TYPES[value.dtype]}"
            attributes[(place,)] = [["tt.divisibility", 16]] if value.data_ptr() % 16 == 0 else []
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            if isinstance(value, int) and value % 16 == 0 and not param.do_not_specialize:
                attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=values, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    return Compiled(made.metadata.name, _stack(made.asm["cubin"]), made.metadata.shared)


def _stack(cubin):
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return int(re.search(r"STACK:(\d+)", text)[1])
