"""A model's folder as an MLflow model: candles in, forecast rows out.

Name this module as the `loader_module` of the flavour `python_function`; the data is the folder with
`model.safetensors` and `config.json`. Nothing is pickled, and no code comes from the folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpbmodels.data.candles import read_candles
from cpbmodels.data.columns import PRICES, feature_frame
from cpbmodels.data.prediction import MEDIAN_COLUMNS, QUANTILE_COLUMNS, to_pandas
from cpbmodels.data.series import Series
from cpbmodels.errors import ModelError, two_readings

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature

    from cpbmodels.fleet.member import Member

TIME, VOLUME = "open_time", "volume"

COLUMNS = ("touch", "stop", "target_price", "stop_price", "above")
"""Parameters that add columns."""


class CandleModel:
    """What `mlflow.pyfunc` calls: a model that takes a pandas table of candles."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def predict(self, frame: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return the forecast after the last candle, or with `since` those from every origin since then.

        Args:
            frame: `open_time open high low close` and, if known, `volume`, oldest first, times as in
                `Series.from_frame`; those without a zone are UTC.
            params: `since`: the first origin (UTC close of the last candle used) as ISO text, a backtest's start;
                `partial`: "drop" leaves out a last candle that has not closed yet, by default it is refused;
                `touch`, `above`: prices, `stop`: chances, separated by commas, for the columns of `Forecast.to_frame`;
                `target_price`, `stop_price`: prices, as many of each, for its pairs (`first`).

        Returns:
            `issued_at step target_time q05 … q95 q50_open q50_high q50_low`, times aware (UTC), the rest prices; then
            what was asked for.

        Raises:
            MlflowException: candles or parameters cannot be used (status 400 of a server); the sentence names them.
        """
        from mlflow.exceptions import MlflowException

        options = params or {}
        config = self.member.config
        try:
            candles = read_candles(
                frame,
                config.get("symbol") or "the frame",
                config.get("timeframe") or None,
                partial=options.get("partial") or "refuse",
                naive_is_utc=True,  # MLflow and JSON carry no zone
            )
            columns = feature_frame(candles.frame, candles.timeframe)
            series = Series.from_columns(columns, config.get("symbol") or "", candles.timeframe)
            since = options.get("since")
            asked = _asked(options)
            if since:
                rows = self.member.predict(series, since, **asked)
            else:
                rows = self.member.forecast(series).to_frame(**asked)
        except ModelError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error
        return to_pandas(rows)


def _asked(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `Forecast.to_frame` from parameters.

    Raises:
        ModelError: a target has no stop or a stop no target, or a price may be two.
    """
    texts = {name: options[name] for name in COLUMNS if options.get(name)}
    for name in ("touch", "target_price", "stop_price", "above"):
        if why := two_readings(texts.get(name, "")):
            raise ModelError(f"{name} {why}.")
    asked: dict[str, Any] = {name: text.split(",") for name, text in texts.items()}
    targets, stops = (asked.pop(name, []) for name in ("target_price", "stop_price"))
    if len(targets) != len(stops):
        raise ModelError(
            f"target_price names {len(targets)} and stop_price {len(stops)} prices: give each target its stop, as in "
            "target_price 107000,109000 and stop_price 103000,103000."
        )
    return asked | ({"first": [*zip(targets, stops, strict=True)]} if targets else {})


def signature() -> ModelSignature:
    """Return what MLflow checks before `predict`.

    `open_time` is of any type: MLflow's `datetime` refuses aware times, and `predict` reads more than those.
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec

    candles: list[ColSpec | TensorSpec] = [
        ColSpec(AnyType(), TIME),
        *(ColSpec("double", name) for name in PRICES),
        ColSpec("double", VOLUME, required=False),
    ]
    rows: list[ColSpec | TensorSpec] = [
        ColSpec("datetime", "issued_at"),
        ColSpec("long", "step"),
        ColSpec("datetime", "target_time"),
        *(ColSpec("double", name) for name in (*QUANTILE_COLUMNS, *MEDIAN_COLUMNS)),
    ]
    return ModelSignature(
        inputs=Schema(candles),
        outputs=Schema(rows),
        params=ParamSchema(
            [
                ParamSpec("partial", "string", "refuse"),
                *(ParamSpec(name, "string", None) for name in ("since", *COLUMNS)),
            ]
        ),
    )


def _load_pyfunc(path: str) -> CandleModel:
    """Load the model in a folder; MLflow calls this by name."""
    from cpbmodels.fleet.load import load  # torch, which the signature alone does not need

    return CandleModel(load(Path(path)))
