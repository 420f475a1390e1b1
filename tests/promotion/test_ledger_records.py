"""`cpb verify` and the records beside the ledger: each damaged one is named."""

from datetime import UTC, datetime

import pytest

from schemas.base import Record
from schemas.decision import BacktestEvidence
from schemas.identity import MARKETS
from schemas.ledger import LedgerSummary
from tasks.forecasting.watch import Watch
from tasks.promotion.switches import Switch
from tasks.storage.records import write_record
from tasks.verify.verification import verify_all
from tests.tools.verifying import verify_ledger as verify

NOW = datetime(2025, 6, 1, tzinfo=UTC)
SWITCH = Switch(
    market="sim",
    timeframe="1h",
    switched_at=NOW,
    coins_to_follow=("BTCUSDT",),
    backtest=BacktestEvidence(
        challenger="har/default/aaaaaaaaaaaa",
        incumbent="gru/default/bbbbbbbbbbbb",
        first=NOW,
        last=NOW,
        days=600,
        submitted=1,
        named="abc",
        ratio=0.99,
        low=0.98,
        high=0.995,
        p=0.01,
        months=20,
        better=15,
        recent_p=1.0,
    ),
)
SWITCH_FILE = "switches/interval=1h/20250601T000000000000.json"
FILES: dict[str, Record] = {
    "summary.json": LedgerSummary(market="sim", made_at=NOW),
    "watch.json": Watch(),
    SWITCH_FILE: SWITCH,
}


@pytest.fixture
def ledger(tmp_path):
    folder = tmp_path / "sim" / "ledger"
    (folder / "interval=1h/symbol=BTCUSDT").mkdir(parents=True)
    for name, record in FILES.items():
        write_record(folder / name, record, compact=True)
    return folder


def test_sound_records_are_no_damage(tmp_path, ledger):
    seen = []
    assert list(verify(tmp_path, "sim", seen=seen.append)) == []
    # The daily sums and the settled months are made again where they are missing.
    assert len(seen) == len(FILES) + 2


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_record_is_named(tmp_path, ledger, name):
    path = ledger / name
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    (damage,) = verify(tmp_path, "sim")
    assert damage.path == f"sim/ledger/{name}"
    assert path.read_bytes() == data


def test_daily_sums_that_are_not_those_recorded_are_named(tmp_path, ledger):
    (ledger / "interval=1h/symbol=BTCUSDT/daily.parquet").write_bytes(b"sumz")
    (damage,) = verify(tmp_path, "sim")
    assert damage.path.endswith("daily.parquet")


FOREIGN = (
    "summary.json",
    "watch.json",
    "references/notes.json",
    "references/BTCUSDT-1h.json",
    "switches/interval=1h/notes.json",
    "interval=1h/symbol=my-own/daily.json",
    "interval=often/symbol=BTCUSDT/daily.json",
)


@pytest.mark.parametrize("content", ["{}", "[1, 2]", "no JSON", ""])
def test_files_that_are_not_provably_cpbs_are_no_damage(tmp_path, content):
    """The home may be a folder in which the user keeps a `ledger` too."""
    others = [f"ledger/{name}" for name in FOREIGN]
    others += [
        "manifest.db",
        "fleets/0123456789abcdef/job.json",
        "fleets/0123456789abcdef/result.json",
        "fleets/0123456789abcdef/members/mine/notes.json",
        "fleets/notes/job.json",
        "forecasts/chain.jsonl",
        "forecasts/notes/index.json",
        "hub/README.md",
        "hub/notes/1h/x.json",
        "features/interval=1h/symbol=BTCUSDT/notes.json",
        "features/interval=1h/symbol=BTCUSDT/aaaaaaaaaaaaaaaa.json",
        "klines/notes.parquet",
        "cache/notes.arrow",
        "quarantine/notes.zip",
    ]
    for name in others:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    report = verify_all(tmp_path, MARKETS)
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == set(others)
    assert report.is_good
