"""`forecast`: refresh the candles, forecast with the champions, score older forecasts whose candles have closed."""

from collections.abc import Iterable, Mapping
from typing import Any

from prefect import flow
from prefect.states import Completed, State

from flows.console import say as say_to_people
from flows.runner import (
    NOT_YET,
    STALE,
    Runner,
    Say,
    failure_line,
    flow_parameters,
    plain_failures,
    read_pairs,
    show_on_page,
)  # fmt: skip
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, CpbError, count
from schemas.handover import Failure
from schemas.identity import SeriesId, check_known, coins_label
from schemas.scope import CHAMPIONS, ForecastSpec, Scope
from tasks.forecast import forecast
from tasks.forecasting.months import latest, series_with_forecasts
from tasks.forecasting.record import champion_records, read_summary
from tasks.forecasting.staleness import find_stale
from tasks.hub.tree import serving
from tasks.ingest import ingest
from tasks.market.sources import check_source
from tasks.notices import Outcome, tell_outcome
from tasks.score import score
from tasks.watch import watch

_NONE = "there is no champion for them yet; train first, as in `cpb train-all`"


def run_forecast(spec: ForecastSpec, steps: Runner, say: Say = say_to_people) -> dict[str, Any]:
    """Return the newest forecast rows of each series (also those stored before), and counts of new and scored rows.

    `models`: each series' champion verdict and record. Exit 3 if a series could not be refreshed, forecast or scored.

    Raises:
        CpbError: no forecast could be made.
    """
    with tell_outcome("forecast", spec.scope.home) as outcome:
        return _forecast(spec, steps, say, outcome)


def _forecast(spec: ForecastSpec, steps: Runner, say: Say, outcome: Outcome) -> dict[str, Any]:
    check_source(spec.scope)
    requested = read_pairs(spec, say).scope
    packaged, left_out = serving(requested.home, requested.market)
    series = _requested(requested, [model.series for model in packaged])
    if not series:  # checked before anything is downloaded
        known = {model.series.symbol for model in packaged}
        symbols = {one.symbol for one in requested.series}
        check_known(symbols, known, "the registry of champions")
        of = f" of {coins_label(symbols)}" if symbols else ""
        at = "" if spec.timeframes == CHAMPIONS else f" at {', '.join(requested.timeframes)}"
        raise CpbError(
            f"no forecast could be made: there is no champion{of}{at} in market {spec.market} yet; train first, as in "
            "`cpb train-all`", code="no-champion",
        )  # fmt: skip
    scope = requested.narrowed([model.series for model in packaged if model.series in series])
    fetched = steps.one(ingest, scope, spec.tail)
    issued = steps.one(forecast, scope)
    scored = steps.one(score, scope)
    watched = steps.one(watch, scope)
    stale = find_stale(scope.home, issued.series, scope.as_of)
    steps_taken = (fetched, issued, scored, watched)
    failures = [*left_out, *(failure for result in steps_taken for failure in result.failures)]
    # A damaged month fails more than one step: it is said once.
    problems = list({(failure.series, failure.reason): failure for failure in reversed(failures)}.values())[
        ::-1
    ]
    problems += [Failure(step="forecast", reason=str(s), code=STALE, series=s.series) for s in stale]
    outcome.failures, outcome.alarms = problems, watched.alarms
    texts = list(map(failure_line, problems))
    if not issued.series:  # each reason names its own remedy
        raise CpbError(f"no forecast could be made: {'; '.join(texts[:2]) or _NONE}", code="no-forecast")
    for problem, text in zip(problems, texts, strict=True):
        say(f"{'STALE' if problem.code == STALE else 'FAILED'} {text}")
    drifted = [alarm for alarm in watched.alarms if alarm.state == "drifted"]
    for alarm in drifted:
        say(f"DRIFTED {alarm}")
    number = count(len(issued.series), "series")
    new = (
        f"{count(issued.rows, 'new forecast row')} for {number}"
        if issued.rows
        else f"{number} as stored before"
    )
    say(f"{new}; {count(scored.rows, 'older row')} scored")
    verdicts = {model.series: model.verdict for model in packaged}
    return {
        **_shown(scope, issued.series, verdicts),
        "new_rows": issued.rows,
        "series": len(issued.series),
        "scored": scored.rows,
        "drifted": [str(alarm) for alarm in drifted],
        "failed": texts,
        "exit": EXIT_PARTIAL if problems else EXIT_COMPLETE,
    }


def _shown(
    scope: Scope, series: Iterable[SeriesId], verdicts: Mapping[SeriesId, str]
) -> dict[str, list[dict[str, Any]]]:
    """Return `rows`, the newest stored forecast of each series, and `models`, a record per series."""
    records = champion_records(read_summary(scope.home, scope.market))
    rows, models = [], []
    for one in series:
        rows += latest(scope.home, one, scope.as_of).to_dicts()
        head = {"market": one.market, "symbol": one.symbol, "timeframe": one.timeframe}
        models.append(head | {"verdict": verdicts.get(one, "")} | records.get(one, {}))
    return {"rows": rows, "models": models}


def _requested(scope: Scope, series: Iterable[SeriesId]) -> set[SeriesId]:
    """Return those of a market's series that are asked for; without symbols, as for `champions`, all coins are."""
    wanted = set(scope.series)
    return {s for s in series if (s in wanted if scope.symbols else s.timeframe in scope.timeframes)}


def _is_untrained(scope: Scope) -> bool:
    """Whether no series of the scope has a champion or ever had a forecast; a lost champion is an error."""
    if _requested(scope, series_with_forecasts(scope.home, scope.market)):
        return False
    try:
        packaged, _ = serving(scope.home, scope.market)
    except CpbError as error:
        if error.code != "no-store":
            raise
        return True
    return not _requested(scope, [model.series for model in packaged])


@flow(name="forecast", validate_parameters=False, flow_run_name="forecast {timeframes}")
@plain_failures
@flow_parameters(ForecastSpec)
def forecast_flow(spec: ForecastSpec) -> State:
    """Forecast with every champion of the scope from the newest candles; does nothing before the first training."""
    if _is_untrained(spec.scope):
        return Completed(
            name=NOT_YET,
            message="no champions yet: the first run of train-all creates them",
            data={"exit": EXIT_COMPLETE},
        )
    result = run_forecast(spec, Runner(prefect=True))
    show_on_page("forecast", result["failed"])
    counts = {name: value for name, value in result.items() if name not in ("rows", "models")}
    return Completed(name="Partial" if result["exit"] else "Completed", data=counts)
