"""Files that an ingestion refused, or found published again with other candles, since some time."""

from datetime import UTC, datetime, timedelta

import polars as pl
from market_tools import AS_OF, FAST, build, csv_of, key, put, rows_of

from schemas.scope import Scope
from tasks.market.ingest import ingest
from tasks.market.layout import source_file
from tasks.notices.findings import of_files

BTC = key()


def run(folder):
    scope = Scope(
        symbols=("BTCUSDT",),
        timeframes=("1h",),
        source=str(folder / "mirror"),
        as_of=AS_OF,
        home=folder / "home",
    )
    ingest(scope, limits=FAST)


def found(folder, since):
    return {
        (one.about.split()[-1], one.kind) for one in of_files(folder / "home", [BTC, key("ETHUSDT")], since)
    }


def test_only_what_happened_since_then_is_found(tmp_path):
    start = datetime.now(UTC) - timedelta(seconds=1)
    assert found(tmp_path, start) == set()  # nothing was ever ingested
    build(tmp_path / "mirror", ["BTCUSDT"])
    run(tmp_path)
    assert found(tmp_path, start) == set()
    changed, refused = source_file(BTC, "2024-02"), source_file(BTC, "2024-03")
    rows = rows_of(changed).with_columns(
        count=pl.when(pl.int_range(pl.len()) < 3).then(pl.col("count") + 1).otherwise("count")
    )
    put(tmp_path / "mirror", changed, csv_of(changed, rows))
    put(tmp_path / "mirror", refused, b"1,2\n")
    run(tmp_path)
    assert found(tmp_path, start) == {("2024-02", "file changed upstream"), ("2024-03", "file quarantined")}
    reasons = [one.text for one in of_files(tmp_path / "home", [BTC], start)]
    assert any("3 candles changed" in reason for reason in reasons)
    assert found(tmp_path, datetime.now(UTC) + timedelta(seconds=2)) == set()
