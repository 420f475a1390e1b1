"""A member from its folder: `config.json` and `model.safetensors`, each checked before it is believed."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpbmodels.arch import architectures
from cpbmodels.arch.presets import check_together
from cpbmodels.data.extremes import TENSORS, Extremes
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.errors import ModelError, shown
from cpbmodels.files import read_regular
from cpbmodels.fleet.average import average
from cpbmodels.fleet.config import (
    CONFIG,
    DIGEST,
    MAX_BYTES,
    WEIGHTS,
    WEIGHTS_DIGEST,
    check_whole,
    damaged,
    extremes_fault,
    options_of,
    parse,
    part_configs,
    tensor_fault,
)
from cpbmodels.fleet.member import Member
from cpbmodels.fleet.net import DTYPES, Net

MAX_ROWS = 1_000  # models in an ensemble


def load(folder: str | Path) -> Member:
    """A member from its folder. Reads no pickle and runs no code from it.

    `config.json` is checked before anything is allocated (`cpbmodels.fleet.config`), then the sha256 of both files,
    then the names, shapes and dtypes of the weights, and whether all are finite.

    Raises:
        ModelError: what is wrong and where, in one sentence.
    """
    folder = Path(folder)
    if folder.is_file():
        raise ModelError(f"{folder} is a file: give the folder that holds it, {folder.parent}.")
    try:
        config = parse(read_regular(folder / CONFIG, MAX_BYTES), folder)
        check_whole(config, folder)
        weights = read_regular(folder / WEIGHTS)
    except OSError as error:
        text = f"{error.filename or folder} cannot be read ({error.strerror}): a model is {CONFIG} and {WEIGHTS}."
        raise ModelError(text) from None
    return member_of(config, weights, folder)


def member_of(config: Mapping[str, Any], weights: bytes, folder: str | Path) -> Member:
    """A member from the contents of its files, checked as by `load`, for whoever has read them already.

    Args:
        config: the fields of `config.json`, from `cpbmodels.fleet.config.parse`.
        weights: the bytes of `model.safetensors`.
        folder: where both were read, for messages.

    Raises:
        ModelError: as `load`.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    folder, config = Path(folder), dict(config)
    options = check_whole(config, folder)
    # Both digests are those of the files: a member saved from this member has its own.
    if config.pop(WEIGHTS_DIGEST) != hashlib.sha256(weights).hexdigest():
        raise damaged(folder, "the sha256 of model.safetensors differs from config.json")
    del config[DIGEST]
    try:
        tensors = from_bytes(weights)
    except SafetensorError as error:
        raise damaged(folder, str(error)) from None
    configs, parts = part_configs(config), []
    table = {name: tensors.pop(name) for name in TENSORS if name in tensors}
    if odd := [name for name, tensor in table.items() if tensor.dtype not in (torch.float16, torch.float32)]:
        raise _differ(folder, odd[0])  # numpy lacks some of torch's types
    arrays = {name: tensor.numpy() for name, tensor in table.items()}
    if arrays and (fault := extremes_fault(arrays, options.horizon)):
        raise damaged(folder, fault)
    extremes = Extremes.of_tensors(arrays)
    for place, part in enumerate(configs):
        # Only an average's tensors have the place of their part before the name (`Member.tensors`).
        prefix = f"{place}." if len(configs) > 1 else ""
        names = [name for name in tensors if name.startswith(prefix)]
        parts.append(_member(part, {name.removeprefix(prefix): tensors.pop(name) for name in names}, folder))
    if tensors:
        raise _differ(folder, min(tensors))
    if len(parts) == 1:
        return replace(parts[0], extremes=extremes)
    history, report = config.pop("history", []), config.pop("report", {})
    return replace(average(parts, options), config=config, history=history, report=report, extremes=extremes)


def _member(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> Member:
    """A member that is no average from its checked config and its tensors; ModelError if these do not fit."""
    architecture, options = config["architecture"], options_of(config)
    if architecture not in architectures():
        raise ModelError(
            f"{folder} is a model of the architecture {shown(architecture)}, which this cpbmodels does not have: use "
            "the version that trained it."
        )
    try:
        check_together(architecture, options)
    except ModelError as error:
        raise ModelError(f"{folder}: config.json is invalid: {error}") from None
    net = Net(architecture, options, torch.device("cpu"), DTYPES[config["dtype"]])
    shapes = {f"weights.{param.name}": param.shape for param in net.layout.params}
    shapes |= dict.fromkeys(("input.mean", "input.inverse"), (len(net.columns),))
    shapes["head.table"] = (net.head.steps, len(QUANTILES))
    if not tensors.keys() <= shapes.keys():
        raise _differ(folder, min(tensors.keys() - shapes.keys()))
    count = tensors["head.table"].shape[:1].numel() if "head.table" in tensors else 0
    for name, shape in shapes.items():
        tensor = tensors.get(name)
        if (
            tensor is None
            or tensor.dtype != net.unit.dtype
            or tensor.shape != (count, *shape)
            or not 1 <= count <= MAX_ROWS
        ):
            raise _differ(folder, name)
        if fault := tensor_fault(name, tensor.numpy()):
            raise damaged(folder, f"{name} {fault}")
    history, report = config.pop("history", []), config.pop("report", {})
    # The file has the weights by name, without the layout's gaps, which are zeros here as they were in training.
    rows = tensors["head.table"].new_zeros(count, net.layout.size)
    for name, view in net.layout.views(rows).items():
        view.copy_(tensors[f"weights.{name}"])
    mean, inverse, table = (tensors[name] for name in ("input.mean", "input.inverse", "head.table"))
    return Member(config, rows, mean, inverse, table, history, report)


def _differ(folder: Path, name: str) -> ModelError:
    return ModelError(
        f"{folder}: {shown(name)} is not as config.json describes this model's weights: config and weights differ."
    )
