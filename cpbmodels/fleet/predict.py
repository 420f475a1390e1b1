"""Forecasts of many models together: models of equal options are stacked into one fleet, windows into batches."""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cpbmodels.arch.heads import Classes
from cpbmodels.arch.options import differing
from cpbmodels.data.prediction import Prediction
from cpbmodels.data.series import Series
from cpbmodels.errors import ModelError
from cpbmodels.fleet.bank import Bank, Scaling
from cpbmodels.fleet.model import Model
from cpbmodels.fleet.net import Net, windows_in_flight

MAX_STACK_BYTES = 16_000_000  # weights stacked at once on a CPU: they stay in its cache from step to step
MAX_ONE_THREAD_WINDOWS = 256
"""At most as many windows are forecast on one CPU thread, as live forecasts are: the products are small, and on a busy
machine two threads waited for each other 25 times as long as one thread worked."""
MAX_MOVE = 25
"""Largest log-return of a forecast. No coin moves e^25-fold within a horizon, and paths, which extrapolate the
outermost quantiles up to 22 times as far, stay finite in float64 (e^709)."""
SURE_MOVE, MAX_UNITS = 1.0, 20.0
"""A forecast may move the price e-fold, and further only within 20 units of volatility x sqrt(step): the volatility is
large after a crash. The 5 and 95 % quantiles of a trained model lie within about 3 units."""


def predict(
    members: Sequence[Model],
    series: Sequence[Series],
    origins: Sequence[np.ndarray],
    device: str = "cpu",
) -> list[Prediction]:
    """Forecasts of member i on series i from origins i (int64 [N_i]), all together; of an average its parts' mean.

    Raises:
        ModelError: a member's forecast is not finite or moves the price absurdly far (`MAX_UNITS`); or members, series
            and origins do not match.
    """
    forecasts = []
    for forecast in predict_each(members, series, origins, device):
        if isinstance(forecast, ModelError):
            raise forecast
        forecasts.append(forecast)
    return forecasts


def predict_each(
    members: Sequence[Model],
    series: Sequence[Series],
    origins: Sequence[np.ndarray],
    device: str = "cpu",
) -> list[Prediction | ModelError]:
    """`predict` for callers that do without some members: the error of a member whose forecasts are none, in place."""
    if not len(members) == len(series) == len(origins):
        raise ModelError("predict needs one series and one array of origins per member.")
    parts = [
        (part, index, places)
        for index, (member, places) in enumerate(zip(members, origins, strict=True))
        for part in member.parts or (member,)
    ]
    models, owners, rows = zip(*parts, strict=True) if parts else ((), (), ())
    forecasts = _predict(models, [series[i] for i in owners], rows, torch.device(device))
    by_member: dict[int, list[Prediction]] = defaultdict(list)
    for owner, forecast in zip(owners, forecasts, strict=True):
        by_member[owner].append(forecast)
    return [_checked(_mean(by_member[i]), members[i], series[i]) for i in range(len(members))]


def _checked(forecast: Prediction, member: Model, series: Series) -> Prediction | ModelError:
    """The forecast, or the error that it is none: no later step could tell it from a valid forecast."""
    for part in (forecast.quantiles, forecast.candle, forecast.probabilities):
        if part is not None and not ((size := np.abs(part)) <= SURE_MOVE).all():
            steps = np.sqrt(np.arange(1, part.shape[1] + 1))
            units = np.nan_to_num(series.volatility[forecast.origins])[:, None] * steps
            # Only now, since nearly every forecast passes the cheap test above.
            most = np.clip(MAX_UNITS * units, SURE_MOVE, MAX_MOVE).reshape(
                *units.shape, *[1] * (part.ndim - 2)
            )
            if not (size <= most).all():
                return ModelError(
                    f"{series.label}: a forecast is not finite or moves the price further than {MAX_UNITS:g} times its "
                    f"volatility: the candles before its origin lack columns, or {member!r} is damaged: take origins "
                    "of Series.usable, or train the model again."
                )
    return replace(forecast, extremes=member.extremes)


def _mean(forecasts: Sequence[Prediction]) -> Prediction:
    """The mean of several models' forecasts from the same origins; of a single model its own."""
    first = forecasts[0]
    if len(forecasts) == 1:
        return first
    quantiles = np.mean([forecast.quantiles for forecast in forecasts], axis=0)
    return Prediction(first.origins, quantiles, np.mean([forecast.candle for forecast in forecasts], axis=0))


def _predict(
    members: Sequence[Model],
    series: Sequence[Series],
    origins: Sequence[np.ndarray],
    device: torch.device,
) -> list[Prediction]:
    """`predict` for models that are not averages."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, member in enumerate(members):
        # One net for all of a key: a launch per operator, however many members it serves.
        groups[member.stacking_key].append(index)
    chunks = []
    for indices in groups.values():
        # On a CPU cut to MAX_STACK_BYTES: a decoder reads its weights once per forecast step.
        most = MAX_STACK_BYTES // members[indices[0]].rows.nbytes if device.type == "cpu" else len(indices)
        size = max(most, 1)
        chunks += [indices[first : first + size] for first in range(0, len(indices), size)]
    cores, on_cpu = torch.get_num_threads(), device.type == "cpu"
    # Either a thread a chunk or torch's threads within one: both at once would contend for the cores.
    side_by_side = on_cpu and len(chunks) > 1 and cores > 1
    few = on_cpu and sum(map(len, origins)) <= MAX_ONE_THREAD_WINDOWS

    def predict_chunk(indices: list[int]) -> list[Prediction]:
        torch.set_num_threads(1 if side_by_side or few else cores)  # of this thread
        return _predict_group(
            [members[i] for i in indices],
            [series[i] for i in indices],
            [np.asarray(origins[i], dtype=np.int64) for i in indices],
            device,
        )

    try:
        with ThreadPoolExecutor(cores) as pool:
            made = list((pool.map if side_by_side else map)(predict_chunk, chunks))
    finally:
        torch.set_num_threads(cores)
    places = [index for indices in chunks for index in indices]
    forecasts = [forecast for chunk in made for forecast in chunk]
    # Chunks were cut by key, the caller's order is by index.
    return [forecast for _, forecast in sorted(zip(places, forecasts, strict=True), key=lambda pair: pair[0])]


@torch.no_grad()
def _predict_group(
    members: list[Model], series: list[Series], origins: list[np.ndarray], device: torch.device
) -> list[Prediction]:
    """Models of one stacking key. E rows per model are E members of the fleet that see the same windows."""
    first, E = members[0], len(members[0].rows)
    for candles, places in zip(series, origins, strict=True):
        _check_origins(candles, places, first.context)
    net = first.net(device)
    options = differing([member.options for member in members for _ in range(E)], device)
    # Options that a step reads, such as the clip of inputs, may differ by member: they are tensors [K x E] then.
    net = net.with_rows(options) if options else net
    bank = Bank.build(series, first.options, device, first.dtype)
    # int64 [K, longest >= 1], filled up with a valid origin whose forecasts are cut off again
    longest = max(1, *map(len, origins))
    padded = np.stack(
        [np.pad(rows, (0, longest - len(rows)), constant_values=first.context - 1) for rows in origins]
    )
    index = torch.as_tensor(padded + np.array(bank.starts)[:, None], device=device).repeat_interleave(E, 0)
    batch = max(windows_in_flight(first.context, device) // len(index), 1)
    sigma = np.stack([candles.volatility[rows] for candles, rows in zip(series, padded, strict=True)])
    names = ("rows", "mean", "inverse", "table")  # [K x E, ...] each
    stacks = [torch.cat([getattr(member, name) for member in members]).to(device) for name in names]
    whole: list[np.ndarray] = []
    for start in range(0, longest, batch):
        now = slice(start, start + batch)
        parts = _run(net, stacks, bank, index[:, now], sigma[:, now])
        # Only the first batch shows how many outputs there are: a classifier has one more.
        whole = whole or [np.empty((len(members), longest, *part.shape[2:])) for part in parts]
        for array, part in zip(whole, parts, strict=True):
            array[:, now] = part
    # without the padding
    return [Prediction(rows, *(array[k, : len(rows)] for array in whole)) for k, rows in enumerate(origins)]


def _run(net: Net, stacks: list[Tensor], bank: Bank, index: Tensor, sigma: np.ndarray) -> list[np.ndarray]:
    """Quantiles, candles and (classifier) probabilities of one batch of windows [K x E, B], means of the E rows.

    `stacks`: rows, mean, inverse and table of the K x E members. `sigma` [K, B] is the volatility at the origins; the
    results are in log-return.
    """
    rows, mean, inverse, table = stacks
    window = net.gather(bank, index, Scaling(mean, inverse), future=False)
    raw = net.raw(window, net.layout.views(rows), None)
    outputs = list(net.head.forecast(raw, table))
    if isinstance(net.head, Classes):
        outputs.append(net.head.probabilities(raw))
    arrays = [output.double().cpu().numpy() for output in outputs]
    arrays = [a.reshape(len(sigma), len(a) // len(sigma), *a.shape[1:]).mean(1) for a in arrays]
    unit = sigma[:, :, None, None] * np.sqrt(np.arange(1, arrays[0].shape[2] + 1))[:, None]
    # Quantiles and candle are in volatilities x sqrt(step); probabilities have no unit.
    return [array * unit if k < 2 else array for k, array in enumerate(arrays)]


def _check_origins(series: Series, origins: np.ndarray, context: int) -> None:
    if len(series) < context:
        raise ModelError(
            f"{series.label}: {len(series)} rows are less than one context of {context}: give it more history."
        )
    if len(origins) and (origins.min() < context - 1 or origins.max() >= len(series)):
        raise ModelError(
            f"{series.label}: origins must lie in {context - 1} .. {len(series) - 1} (context {context})."
        )
