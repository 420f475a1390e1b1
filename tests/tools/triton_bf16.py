"""bf16 in Triton's interpreter as a GPU has it: a patch for tests, of two functions that are wrong there in Triton 3.7.

The interpreter keeps bf16 as uint16 bits. Its `create_dot` multiplies these as integers, and its casts from float32 cut
the bits off, where a GPU rounds to the nearest (`cvt.rn.bf16.f32`): twice the error. Arithmetic on bf16 beside products
and casts is not mended: the kernels compute in float32.
"""

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_cast = InterpreterBuilder.cast_impl


def _float32(data):
    """bf16 bits, uint16 of any shape, as float32: the upper half of its bits."""
    return (data.astype(np.uint32) << 16).view(np.float32)


def _cast_impl(builder, source, target):
    kinds = source.dtype.scalar, target.scalar
    if kinds == (tl.float32, tl.bfloat16):
        # to the nearest, ties to even
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
        return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
    return _cast(builder, source, target)


def _create_dot(builder, a, b, c, input_precision, max_num_imprecise_acc):
    """a [m, k] b [k, n] + c [m, n], in float32: products of bf16 are exact there."""
    left, right = (
        _float32(operand.data) if operand.dtype.scalar == tl.bfloat16 else operand.data for operand in (a, b)
    )
    return TensorHandle(np.matmul(left, right, dtype=c.data.dtype) + c.data, c.dtype.scalar)


def mend(monkeypatch):
    """Until the end of the test."""
    monkeypatch.setattr(InterpreterBuilder, "cast_impl", _cast_impl)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", _create_dot)
