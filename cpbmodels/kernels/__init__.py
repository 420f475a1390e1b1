"""Triton kernels for a fleet's step on NVIDIA GPUs, each with an equivalent plain-torch path.

`support` decides whether a fleet uses them and imports no triton; the other modules import it, and are imported by the
code that launches them. All tensors are stacked, [members, ...], and every sum has a fixed order (partial sums by
program, then one reduction), never atomics: repeats are equal to the last bit, and no member's result depends on its
neighbours.
"""
