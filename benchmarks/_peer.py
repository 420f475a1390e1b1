"""neuralforecast's models at the sizes of the seed presets, trained on one random-walk series.

Optional: `pip install 'neuralforecast>=3.1'` (the extra `bench`). Its GRU and LSTM forecast with an MLP instead
of a decoder with attention, its transformer reads 25 decoder positions to our 10; univariate, all of them.
"""

import importlib.util
import logging
import warnings
from typing import Any

import numpy as np

from benchmarks.naive import CONTEXT, HORIZON, RECIPES
from schemas.errors import install_extra


def missing() -> str:
    """Why the peer cannot be measured; empty where it can."""
    if importlib.util.find_spec("neuralforecast") is None:
        return f"neuralforecast is not installed: run {install_extra('bench')} and this part again"
    return ""


def fit(architecture: str, steps: int, frame: Any) -> None:
    """Train one neuralforecast model for `steps` steps; each sees `batch` windows."""
    from neuralforecast import NeuralForecast

    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        NeuralForecast([_model(architecture, steps)], freq="h").fit(frame)


def frame(rows: int) -> Any:
    """One random-walk series in neuralforecast's long format."""
    import pandas as pd

    draw = np.random.default_rng(0)
    times = pd.date_range("2024-01-01", periods=rows, freq="h")
    return pd.DataFrame({"unique_id": "WALK0", "ds": times, "y": draw.normal(0, 1, rows).astype("float32")})


def _model(architecture: str, steps: int) -> Any:
    from neuralforecast.losses.pytorch import MSE
    from neuralforecast.models import GRU, LSTM, VanillaTransformer

    r = RECIPES[architecture]
    common: dict[str, Any] = {
        "h": HORIZON,
        "input_size": CONTEXT,
        "loss": MSE(),
        "max_steps": steps,
        "learning_rate": 1e-3,
        "windows_batch_size": r.batch,
        "batch_size": 1,
        "scaler_type": "identity",
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
    }
    if architecture == "transformer":
        sizes = {"hidden_size": r.width, "n_head": r.heads, "conv_hidden_size": 4 * r.width}
        layers = {"encoder_layers": r.layers, "decoder_layers": r.layers, "dropout": r.dropout}
        return VanillaTransformer(**common, **sizes, **layers)
    sizes = {"encoder_n_layers": r.layers, "encoder_hidden_size": r.width, "encoder_dropout": r.dropout}
    return (GRU if architecture == "gru" else LSTM)(**common, **sizes)
