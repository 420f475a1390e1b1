"""Answers as the API writes them: JSON, and lists as CSV."""

from typing import Any

import polars as pl
from fastapi import Response
from pydantic import BaseModel
from pydantic_core import to_json

from schemas.identity import SIM

_ABOUT = {"market", "symbol", "timeframe", "simulated"}
"""Fields of an answer that say what it is about."""


def json_of(answer: Any, name: str = "", rows: pl.DataFrame | None = None) -> bytes:
    """Return an answer's JSON, with `rows` as the list of that name, which is empty in the answer.

    polars writes rows of plain values in a fifth of the time that it takes to make models of them.
    """
    written = to_json(answer, inf_nan_mode="null")
    if rows is None:
        return written
    return written.replace(
        f'"{name}":[]'.encode(), f'"{name}":{times_as_text(rows).write_json()}'.encode(), 1
    )


def times_as_text(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with their times as the API writes them."""
    return rows.with_columns(pl.selectors.datetime().dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ"))


def csv_of(answer: Any, rows: pl.DataFrame | None = None) -> bytes:
    """Return an answer's list as CSV, with the answer's market and series; `rows`: the list, as in `json_of`.

    A text that a spreadsheet would execute as a formula gets an apostrophe.
    """
    if rows is None:
        listed = next(value for value in vars(answer).values() if isinstance(value, list))
        plain = [row.model_dump(mode="json") if isinstance(row, BaseModel) else row for row in listed]
    else:
        plain = times_as_text(rows).to_dicts()
    about = answer.model_dump(include=_ABOUT)
    frame = pl.DataFrame([about | row for row in plain], infer_schema_length=None)
    # Names of coins and runs come from files that others may have written.
    escaped = pl.col(pl.String).str.replace(r"^([=+\-@\t\r])", "'$1")
    return frame.select(~pl.selectors.nested()).with_columns(escaped).write_csv().encode()


def table(answer: Any, rows: pl.DataFrame | None = None) -> Response:
    """Return the answer `csv_of`, whose file is named after what is in it; letters that are not ASCII are replaced."""
    about = answer.model_dump(include=_ABOUT)
    market = "simulated" if about.pop("market") == SIM else answer.market
    about.pop("simulated", None)
    file = "-".join([market, *about.values(), type(answer).__name__.lower()])
    name = file.encode("ascii", "replace").decode().replace("?", "_")
    headers = {"Content-Disposition": f'attachment; filename="cpb-{name}.csv"'}
    return Response(csv_of(answer, rows), headers=headers, media_type="text/csv")
