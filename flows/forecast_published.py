"""`forecast --model hub:USER/NAME`: refresh the candles and forecast with published models."""

import io
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from flows.runner import Runner, read_pairs
from flows.summary import Say, plain_reason, problem_line, stale_failure
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, CpbError, UsageError
from schemas.handover import Failure
from schemas.scope import CHAMPIONS, Scope, ScopeSpec
from tasks.forecasting.staleness import find_stale
from tasks.hub.published import PublishedModel, forecast_published, published_models
from tasks.ingest import ingest
from tasks.storage.files import check_writable, write_bytes

CANDLES = 1300
"""Candles requested from Binance for a forecast: warm-up (a week of hourly candles), the model's context, a margin."""

_FIRST_CANDLE = datetime(2017, 7, 1, tzinfo=UTC)
_MODEL = re.compile(r"hub:(?P<repo>[^@\s]+/[^@\s]+?)(@(?P<revision>[^@\s]+))?")


def run_forecast_published(
    spec: ScopeSpec, model: str, out: str | None, steps: Runner, say: Say
) -> dict[str, Any]:
    """Return the forecasts, in the order of the repository; exit 3 if a series could not be refreshed or forecast.

    Args:
        model: `hub:USER/NAME`, with `@REVISION` for a commit other than the newest.
        out: file (`.parquet`) for the forecast rows, as the contract defines them.

    Raises:
        UsageError: `model` or `out` is malformed.
        CpbError: the repository cannot be read or has no model in the scope, or no forecast could be made.
    """
    repo, revision = _parse(model)
    target = _target(out)
    spec = read_pairs(spec, say)
    models = _in_scope(spec, published_models(repo, revision), repo, say)
    problems: list[Failure] = []
    rows = []
    for scope, some in _by_timeframe(spec.scope, models):
        problems += steps.one(ingest, scope, spec.tail).failures
        found, failures = forecast_published(some, scope, spec.tail)
        rows.append(found)
        problems += failures + _stale(scope, some)
    forecasts = pl.concat(rows)
    texts = [f"{one.subject}: {plain_reason(one)}" for one in problems]
    if forecasts.is_empty():
        raise CpbError(f"no forecast could be made: {'; '.join(texts[:2])}", code="no-forecast")
    for line in map(problem_line, problems):
        say(line)
    if target:
        buffer = io.BytesIO()
        forecasts.write_parquet(buffer, compression="zstd")
        write_bytes(target, buffer.getvalue())
    return {
        "repo": repo,
        "commit": models[0].commit,
        "rows": forecasts.to_dicts(),
        "out": target,
        "failed": texts,
        "exit": EXIT_PARTIAL if problems else EXIT_COMPLETE,
    }


def _parse(model: str) -> tuple[str, str | None]:
    found = _MODEL.fullmatch(model)
    if not found:
        raise UsageError(
            f"model {model!r} is not hub:USER/NAME or hub:USER/NAME@REVISION", code="model", field="model"
        )
    return found["repo"], found["revision"]


def _target(out: str | None) -> Path | None:
    """Return the output file after checking that it is writable, so that an error comes before the forecasts."""
    if out is None:
        return None
    path = Path(out)
    if path.suffix != ".parquet":
        raise UsageError(f"out {out!r} must end in .parquet", code="out", field="out")
    check_writable(path.parent)
    return path


def _in_scope(spec: ScopeSpec, models: list[PublishedModel], repo: str, say: Say) -> list[PublishedModel]:
    """Return the models in the scope; `coins=all` also selects coins outside the default universe."""
    scope, symbols = spec.scope, set(spec.scope.symbols)
    all_coins = spec.coins.strip().lower() in ("all", CHAMPIONS)
    wanted: list[PublishedModel] = []
    others: list[PublishedModel] = []
    for one in models:
        is_requested = (
            one.series.market == scope.market
            and one.series.timeframe in scope.timeframes
            and (all_coins or one.series.symbol in symbols)
        )
        (wanted if is_requested else others).append(one)
    rest = ", ".join(str(one.series) for one in others)
    if not wanted:
        requested = f"market {scope.market}, coins {spec.coins}, timeframes {spec.timeframes}"
        raise CpbError(
            f"{repo} has no model for {requested}; it has {rest or 'none at all'}: choose with --coins, "
            "--timeframes and --market (--source sim for sim, a table for own)",
            code="no-model", field="model",
        )  # fmt: skip
    if rest:
        say(f"published but not requested: {rest}")
    return wanted


def _by_timeframe(
    scope: Scope, models: Sequence[PublishedModel]
) -> Iterator[tuple[Scope, list[PublishedModel]]]:
    """Yield a scope with exactly the models' series for each timeframe.

    Only the newest candles are requested from Binance, so that using a published model does not download years. It is
    unknown which candles of a mirror are the newest, so a mirror is read from its first candle on.
    """
    for timeframe in dict.fromkeys(one.series.timeframe for one in models):
        some = [one for one in models if one.series.timeframe == timeframe]
        since = scope.since
        if since is None and scope.source is None:
            span = timedelta(seconds=CANDLES * some[0].series.seconds)
            since = max((scope.as_of or datetime.now(UTC)) - span, _FIRST_CANDLE)
        symbols = tuple(one.series.symbol for one in some)
        yield scope.model_copy(update={"symbols": symbols, "timeframes": (timeframe,), "since": since}), some


def _stale(scope: Scope, models: Sequence[PublishedModel]) -> list[Failure]:
    old = find_stale(scope.home, [one.series for one in models], scope.as_of)
    return [stale_failure(one) for one in old if one.what == "candle"]  # stored forecasts: of local champions
