"""Kernels made wrong on purpose, in Triton's interpreter, and what `cpbmodels.fleet.kernel_check` says of them."""

import importlib.util
from pathlib import Path

import torch
from triton.runtime.interpreter import InterpretedFunction

from cpbmodels.fleet import kernel_check
from cpbmodels.kernels import attention, cells, decoder, optimizer, recurrent, transformer
from tests.tools.gpu_on_cpu import gpu_path

CPU, BF16 = torch.device("cpu"), torch.bfloat16
MASK, SIGN, HELD, NEIGHBOUR = "a mask", "a sign", "a held row", "a neighbour"
_SHARES = (
    attention,
    "scores = tl.where((t < T)[:, None], scores",
    "scores = tl.where((t < BT)[:, None], scores",
)
WRONG = {
    ("transformer", MASK): (attention, "seen = (j < T)[None, :]", "seen = (j < BT)[None, :]"),
    ("transformer", SIGN): (transformer, "v * 0.7071067811865476)) + v", "v * 0.7071067811865476)) - v"),
    ("gru", MASK): _SHARES,
    ("gru", SIGN): (cells, "d_h * (h - n) * z", "d_h * (n - h) * z"),
    ("lstm", MASK): _SHARES,
    ("lstm", SIGN): (cells, "_put3(out, H, d * g * i", "_put3(out, H, -d * g * i"),
    ("gru", HELD): (optimizer, "moves = tl.load(held + k) == 0", "moves = tl.load(held + k) >= 0"),
    ("gru", NEIGHBOUR): (
        attention,
        "out += tl.load(b_out + k * s_bo + o).to(tl.float32)",
        "out += tl.load(b_out + k * s_bo + o).to(tl.float32) + 0 * tl.load(b_out + (2 - k) * s_bo + o).to(tl.float32)",
    ),
}


def make_wrong(monkeypatch, tmp_path, architecture, what):
    """Run the module's kernels from a copy of its source with one expression changed."""
    module, right, wrong = WRONG[architecture, what]
    source = Path(module.__file__).read_text()
    assert source.count(right) == 1
    path = tmp_path / "wrong.py"
    path.write_text(source.replace(right, wrong))
    spec = importlib.util.spec_from_file_location("wrong", path)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    kernels = {
        name: kernel for name, kernel in vars(module).items() if isinstance(kernel, InterpretedFunction)
    }
    for user in (attention, decoder, optimizer, recurrent, cells, transformer):  # where it is imported, too
        for name, kernel in kernels.items():
            if vars(user).get(name) is kernel:
                monkeypatch.setattr(user, name, vars(copy)[name])


def found_wrong(architecture, options):
    with gpu_path():
        return list(kernel_check.faults(kernel_check.compare(architecture, options, CPU, BF16)))
