"""`cpb forecast`: new forecasts, and the newest of each series as a table or JSON."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any

import typer

from cpbmodels.errors import grouped
from flows.cli.ending import Answer, answered
from flows.cli.options import cli_options
from flows.console import Column, echo, finding, price, print_table, quiet_libraries
from flows.progress import shown_progress
from schemas.errors import MINUTE, UsageError, age, counted
from schemas.forecasting import ForecastSpec

_AFTER = (1, 5, 10)
"""Candles ahead that the table of several series shows; the last step instead of those beyond it."""

_ORIGIN = (Column("step", "step", ">", stays=True), Column("close (UTC)", "close", stays=True))
_BANDS = (
    Column("series; last close", "about", stays=True),
    *_ORIGIN,
    Column("50 %", "half", ">"),
    Column("80 %", "most", ">", stays=True),
)
_LEVELS = range(5, 100, 5)
_USUAL = (5, 10, 25, 50, 75, 90, 95)
"""Levels of the quantiles that the table of a single series shows, in per cent."""

_FIRST = (
    Column("step", "step", ">"),
    Column("until (UTC)", "until"),
    Column("target first", "target_first", ">.1%"),
    Column("stop first", "stop_first", ">.1%"),
    Column("neither", "neither", ">.1%"),
)
_ARROWS = {"up": "↑ ", "down": "↓ ", None: ""}
"""Of a price that a high or a low reaches; of others none."""
_STOPS = (
    Column("chance", "chance", ">"),
    Column("↓ price", "down", ">"),
    Column("↑ price", "up", ">"),
)


@answered
@cli_options(ForecastSpec)
def forecast(
    spec: ForecastSpec,
    quantiles: Annotated[
        str | None,
        typer.Option(
            "--quantiles", metavar="all", help="all: of a single series nineteen quantiles instead of seven"
        ),
    ] = None,
) -> Answer:
    """Refresh the candles, forecast with the champions, show the forecasts, and score those come due.

    Of a single series every step is shown.

    Example: cpb forecast BTC 1h --source sim --target 40000 --stop 38500
    """
    if quantiles not in (None, "all"):
        raise UsageError(
            f"quantiles {quantiles!r} is unknown: choose all, or leave it out for the usual seven",
            code="quantiles",
        )
    quiet_libraries()
    with shown_progress("forecast"):
        from flows.forecast import run_forecast

        result = run_forecast(spec, echo)
    return Answer(result, partial(_print, spec, result, _LEVELS if quantiles else _USUAL))


def _print(spec: ForecastSpec, result: dict[str, Any], levels: Sequence[int]) -> None:
    # Ages are told as of the moment asked for: a replay reads as it would have read then.
    now = spec.scope.as_of or datetime.now(UTC)
    models = {(model["symbol"], model["timeframe"]): model for model in result.get("models", ())}
    forecasts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        forecasts.setdefault((row["symbol"], row["timeframe"]), []).append(row)
    texts = {series: _about(rows[0], models.get(series, {}), now) for series, rows in forecasts.items()}
    # Every step of one series fits a screen; of twenty series three bands do.
    if len(forecasts) == 1:
        ((series, rows),) = forecasts.items()
        columns = (*_ORIGIN, *(Column(f"{level} %", f"q{level:02}", ">") for level in levels))
        title = f"{'; '.join(texts[series])}; issued {rows[0]['issued_at']:{MINUTE}} UTC"
        print_table(title, columns, [_shown(row, "%m-%d %H:%M") for row in rows], continued=True)
    else:
        lines = [line for series, rows in forecasts.items() for line in _bands(texts[series], rows)]
        title = (
            "The close is within each band with this probability; verdict and record: against the random walk"
        )
        print_table(title, _BANDS, lines[:-1])
    for name, show in _ANSWERS.items():
        if name in result:
            show(result[name])


def _print_by_step(title: str, answers: Sequence[dict[str, Any]]) -> None:
    """Print a row for each price, with a chance for each step; the title has a place for the last step's time."""
    # The entries of a price are consecutive, one a candle: their number is the horizon.
    horizon = len({entry["by"] for entry in answers})
    lines = []
    for first in range(0, len(answers), horizon):
        entries = answers[first : first + horizon]
        chances = {str(step): f"{entry['probability']:.1%}" for step, entry in enumerate(entries, 1)}
        about = entries[0]
        lines.append({"price": f"{_ARROWS[about.get('side')]}{grouped(about['price'])}", **chances})
    steps = [Column(str(s), str(s), ">") for s in range(1, horizon + 1)]
    price_column = Column("price", "price", ">", stays=True)
    print_table(title.format(f"{answers[-1]['by']:{MINUTE}}"), (price_column, *steps), lines, continued=True)


def _print_first(first: Sequence[dict[str, Any]]) -> None:
    """Print a row for each candle: the chances that the target, the stop or neither is reached first by its close."""
    asked = first[0]
    title = (
        f"{asked['side'].capitalize()}: is the target {grouped(asked['target'])} or the stop "
        f"{grouped(asked['stop'])} reached first? A candle that reaches both counts for the stop"
    )
    lines = [
        entry | {"step": step, "until": f"{entry['by']:{MINUTE}}"} for step, entry in enumerate(first, 1)
    ]
    print_table(title, _FIRST, lines)


def _print_stops(stops: Sequence[dict[str, Any]]) -> None:
    """Print a row for each chance, with the prices that a low and a high reach with it."""
    # The entries of a chance are two, up and down.
    lines = [
        {
            "chance": f"{100 * up['probability']:.6g} %",
            "up": price(up["price"]),
            "down": price(down["price"]),
        }
        for up, down in zip(stops[::2], stops[1::2], strict=True)
    ]
    print_table(f"Reached with this chance until {stops[-1]['by']:{MINUTE}} UTC", _STOPS, lines)


_ANSWERS: dict[str, Callable[[Sequence[dict[str, Any]]], None]] = {
    "touch": partial(_print_by_step, "Reached within so many candles, the last of them until {} UTC"),
    "first": _print_first,
    "above": partial(
        _print_by_step, "The close lies above the price after so many candles, the last at {} UTC"
    ),
    "stops": _print_stops,
}


def _about(row: dict[str, Any], model: dict[str, Any], now: datetime) -> list[str]:
    """Return the line about a forecast: its series, the last close with its age, verdict, record, and what is odd."""
    from schemas.forecast_rows import is_standstill

    # The clock of this machine may be behind the exchange's: no age is negative.
    old = age(max((now - row["issued_at"]).total_seconds(), 0))
    said = [f"{row['symbol']} {row['timeframe']}", f"{price(row['last_close'])}, {old} old"]
    if "verdict" in model:
        said += [finding(model["verdict"]) or "not judged", _record(model)]
    if is_standstill(row["standing"]):
        said.append(f"the last {row['standing']:,} candles stand still")
    return said


def _record(model: dict[str, Any]) -> str:
    """Return the record of a series' champions against the random walk, as in `live 0.985 in 12 days`."""
    if "record_live" not in model:
        return "no record yet"
    days = counted(model["record_days"], "day")
    which = "live" if model["record_live"] else "replays"
    # Without an interval there are too few days for the ratio to mean anything.
    ratio = model["record_ratio"] if model["record_low"] is not None else None
    return f"{which} {ratio:.3f} in {days}" if ratio is not None else f"{which}: too few ({days})"


def _bands(about: Sequence[str], rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield the lines of one series, then an empty line."""
    shown = [_shown(rows[step - 1]) for step in sorted({min(step, len(rows)) for step in _AFTER})]
    for text, row in zip_longest(about, shown):
        line = dict.fromkeys(("step", "close", "half", "most"), "") | {"about": text or ""}
        if row:
            line |= {"step": row["step"], "close": row["close"]}
            line |= {"half": f"{row['q25']}–{row['q75']}", "most": f"{row['q10']}–{row['q90']}"}
        yield line
    yield dict.fromkeys(line, "")


def _shown(row: dict[str, Any], form: str = MINUTE) -> dict[str, str]:
    """Return a row's prices, and the close of the forecast candle in a form of `strftime`."""
    quantiles = {f"q{level:02}": price(row[f"q{level:02}"]) for level in _LEVELS}
    return {"step": str(row["step"]), "close": f"{row['target_time']:{form}}", **quantiles}
