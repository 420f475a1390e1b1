"""Launches of a step, counted by the rules in benchmarks/_kernels.py, and a limit for each architecture."""

import pytest
import torch

from benchmarks import _kernels
from benchmarks._kernels import KernelLog, launches

META = torch.device("meta")
STEP = {
    "transformer": 400,
    "gru": 990,
    "lstm": 970,
}  # of 40 members at seed size, bf16; they stand at 389, 977, 958


@pytest.mark.parametrize("architecture", STEP)
def test_a_step_stays_below_its_limit(architecture):
    """A change that adds launches must say so here: on a GPU they are most of a recurrent step's time."""
    assert 0.9 * STEP[architecture] < launches(architecture).total() <= STEP[architecture]


def counted(work):
    with KernelLog() as log:
        work()
    return log.total


def test_the_rules_are_those_of_the_kernels():
    """Each as torch's CUDA sources have it; the figures are launches."""
    square = torch.empty(4, 8, 8, device=META)
    bias, wide = torch.empty(4, 1, 8, device=META), torch.empty(4, 8, 16, device=META)
    assert counted(lambda: torch.bmm(square, square.transpose(1, 2))) == 1
    assert counted(lambda: torch.bmm(square, wide[:, :, ::2])) == 2  # neither rows nor columns are dense
    assert counted(lambda: torch.bmm(square, wide[:, :, :8])) == 1  # rows are
    assert counted(lambda: torch.baddbmm(bias, square, square)) == 2
    assert counted(lambda: torch.baddbmm(bias, square, square, beta=0)) == 1
    assert counted(lambda: torch.empty_like(square).baddbmm_(square, square)) == 1
    assert counted(lambda: square.transpose(1, 2).view(4, 8, 8).detach()[1:]) == 0
    assert counted(lambda: torch.cat([square] * 128)) == 1
    assert counted(lambda: torch.cat([wide[:, :, :8]] * 128)) == 2
    assert counted(lambda: torch.cat([square, square.half()])) == 2 + 1
    matrix = torch.empty(4, 96, device=META)
    parts = [matrix[:, :32], matrix[:, 32:]]
    copied = [torch.empty(4, 32, device=META), torch.empty(4, 64, device=META)]
    assert counted(lambda: torch._foreach_copy_(parts, copied)) == 2  # strided: one each
    assert counted(lambda: torch._foreach_copy_(copied, [one.clone() for one in copied])) == 2 + 1
    rows = [torch.empty(65_536 * 3, device=META) for _ in range(40)]
    assert _kernels._multi_tensor(rows, 4) == 2  # 36 rows, then 4
    assert _kernels._multi_tensor(rows[:1] * 120, 1) == 2  # 320 blocks, then 40
    assert _kernels._multi_tensor([torch.empty(65_536 * 700, device=META)], 4) == 3
