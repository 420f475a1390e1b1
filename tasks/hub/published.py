"""Forecasts with published models: the models of a Hub repository, applied to the candles of the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import polars as pl

from cpbmodels import ModelError, from_hub
from cpbmodels.adapters.hub import list_models
from cpbmodels.data.wide import NO_MARKET
from schemas.errors import CpbError
from schemas.forecasts import FORECAST_SCHEMA, check_forecasts
from schemas.handover import Failure
from schemas.identity import SeriesId
from schemas.scope import Scope
from tasks.forecasting.chain import ANY_ERROR
from tasks.forecasting.issue import failure, forecast_with
from tasks.signals.feature_files import market_key, newest_markets
from tasks.tracking.versions import series_of


@dataclass(frozen=True)
class PublishedModel:
    """A model of a Hub repository (`USER/NAME`) at a commit."""

    series: SeriesId
    repo: str
    commit: str

    @property
    def model_version(self) -> str:
        """The model version in its forecasts: `hub:USER/NAME@COMMIT/BTCUSDT/1h`."""
        return f"hub:{self.repo}@{self.commit[:12]}/{self.series.label}/{self.series.timeframe}"


def published_models(repo: str, revision: str | None = None) -> list[PublishedModel]:
    """Return the models of a repository, with a single request; folders that are not valid series are ignored.

    Raises:
        CpbError: (code `hub`) the Hub cannot be reached, or the repository or revision does not exist.
    """
    try:
        found = list_models(repo, revision)
    except ModelError as error:
        raise CpbError(f"{error}".rstrip("."), code="hub", field="model") from None
    series = (series_of(name.replace("/", "-")) for name in found.models)
    return [PublishedModel(s, repo, found.commit) for s in series if s]


def forecast_published(
    models: Sequence[PublishedModel], scope: Scope, provisional: bool = False
) -> tuple[pl.DataFrame, list[Failure]]:
    """Return the forecasts of all models as rows of the contract; an error in a model is a failure of that model only.

    They are not stored in the forecast store: its newest rows of a series are shown on the page and counted in the hit
    rates, and must be from the local champion.
    """
    parts, failures = [pl.DataFrame(schema=FORECAST_SCHEMA)], []
    scoped = {"since": scope.since, "as_of": scope.as_of, "provisional": provisional}
    of_market = cache(lambda market, timeframe: newest_markets(scope.home, [(market, timeframe)], **scoped))
    for model in models:
        series = model.series
        try:
            member = from_hub(model.repo, series.symbol, series.timeframe, model.commit, series.market)
            reads_market, key = NO_MARKET in member.config["features"], market_key(series)
            market = of_market(*key).get(key) if reads_market else None
            rows = forecast_with(member, series, model.model_version, scope, provisional, market=market)
            parts.append(
                check_forecasts(
                    rows.with_columns(made_at=pl.lit(datetime.now(UTC), FORECAST_SCHEMA["made_at"]))
                )
            )
        except ANY_ERROR as error:
            failures.append(failure(series, "forecast", error))
    return pl.concat(parts), failures
