"""Small fleets whose step runs on torch's path or, in Triton's interpreter, on `cpbmodels.kernels`; and comparisons."""

import torch

from cpbmodels.arch.presets import preset
from cpbmodels.fleet.net import Net
from cpbmodels.fleet.one_step import fleet_step

CPU = torch.device("cpu")
TINY = {
    "hidden_dim": 32,
    "n_heads": 2,
    "ff_dim": 64,
    "batch_size": 16,
    "n_layers": 2,
    "context": 7,
    "horizon": 3,
}


class SmallFleet:
    """Members with a random walk each and one batch of windows.

    kernels: run on Triton, whatever the device; products in `compute`, by default the master weights' dtype.
    """

    def __init__(self, architecture, dtype, kernels=False, members=2, compute=None, **options):
        options = preset(f"seed-{architecture}", architecture, mixed_precision="off", **{**TINY, **options})
        compute = compute or dtype
        net = Net(architecture, options, CPU, dtype, compute if kernels else None)
        step = fleet_step(architecture, options, members, CPU, compute, dtype=dtype, net=net)
        self.fleet, self.bank, self.origins, self.weight = step.fleet, step.bank, step.origins, step.weight

    def gradients(self):
        """Losses [K] and gradients by weight of the first step."""
        fleet, count = self.fleet, len(self.origins)
        fleet.compute_weights.refresh(count)
        share = self.weight / self.weight.sum(1, keepdim=True)
        gradient = fleet.backward(self.bank, self.origins, share, fleet.prefix(count), 0)
        return fleet.loss_sum.clone(), fleet.net.layout.views(gradient.clone())

    def step(self, lr=1e-3):
        """One optimizer step of every member."""
        self.fleet.step(self.bank, self.origins, self.weight, torch.tensor(lr))

    def validation(self, windows):
        """Mean loss [K] over each member's first windows: no dropout, no teacher forcing."""
        origins, weight = self.origins[:, :windows], self.weight[:, :windows]
        return self.fleet.evaluate(self.bank, origins, weight, windows)


def difference(computed, exact):
    """Norm of the difference over the norm of the float64 result."""
    computed, exact = computed.detach(), exact.detach()
    return float((computed.double() - exact).norm() / exact.norm().clamp(min=1e-30))


def largest_difference(computed, exact):
    """The weight whose gradient is farthest off, measured against the whole gradient, and by how much."""
    whole = torch.cat([gradient.flatten() for gradient in exact.values()]).norm()
    off = {
        name: float((computed[name].double() - gradient).norm() / whole) for name, gradient in exact.items()
    }
    return max(off.items(), key=lambda gradient: gradient[1])


def kernel_launches(run):
    """Every launch of `run`, one of each variant: (kernel, arguments, constants). Nothing is launched."""
    from cpbmodels.kernels.support import listening, variant

    seen = {}
    with listening(
        lambda kernel, args, constants: seen.setdefault(
            variant(kernel, args, constants), (kernel, args, constants)
        )
    ):
        run()
    return list(seen.values())
