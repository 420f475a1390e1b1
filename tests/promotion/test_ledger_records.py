"""`cpb verify` and the records beside the ledger: each damaged one is named, and set aside on demand."""

from datetime import UTC, datetime

import pytest
from promotion_tools import BTC

from schemas.handover import Record
from schemas.ledger import DailyState, KnownVersions, LedgerSummary
from tasks.forecasting.watch import Watch
from tasks.promotion.pairs import Pair
from tasks.promotion.verify import verify
from tasks.storage.digests import file_digest
from tasks.storage.records import write_record

NOW = datetime(2025, 6, 1, tzinfo=UTC)
PAIR = Pair(
    market="sim", timeframe="1h", challenger="har/default/aaaaaaaaaaaa", incumbent="gru/default/bbbbbbbbbbbb",
    k=1, share=0.03, horizon=10, appointed_at=NOW,
)  # fmt: skip
VERSIONS = KnownVersions(recipes={f"{BTC.registered}/1": "har/default/aaaaaaaaaaaa"})
FILES: dict[str, Record] = {
    "summary.json": LedgerSummary(market="sim", made_at=NOW),
    "watch.json": Watch(),
    "interval=1h/symbol=BTCUSDT/versions.json": VERSIONS,
    "evidence/interval=1h/001~a.json": PAIR,
}


@pytest.fixture
def ledger(tmp_path):
    folder = tmp_path / "sim" / "ledger"
    for name, record in FILES.items():
        write_record(folder / name, record, compact=True)
    daily = folder / "interval=1h/symbol=BTCUSDT"
    (daily / "daily.parquet").write_bytes(b"sums")
    write_record(daily / "daily.json", DailyState(digest=file_digest(daily / "daily.parquet"), months={}))
    return folder


def test_sound_records_are_no_damage(tmp_path, ledger):
    seen = []
    assert list(verify(tmp_path, "sim", seen=seen.append)) == []
    assert len(seen) == len(FILES) + 1


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_record_is_named_and_set_aside(tmp_path, ledger, name):
    path = ledger / name
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    (found,) = verify(tmp_path, "sim")
    assert (found.path, found.repaired) == (f"sim/ledger/{name}", False)
    assert path.exists()
    (mended,) = verify(tmp_path, "sim", repair=True)
    assert mended.repaired
    assert not path.exists()
    assert list(verify(tmp_path, "sim")) == []


def test_daily_sums_that_are_not_those_recorded_are_named(tmp_path, ledger):
    (ledger / "interval=1h/symbol=BTCUSDT/daily.parquet").write_bytes(b"sumz")
    (found,) = verify(tmp_path, "sim")
    assert found.path.endswith("daily.json")
