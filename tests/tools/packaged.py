"""Packaged model folders whose weights are any bytes: for what reads a folder, and does not forecast with it."""

import hashlib
import json

from cpbmodels.arch.options import Preset
from cpbmodels.data.student_t import QUANTILES
from cpbmodels.fleet.config import CONFIG, FORMAT, WEIGHTS, sealed
from tasks.storage.model_folder import write_reference


def weights_of(version):
    """The bytes that stand for a version's weights."""
    return f"weights of {version}".encode()


def weights_sha256(version):
    """Their sha256."""
    return hashlib.sha256(weights_of(version)).hexdigest()


def write_packaged(folder, version, reference=None, weights=None, **fields):
    """Write the packaged model of a registered version (`cpb-BTCUSDT-1h/1`) and return its folder.

    `fields`: of `config.json`, beside an option's default. `reference`: a `Reference`, or None for none.
    """
    weights = weights_of(version) if weights is None else weights
    about = {
        "format": FORMAT,
        "architecture": "har",
        "dtype": "float32",
        "quantiles": QUANTILES.tolist(),
        "seed": 1,
    }
    values = {**Preset().as_dict(), **about, "model_version": version, **fields}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS).write_bytes(weights)
    config = sealed(values, hashlib.sha256(weights).hexdigest())
    (folder / CONFIG).write_text(json.dumps(config))
    if reference:
        write_reference(folder, reference)
    return folder
