"""`forecast`: refresh the candles, forecast with the champions, score older forecasts whose candles have closed."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from flows.console import echo
from flows.page import update_space
from flows.run import Partial, flow_run
from schemas.coins import coins_label
from schemas.errors import CpbError, counted
from schemas.failure import STALE, WRONG_ALERT, Failure
from schemas.forecasting import ForecastSpec
from schemas.handover import ForecastBatch
from schemas.home import home_folder
from schemas.identity import SeriesId
from schemas.ledger import Score
from tasks.forecasting.alerts import check_alerts
from tasks.forecasting.months import latest, standing_note
from tasks.forecasting.price_chances import chances_of
from tasks.forecasting.record import champion_records, read_summary
from tasks.forecasting.staleness import find_stale, stale_sentence
from tasks.notices import VARIABLE, sends_messages
from tasks.running.progress import PrintLine
from tasks.steps import champions, forecast, ingest, score, watch
from tasks.storage.files import NOTIFY_FILE

STANDING = "standing"
"""Code of the failure of a series that was asked for alone and whose last candles stand still."""


def run_forecast(spec: ForecastSpec, report: PrintLine = echo) -> dict[str, Any]:
    """Return the newest forecast rows of each series (also those stored before), and counts of new and scored rows.

    `alerts`: the chances that passed a limit of `HOME/alerts`, as sentences; none of a replay.
    `models`: each series' champion verdict and record. `standing`: a sentence for each series whose last candles stand
    still. `touch`, `first`, `above` and `stops`: answers of `PriceChances`, as asked for.
    Exit 3 if a series could not be refreshed, forecast or scored, or if the only one asked for stands still.

    Raises:
        CpbError: no forecast could be made.
    """
    home = home_folder()
    with flow_run("forecast", report, notify=True) as run:
        served = champions(spec.scope.market)
        scope = spec.scope.narrowed(list(served.of(spec.scope)))  # before anything is downloaded
        if lacking := [symbol for symbol in spec.scope.symbols if symbol not in scope.symbols]:
            run.report(f"without a champion yet, and left out: {coins_label(lacking)}")
        # Forecasts first: what came true and what drifted can wait, a price cannot.
        fetched = ingest.after(served)(scope, spec.tail)
        issued = forecast.after(served, fetched)(scope)
        scored = score.after(issued)(scope)
        watched = watch.after(scored)(scope)
        run.alarms = watched.alarms
        models = {about.series: about for about in issued.issued}
        newest = {s: latest(home, s, scope.as_of, about.model_version) for s, about in models.items()}
        standing = {s: note for s, rows in newest.items() if (note := standing_note(rows))}
        # Replaced, not noted one by one: the same damage is met by up to five steps.
        run.failures = _once(served, fetched, issued, scored, watched)
        stale = find_stale(home, issued.series, scope.as_of)
        run.stale = stale_sentence(home, stale, scope.source)
        run.failures += [
            Failure(
                step="forecast", reason=stale_sentence(home, [s], scope.source), code=STALE, series=s.series
            )
            for s in stale
        ]
        # asked for alone, a forecast after candles that stand still is worth no more than they
        if len(spec.scope.symbols) == len(scope.series) == 1:
            run.failures += [
                Failure(step="forecast", reason=n, code=STANDING, series=s) for s, n in standing.items()
            ]
        if not issued.series:  # each reason names its own remedy, once for all series
            reasons = list({problem.reason: problem.line for problem in run.failures}.values())
            why = "; ".join(reasons[:2]) or f"train first, as in `cpb train-all{scope.options}`"
            raise CpbError(f"no forecast could be made: {why}", code="no-forecast")
        drifted = [str(alarm) for alarm in watched.alarms if alarm.state == "drifted"]
        if scope.as_of is None:  # what a replay would have told is no news
            known = {model.series for model in served.models} | {f.series for f in run.failures if f.series}
            run.alerts, unread = check_alerts(home, scope.market, newest, datetime.now(UTC), known)
            run.failures += [Failure(step="forecast", reason=line, code=WRONG_ALERT) for line in unread]
        run.tell(_lines(run.failures, run.stale, standing, drifted, issued, scored))
        run.tell(f"ALERT {text}" for text in run.alerts.values())
        if run.alerts and not sends_messages():
            run.report(
                f"no service tells anybody of alerts: set {VARIABLE}, or write the file {home / NOTIFY_FILE}, "
                "as docs/operations.md says"
            )
        update_space(run, spec)
        records = champion_records(read_summary(home, scope.market))
        result = {
            "rows": [row for rows in newest.values() for row in rows.to_dicts()],
            "models": [{**vars(s), "verdict": models[s].verdict} | records.get(s, {}) for s in issued.series],
            "new_rows": issued.rows,
            "series": len(issued.series),
            "scored": scored.rows,
            "drifted": drifted,
            "alerts": [*run.alerts.values()],
            "standing": [f"{series}: {note}" for series, note in standing.items()],
            "failed": [problem.line for problem in run.failures],
            "exit": run.exit_code,
        }
    # After the run: a price on the wrong side of the close is no failure of it, and nobody else is told.
    if spec.questions:
        ((series, rows),) = newest.items()
        spec.check_thousands(rows["last_close"][0])
        chances = chances_of(home, series, rows)
        result |= {name: getattr(chances, name)(*asked) for name, asked in spec.questions.items()}
    return result


def _once(*results: Partial) -> list[Failure]:
    """Return the failures of steps: a damaged month fails more than one step, and is said once, as first met."""
    failures = [failure for result in results for failure in result.failures]
    return list({(f.series, f.reason): f for f in reversed(failures)}.values())[::-1]


def _lines(
    problems: Iterable[Failure],
    stale: str,
    standing: Mapping[SeriesId, str],
    drifted: Iterable[str],
    issued: ForecastBatch,
    scored: Score,
) -> Iterator[str]:
    for problem in problems:
        if problem.code not in (STALE, STANDING):  # each is said of every series at once
            yield f"FAILED {problem.line}"
    if stale:
        yield f"STALE {stale}"
    for series, note in standing.items():
        yield f"STANDING {series}: {note}"
    for alarm in drifted:
        yield f"DRIFTED {alarm}"
    number = counted(len(issued.series), "series")
    new = (
        f"{counted(issued.rows, 'new forecast row')} for {number}"
        if issued.rows
        else f"{number} as stored before"
    )
    yield f"{new}; {counted(scored.rows, 'older row')} scored"
