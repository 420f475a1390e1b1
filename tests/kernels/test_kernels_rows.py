"""What the optimizer's kernels read of a fleet whose members differ in clip and weight decay."""

import torch
from fleets import SmallFleet


def test_limits_follow_their_members_when_rows_are_reordered():
    fleet = SmallFleet("gru", torch.float32, members=3).fleet
    fleet.differing = {"clip": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)}
    fleet.nets.clear()
    limits = fleet.prefix(3).limits[0]
    kept = limits.data_ptr()
    assert limits.tolist() == [1.0, 2.0, 3.0]
    fleet.reorder(torch.tensor([2, 0, 1]))
    assert fleet.prefix(3).limits[0].tolist() == [3.0, 1.0, 2.0]
    assert fleet.prefix(3).limits[0].data_ptr() == kept  # a captured graph holds the address
