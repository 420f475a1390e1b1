"""`forecast`: refresh the candles, forecast with the champions, score older forecasts whose candles have closed."""

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.console import echo
from flows.runner import NOT_YET, STALE, STANDING, Runner, flow_parameters, plain_failures
from schemas.errors import EXIT_COMPLETE, EXIT_PARTIAL, CpbError, counted
from schemas.failure import Failure
from schemas.forecasting import ForecastSpec
from schemas.home import home_folder
from schemas.scope import Scope
from tasks.forecasting.months import latest, series_with_forecasts, standing_note
from tasks.forecasting.record import champion_records, read_summary
from tasks.forecasting.touch_chances import touch_of, touched
from tasks.forecasting.watch import find_stale
from tasks.hub.tree import serving
from tasks.notices import Outcome, tell_outcome
from tasks.running.progress import PrintLine
from tasks.steps import champions, forecast, ingest, score, watch
from tasks.tracking.experiment import NO_STORE

_NONE = "train first, as in `cpb train-all`"


def run_forecast(spec: ForecastSpec, steps: Runner, report: PrintLine = echo) -> dict[str, Any]:
    """Return the newest forecast rows of each series (also those stored before), and counts of new and scored rows.

    `models`: each series' champion verdict and record. `standing`: a sentence for each series whose last candles stand
    still. `touch`: the chances that the prices asked for are reached.
    Exit 3 if a series could not be refreshed, forecast or scored, or if the only one asked for stands still.

    Raises:
        CpbError: no forecast could be made.
    """
    with tell_outcome("forecast") as outcome:
        return _forecast(spec, steps, report, outcome)


def _forecast(spec: ForecastSpec, steps: Runner, report: PrintLine, outcome: Outcome) -> dict[str, Any]:
    served = steps.one(champions, spec.scope.market)
    serving_now = served.of(spec.scope)  # before anything is downloaded
    scope = spec.scope.narrowed(list(serving_now))
    fetched, issued = steps.one(ingest, scope, spec.tail), steps.one(forecast, scope)
    scored, watched = steps.one(score, scope), steps.one(watch, scope)
    failures = [*served.failures, *fetched.failures, *issued.failures, *scored.failures, *watched.failures]
    # A damaged month fails more than one step: it is said once.
    problems = list({(f.series, f.reason): f for f in reversed(failures)}.values())[::-1]
    stale = find_stale(home_folder(), issued.series, scope.as_of)
    problems += [Failure(step="forecast", reason=str(s), code=STALE, series=s.series) for s in stale]
    models = {about.series: about for about in issued.issued}
    newest = {s: latest(home_folder(), s, scope.as_of, about.model_version) for s, about in models.items()}
    standing = {s: note for s, rows in newest.items() if (note := standing_note(rows))}
    if (
        len(spec.scope.symbols) == len(scope.series) == 1
    ):  # asked for alone, its forecast is worth no more than that
        problems += [Failure(step="forecast", reason=n, code=STANDING, series=s) for s, n in standing.items()]
    outcome.failures, outcome.alarms = problems, watched.alarms
    texts = [problem.line for problem in problems]
    if not issued.series:  # each reason names its own remedy, once for all series
        reasons = list({f.reason: text for f, text in zip(problems, texts, strict=True)}.values())
        raise CpbError(f"no forecast could be made: {'; '.join(reasons[:2]) or _NONE}", code="no-forecast")
    for problem, text in zip(problems, texts, strict=True):
        if problem.code != STANDING:
            report(f"{'STALE' if problem.code == STALE else 'FAILED'} {text}")
    for series, note in standing.items():
        report(f"STANDING {series}: {note}")
    drifted = [str(alarm) for alarm in watched.alarms if alarm.state == "drifted"]
    for alarm in drifted:
        report(f"DRIFTED {alarm}")
    number = counted(len(issued.series), "series")
    new = (
        f"{counted(issued.rows, 'new forecast row')} for {number}"
        if issued.rows
        else f"{number} as stored before"
    )
    report(f"{new}; {counted(scored.rows, 'older row')} scored")
    records = champion_records(read_summary(home_folder(), scope.market))
    result = {
        "rows": [row for rows in newest.values() for row in rows.to_dicts()],
        "models": [
            {"market": s.market, "symbol": s.symbol, "timeframe": s.timeframe, "verdict": models[s].verdict}
            | records.get(s, {})
            for s in issued.series
        ],
        "new_rows": issued.rows,
        "series": len(issued.series),
        "scored": scored.rows,
        "drifted": drifted,
        "standing": [f"{series}: {note}" for series, note in standing.items()],
        "failed": texts,
        "exit": EXIT_PARTIAL if problems else EXIT_COMPLETE,
    }
    if spec.prices:
        ((series, rows),) = newest.items()
        result["touch"] = list(touched(rows, touch_of(home_folder(), series, rows), spec.prices))
    return result


def _is_untrained(scope: Scope) -> bool:
    """Whether no series of the scope has a champion or ever had a forecast; a lost champion is an error."""
    if any(map(scope.selects, series_with_forecasts(home_folder(), scope.market))):
        return False
    try:
        packaged, failures = serving(home_folder(), scope.market)
    except CpbError as error:
        if error.code != NO_STORE:
            raise
        return True
    series = [*(model.series for model in packaged), *(f.series for f in failures if f.series)]
    return not any(map(scope.selects, series))


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
    counts = {name: value for name, value in result.items() if name not in ("rows", "models")}
    return Completed(name="Partial" if result["exit"] else "Completed", data=counts)
