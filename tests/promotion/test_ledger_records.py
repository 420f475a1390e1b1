"""`cpb verify` and the records beside the ledger: each damaged one is named, and set aside on demand."""

from datetime import UTC, datetime

import pytest
from promotion_tools import BTC
from verifying import verify_ledger as verify

from schemas.handover import Record
from schemas.identity import MARKETS, Recipe
from schemas.ledger import DailyState, KnownVersions, LedgerSummary
from tasks.forecasting.watch import Watch
from tasks.promotion import recipe_pairs
from tasks.promotion.recipe_pairs import Pair, about
from tasks.storage.digests import file_digest
from tasks.storage.files import draft_name
from tasks.storage.records import write_record
from tasks.verify import verify_all

NOW = datetime(2025, 6, 1, tzinfo=UTC)
PAIR = Pair(
    market="sim", timeframe="1h", challenger="har/default/aaaaaaaaaaaa", incumbent="gru/default/bbbbbbbbbbbb",
    k=1, share=0.03, horizon=10, appointed_at=NOW,
)  # fmt: skip
VERSIONS = KnownVersions(recipes={f"{BTC.registered}/1": "har/default/aaaaaaaaaaaa"})
PAIR_FILE = "interval=1h/001~har~default~aaaaaaaaaaaa~linear~default~bbbbbbbbbbbb.json"
FILES: dict[str, tuple[Record, str]] = {
    "summary.json": (LedgerSummary(market="sim", made_at=NOW), "sim"),
    "watch.json": (Watch(), "sim"),
    "interval=1h/symbol=BTCUSDT/versions.json": (VERSIONS, BTC.name),
    f"evidence/{PAIR_FILE}": (PAIR, PAIR_FILE),
}


@pytest.fixture
def ledger(tmp_path):
    folder = tmp_path / "sim" / "ledger"
    for name, (record, of) in FILES.items():
        write_record(folder / name, record, of=of, compact=True)
    daily = folder / "interval=1h/symbol=BTCUSDT"
    (daily / "daily.parquet").write_bytes(b"sums")
    state = DailyState(digest=file_digest(daily / "daily.parquet"), months={})
    write_record(daily / "daily.json", state, of=BTC.name)
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


def recipe(digit):
    return Recipe("har", "default", digit * 12)


def test_a_draft_that_a_killed_writer_left_is_no_trial(tmp_path):
    """It was killed before the rename: the challenger still gets its trial, and no share of alpha is spent."""
    pair = recipe_pairs.open_pair(tmp_path, "sim", "1h", recipe("a"), recipe("b"), 10, NOW)
    path = tmp_path / "sim/ledger/evidence" / about(save(tmp_path, pair))
    path.rename(draft_name(path))
    assert recipe_pairs.tried(tmp_path, "sim", "1h") == set()
    again = recipe_pairs.open_pair(tmp_path, "sim", "1h", recipe("a"), recipe("b"), 10, NOW)
    assert (again.k, again.share) == (1, pair.share)


def test_a_damaged_pair_stays_tried(tmp_path):
    pair = recipe_pairs.open_pair(tmp_path, "sim", "1h", recipe("a"), recipe("b"), 10, NOW)
    (tmp_path / "sim/ledger/evidence" / about(save(tmp_path, pair))).write_text("{")
    assert recipe_pairs.tried(tmp_path, "sim", "1h") == {(recipe("a"), recipe("b"))}
    assert recipe_pairs.open_pair(tmp_path, "sim", "1h", recipe("c"), recipe("b"), 10, NOW).k == 2


def test_two_pairs_that_were_exchanged_are_named_and_not_used(tmp_path):
    paths = []
    for letter in "ac":
        pair = recipe_pairs.open_pair(tmp_path, "sim", "1h", recipe(letter), recipe("b"), 10, NOW)
        paths.append(tmp_path / "sim/ledger/evidence" / about(save(tmp_path, pair)))
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    assert {d.path for d in verify(tmp_path, "sim")} == {p.relative_to(tmp_path).as_posix() for p in paths}
    assert recipe_pairs.pairs(tmp_path, "sim", "1h") == []
    assert len(recipe_pairs.tried(tmp_path, "sim", "1h")) == 2


def save(home, pair):
    recipe_pairs.save(home, pair)
    (path,) = (home / "sim/ledger/evidence").glob(f"*/{pair.k:03d}~*.json")
    return path


FOREIGN = (
    "summary.json", "watch.json", "references/notes.json", "references/BTCUSDT-1h.json",
    "evidence/interval=1h/notes.json", "interval=1h/symbol=my-own/daily.json",
    "interval=often/symbol=BTCUSDT/daily.json",
)  # fmt: skip


@pytest.mark.parametrize("content", ["{}", "[1, 2]", "no JSON", ""])
def test_a_repair_leaves_files_alone_that_are_not_provably_cpbs(tmp_path, content):
    """The home may be a folder in which the user keeps a `ledger` too."""
    others = [f"ledger/{name}" for name in FOREIGN]
    others += [
        "manifest.db", "fleets/0123456789abcdef/job.json", "fleets/0123456789abcdef/result.json",
        "fleets/0123456789abcdef/members/mine/notes.json",
        "fleets/notes/job.json", "forecasts/chain.jsonl", "forecasts/notes/index.json", "hub/README.md",
        "hub/notes/1h/x.json",
        "features/interval=1h/symbol=BTCUSDT/notes.json", "features/interval=1h/symbol=BTCUSDT/aaaaaaaaaaaaaaaa.json",
        "klines/notes.parquet", "cache/notes.arrow", "quarantine/notes.zip",
    ]  # fmt: skip
    for name in others:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    found = verify_all(tmp_path, MARKETS, repair=True)
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == set(others)
    assert found.is_good
