"""A fleet on its device: the [K, P] matrix, its optimizer, one training step, and validation.

K members, P weights each, B windows per member and step. Rows are ordered (members with fewer steps, and stopped
members, at the back), so that the rows of a step are always a prefix and every tensor of a step is a view. Every row
has its own gradient clip, step count and loss: nothing is shared, so a fleet of K equals K fleets of one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.layers import Draws, Layout, PerRow, Weights, by_row, on_gpu
from cpbmodels.arch.torch_private import foreach_add_, foreach_copy_, fused_adam_, fused_adamw_
from cpbmodels.fleet.bank import Bank, Scaling
from cpbmodels.fleet.net import Net

BETAS, EPSILON = (0.9, 0.999), 1e-8

# Used when nothing is random: tells the net that it trains, and no draw is ever requested from it.
_NO_DRAWS = Draws(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))


def rate_tensor(rates: np.ndarray, device: torch.device) -> Tensor:
    """Rates of float32 precision (`loop.step_rates`) in the dtype that a device's fused optimizers read."""
    return torch.tensor(rates, dtype=torch.float64 if device.type == "cpu" else torch.float32).to(device)


@dataclass
class Prefix:
    """Views of the first `count` rows, made once per count: weights to differentiate, and the optimizer's rows.

    The gradient matrix has the layout of the weights: `grads` are its views by weight, `row_grads` those by member.
    `limits`: clip and weight decay, float32 [count], as the optimizer's kernel reads them.
    `gaps`: the zeros [count, ..] behind each weight in the layout, None if there are none.
    """

    weights: Weights
    grads: list[Tensor]
    gaps: list[Tensor | None]
    rows: list[Tensor]
    row_grads: list[Tensor]
    first: list[Tensor]
    second: list[Tensor]
    counts: list[Tensor]
    limits: tuple[Tensor, Tensor]


class ComputeWeights:
    """The weights in the dtype of the products: views of the matrix itself, or of a copy made once per step.

    On a CPU each weight of the copy is a block of its own: oneDNN would copy a view of the matrix in every product.
    `one_copy`: a matrix like the master's, which the optimizer's kernel writes.
    """

    def __init__(self, layout: Layout, flat: Tensor, compute: torch.dtype, *, one_copy: bool) -> None:
        self.flat, self.views = flat, layout.views(flat)
        self.is_master, self.one_copy = compute == flat.dtype, one_copy
        self.copy = flat if self.is_master or not self.one_copy else flat.to(compute)
        as_views = self.is_master or self.one_copy
        self.weights = (
            layout.views(self.copy) if as_views else {name: v.to(compute) for name, v in self.views.items()}
        )

    def refresh(self, count: int) -> None:
        """Copy the first `count` rows again; needed after every change of the master weights."""
        if self.is_master:
            return
        if self.one_copy:
            self.copy[:count].copy_(self.flat[:count])
            return
        for copy, view in zip(self.weights.values(), self.views.values(), strict=True):
            copy[:count].copy_(view[:count])


class Fleet:
    """State of K members on one device. `compute` is the dtype of the products (bf16 in mixed precision).

    flat: master weights [K, P]. best: the snapshot that is exported, [K, P]. first, second: Adam's moments [K, P].
    steps: optimizer steps [K], float32 as torch's fused optimizers want them. loss_sum: losses of this epoch [K].
    scale: fp16 only, the loss scale [K, 1] of each member, so that small gradients do not vanish.
    differing: [K] for each option in which the members differ (`options.IN_STEP`).
    kernels: steps run on `cpbmodels.kernels`. The optimizer then leaves a fresh copy of the weights behind, so
        `compute_weights` is refreshed once before an epoch instead of in every step.
    """

    def __init__(
        self,
        net: Net,
        flat: Tensor,
        seeds: Tensor,
        scaling: Scaling,
        compute: torch.dtype,
        differing: dict[str, Tensor] | None = None,
    ) -> None:
        self.net, self.flat, self.seeds, self.scaling = net, flat, seeds, scaling
        self.kernels = net.kernels is not None
        self.compute_weights = ComputeWeights(
            net.layout, flat, compute, one_copy=on_gpu(flat) or self.kernels
        )
        self.grad = torch.zeros_like(flat)
        self.first, self.second = torch.zeros_like(flat), torch.zeros_like(flat)
        self.steps = torch.zeros(len(flat), device=flat.device)
        self.best = flat.clone()
        self.loss_sum = torch.zeros(len(flat), device=flat.device, dtype=flat.dtype)
        self.scale = (
            torch.full((len(flat), 1), 2.0**14, device=flat.device) if compute == torch.float16 else None
        )
        self.differing = differing or {}
        self.prefixes: dict[int, Prefix] = {}
        self.nets: dict[int, Net] = {}

    def net_of(self, count: int) -> Net:
        """The net for the first `count` rows: its preset holds their own values if members differ."""
        if not self.differing:
            return self.net
        if count not in self.nets:
            self.nets[count] = self.net.with_rows({name: v[:count] for name, v in self.differing.items()})
        return self.nets[count]

    def prefix(self, count: int) -> Prefix:
        """Views of the first `count` rows; what `net_of` keeps is made as well."""
        self.net_of(count)
        if count not in self.prefixes:
            weights = {
                name: weight[:count].detach().requires_grad_()
                for name, weight in self.compute_weights.weights.items()
            }
            first = next(iter(weights.values())).detach()
            self.prefixes[count] = Prefix(
                weights=weights,
                grads=list(self.net.layout.views(self.grad[:count]).values()),
                gaps=[first.new_zeros(count, gap) if gap else None for gap in self.net.layout.gaps()],
                rows=list(self.flat[:count].unbind(0)),
                row_grads=list(self.grad[:count].unbind(0)),
                first=list(self.first[:count].unbind(0)),
                second=list(self.second[:count].unbind(0)),
                counts=list(self.steps[:count].unbind(0)),
                limits=(self._per_row("clip", count), self._per_row("weight_decay", count)),
            )
        return self.prefixes[count]

    def _per_row(self, name: str, count: int) -> Tensor:
        """An option of the first `count` rows as float32 [count]."""
        value: PerRow = getattr(self.net_of(count).options, name)
        return torch.as_tensor(value, dtype=torch.float32, device=self.flat.device).expand(count).contiguous()

    def step(
        self, bank: Bank, origins: Tensor, weight: Tensor, lr: float | Tensor, maskable: int = 0
    ) -> None:
        """One optimizer step of the first len(origins) members on windows `origins` [K, B], weights 0 or 1.

        A member's loss is the mean over its windows of weight 1: those of weight 0 fill up a short last batch.
        maskable: of the last so many members, those without any window of weight 1 take no step: their weights,
            moments and step counts keep every bit.
        """
        prefix, parts = self.prefix(len(origins)), self.net.options.accumulate
        if not self.kernels:
            self.compute_weights.refresh(len(origins))
        windows = weight.sum(1)  # [K] windows that count
        total = windows.clamp(min=1)
        # Each micro-batch is [K, B / parts]. Its weights are divided by the whole batch's, so the sum of the parts'
        # gradients is the gradient of the mean loss of the batch.
        shares = (weight / total[:, None]).chunk(parts, 1)
        for part, (rows, share) in enumerate(zip(origins.chunk(parts, 1), shares, strict=True)):
            grad = self.backward(bank, rows, share, prefix, part)
        # [K], 1 for rows that take no step. None costs nothing: then one launch updates all rows.
        held = (windows == 0).float() if maskable else None
        self.update(prefix, grad, lr, held, maskable)

    def update(
        self, prefix: Prefix, grad: Tensor, lr: float | Tensor, held: Tensor | None, maskable: int
    ) -> None:
        """Clip what `backward` gave and take the optimizer's step; rows where `held` [K] is 1 keep every bit."""
        if self.kernels:
            self._update_by_kernel(prefix, grad, lr, held)
            return
        count = len(prefix.rows)
        if self.scale is not None:
            held = self._unscale(self.grad[:count], self.scale[:count], held)
        self._clip(count)
        decay = self.net_of(count).options.weight_decay
        if isinstance(decay, Tensor) or (isinstance(lr, Tensor) and lr.dim()):
            self._update_by_row(count, lr, decay, held)
            return
        # torch's kernels take one `found_inf` per launch: if it is 1 they do nothing. So rows that may be held have
        # a launch each, after one for all rows that are not.
        if held is None:
            foreach_add_(prefix.counts, 1)
            self._launch(prefix, slice(None), lr, None)
            return
        self.steps[:count] += 1 - held  # a row that takes no step keeps its bias correction
        certain = 0 if self.scale is not None else count - maskable
        if certain:
            self._launch(prefix, slice(certain), lr, None)
        for row in range(certain, count):
            self._launch(prefix, slice(row, row + 1), lr, held[row])

    def backward(self, bank: Bank, origins: Tensor, weight: Tensor, prefix: Prefix, part: int) -> Tensor:
        """Gradients of one micro-batch into (part 0) or onto the gradient matrix [count, P]; its loss onto the epoch's.

        The members' losses are added up: each depends on its own row only, so the gradient of the sum is all rows'.
        """
        count, net = len(origins), self.net_of(len(origins))
        # Context [K, B, C, F] and targets [K, B, H, 4], read from the bank by row number.
        window = net.gather(bank, origins, self.scaling.rows(count), future=True)
        draws, options = _NO_DRAWS, self.net.options
        if options.dropout > 0 or 0 < options.teacher_forcing < 1:  # alike in all rows: `fleet_key`
            draws = self._draws(self.seeds[:count], self.steps[:count].long(), part)
        losses = (net.loss(window, prefix.weights, draws) * weight).sum(1)  # [K, B] -> [K]
        self.loss_sum[:count] += losses.detach()
        total = losses.sum() if self.scale is None else (losses * self.scale[:count, 0]).sum()
        # one [K, ...] per weight of the layout
        grads = torch.autograd.grad(total, list(prefix.weights.values()))
        if on_gpu(self.flat) or self.kernels:
            return self._collect(prefix, grads, first=part == 0)
        (foreach_add_ if part else foreach_copy_)(prefix.grads, grads)
        return self.grad[:count]

    def _draws(self, seeds: Tensor, steps: Tensor, part: int) -> Draws:
        if not self.kernels:
            return Draws(seeds, steps, part)
        from cpbmodels.kernels.dropout import KernelDraws  # imports triton

        return KernelDraws(seeds, steps, part)

    def _collect(self, prefix: Prefix, grads: tuple[Tensor, ...], *, first: bool) -> Tensor:
        """The same on a GPU, in two launches: copies into strided views would be a launch for each weight.

        The optimizer's kernel reads gradients of a whole batch as they are, in the dtype of the products.
        """
        pieces = []
        for grad, gap in zip(grads, prefix.gaps, strict=True):
            pieces.append(grad.flatten(1))  # [K, weights of one layer]
            if gap is not None:
                pieces.append(gap)
        gradient = torch.cat(pieces, 1)  # [K, P]; the pieces are in the layout's order, with its gaps
        if self.kernels and self.net.options.accumulate == 1:
            return gradient
        rows = self.grad[: len(gradient)]
        return (rows.copy_ if first else rows.add_)(gradient)

    def _clip(self, count: int) -> None:
        """Scale every row's gradient to a norm of at most `clip`."""
        grad = self.grad[:count]
        norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)  # [K, 1]: a row's own, not the fleet's
        grad.mul_((by_row(self.net_of(count).options.clip, norm) / (norm + 1e-6)).clamp_(max=1.0))

    @staticmethod
    def _unscale(grad: Tensor, scale: Tensor, masked: Tensor | None) -> Tensor:
        """Undo the loss scale; float32 [K], 1 for each row that must not move: masked, or with an overflow.

        As torch's GradScaler does it, but row by row: an overflow halves the row's scale and its step is left out.
        Other rows' scales grow by 0.05 % a step, so a scale is found again after a halving within some 1,400 steps.
        """
        good = torch.isfinite(grad).all(1, keepdim=True)  # [K, 1]
        grad.copy_(torch.where(good, grad / scale, 0.0))
        factor = torch.where(good, 1.0005, 0.5)
        held = (~good[:, 0]).float()
        if masked is not None:
            factor, held = torch.where(masked[:, None] > 0, 1.0, factor), torch.maximum(held, masked)
        scale.mul_(factor).clamp_(1.0, 2.0**24)
        return held

    def _update_by_kernel(
        self, prefix: Prefix, grad: Tensor, lr: float | Tensor, held: Tensor | None
    ) -> None:
        """Clip, Adam or AdamW and the copy for the products, in two launches; rates and limits may differ by row."""
        from cpbmodels.kernels.optimizer import update  # imports triton

        count, copy = len(prefix.rows), None if self.compute_weights.is_master else self.compute_weights.copy
        update(
            self.flat[:count],
            copy[:count] if copy is not None else None,
            grad,
            (self.first[:count], self.second[:count]),
            self.steps[:count],
            torch.as_tensor(lr, dtype=torch.float32, device=self.flat.device),
            prefix.limits,
            held,
            self.net.options.optimizer == "adamw",
            BETAS,
            EPSILON,
        )

    def _launch(self, prefix: Prefix, rows: slice, lr: float | Tensor, found_inf: Tensor | None) -> None:
        options = self.net.options
        update = fused_adamw_ if options.optimizer == "adamw" else fused_adam_
        update(
            prefix.rows[rows],
            prefix.row_grads[rows],
            prefix.first[rows],
            prefix.second[rows],
            [],
            prefix.counts[rows],
            lr=lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=options.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=found_inf,
        )

    def _update_by_row(self, count: int, lr: PerRow, decay: PerRow, held: Tensor | None) -> None:
        """The same update with a rate and a decay for each row; rows where `held` [K] is 1 keep every bit.

        Adam adds decay x weight to the gradient, AdamW takes rate x decay x weight off the weight. With t steps done,
        m and v the moments: weight -= rate / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps), in the fused kernels' order.
        """
        flat, grad, first, second = (m[:count] for m in (self.flat, self.grad, self.first, self.second))
        kept = [rows.clone() for rows in (flat, first, second)] if held is not None else []
        self.steps[:count] += 1 if held is None else 1 - held
        done = self.steps[:count, None].double()  # [K, 1]; b^t in float32 would lose digits at b = .999
        rate, decay = by_row(lr, done), by_row(decay, done)
        if self.net.options.optimizer == "adamw":
            flat.mul_((torch.ones_like(done) - rate * decay).to(flat))
        else:
            grad.addcmul_(flat, (torch.ones_like(done) * decay).to(flat))
        first.lerp_(grad, 1 - BETAS[0])
        second.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        scale = second.sqrt().div_((1 - BETAS[1] ** done).sqrt().to(flat)).add_(EPSILON)
        flat.addcdiv_(first * (-rate / (1 - BETAS[0] ** done)).to(flat), scale)
        if held is not None:
            for new, old in zip((flat, first, second), kept, strict=True):
                new.copy_(torch.where(held[:, None] > 0, old, new))

    @torch.no_grad()
    def evaluate(self, bank: Bank, origins: Tensor, weight: Tensor, batch: int) -> Tensor:
        """Mean loss [K'] of the first K' members on their windows [K', V]: no dropout, no teacher forcing."""
        count = len(origins)
        self.compute_weights.refresh(count)
        total = self.loss_sum.new_zeros(count)  # [K']
        for rows, shares in zip(torch.split(origins, batch, 1), torch.split(weight, batch, 1), strict=True):
            total += self.weighted_losses(bank, rows, shares)
        return total / weight.sum(1).clamp(min=1)

    @torch.no_grad()
    def weighted_losses(self, bank: Bank, origins: Tensor, weight: Tensor) -> Tensor:
        """Sum [K'] of the losses of windows [K', V] times their weights, with the weights last refreshed."""
        count = len(origins)
        weights = {name: rows[:count] for name, rows in self.compute_weights.weights.items()}
        net = self.net_of(count)
        window = net.gather(bank, origins, self.scaling.rows(count), future=True)
        return (net.loss(window, weights, None) * weight).sum(1)

    def reorder(self, order: Tensor) -> None:
        """Permute all rows in place: row i becomes the old row order[i]."""
        state = [self.flat, self.first, self.second, self.steps, self.best, self.seeds, self.loss_sum]
        state += [self.scaling.mean, self.scaling.inverse, *([self.scale] if self.scale is not None else [])]
        state += self.differing.values()
        for tensor in state:
            tensor.copy_(tensor[order])
        for count, prefix in self.prefixes.items():  # in place: captured graphs hold the addresses
            for name, limit in zip(("clip", "weight_decay"), prefix.limits, strict=True):
                limit.copy_(self._per_row(name, count))
        self.grad.zero_()  # clipping a diverged row fills the gaps of its layout with NaN, and no step writes gaps
