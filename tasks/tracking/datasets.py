"""The candles that a fleet was trained and judged on, as MLflow's data sets: per timeframe and span, not per coin."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from schemas.handover import JobMember, SeriesRecord
from schemas.identity import coins_label
from tasks.storage.digests import value_digest
from tasks.storage.urls import without_credentials
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.records import source_kind, text

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

    from tasks.tracking.connection import Store


def log_datasets(run_id: str, members: Sequence[JobMember], store: "Store | None" = None) -> None:
    """Add the candles of a fleet's members to its run; a run that is continued lists them once.

    `20 coins 1h (real)` with context `training`, and `20 coins 1h (real), 2025-02-06 to 2025-06-05` with `test`.
    """
    from mlflow.exceptions import MlflowException

    client, inputs = (store or open_store()).client, list(_inputs(members))
    try:
        client.log_inputs(run_id, datasets=inputs)
    except MlflowException as error:
        if "constraint" not in str(error):
            raise
        # MLflow checks, then inserts: of two processes with the same dataset one collides; its retry finds the dataset.
        client.log_inputs(run_id, datasets=inputs)


def _inputs(members: Sequence[JobMember]) -> "Iterator[DatasetInput]":
    by_timeframe: dict[int, list[JobMember]] = defaultdict(list)
    for member in members:
        by_timeframe[member.features.series.seconds].append(member)
    for seconds, group in sorted(by_timeframe.items()):
        records = [member.features for member in group]
        name, (first, end) = _name(records), group[0].bounds.test
        last = end - timedelta(seconds=seconds)
        span = f"{name}, {first:%Y-%m-%d} to {last:%Y-%m-%d}"
        tested = len(group) * int((end - first).total_seconds()) // seconds
        yield _input(records, name, sum(record.rows for record in records), "training")
        yield _input(records, span, tested, "test", first.isoformat(), end.isoformat())


def _input(records: Sequence[SeriesRecord], name: str, rows: int, context: str, *span: str) -> "DatasetInput":
    from mlflow.entities import Dataset, DatasetInput, InputTag

    digest = value_digest([sorted((r.series.name, r.digest) for r in records), span])[:16]
    place = os.path.commonpath([without_credentials(record.path) for record in records])
    entity = Dataset(text(name), digest, "local", text({"uri": place}), profile=text({"num_rows": rows}))
    return DatasetInput(entity, [InputTag("mlflow.data.context", context)])


def _name(records: Sequence[SeriesRecord]) -> str:
    series = records[0].series
    coins = coins_label(record.series.symbol for record in records)
    return f"{coins} {series.timeframe} ({source_kind(series.market)})"
