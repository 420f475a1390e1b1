"""The chain: a line for every batch; whatever is changed afterwards is found, and named."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from schemas.errors import CpbError
from tasks.forecasting import chain, months
from tasks.forecasting.lines import ORIGIN, Chain, chain_path, line_hash, parse_line, read_lines, rows_digest
from tasks.forecasting.months import month_bytes
from tasks.forecasting.record import score_due
from tests.tools import fork_server
from tests.tools.forecast_tools import BTC, HOUR, PEPE, START, UM_PEPE, flip, rows_at, write_candles
from tests.tools.live_record import read
from tests.tools.verifying import verify_forecasts as verify

ROOT = Path(__file__).parents[2]

PEPE_MAY = "forecasts/interval=1h/symbol=PEPEUSDT/2025-05.parquet"
PEPE_JUNE = PEPE_MAY.replace("05.parquet", "06.parquet")
BTC_JUNE = PEPE_JUNE.replace("PEPE", "BTC")
CHAIN = "forecasts/chain.jsonl"
SCORED = 72  # rows of each series in `home`


def issue(home, hours, market="spot"):
    """A batch of two series."""
    series = [UM_PEPE] if market == "um" else [PEPE, BTC]
    return chain.append(home, market, "forecasts", {name: rows_at(hours, series=name) for name in series})


@pytest.fixture(scope="module")
def twelve_lines(tmp_path_factory):
    """Ten hours of two series over the end of a month, some of them scored: twelve lines."""
    made = tmp_path_factory.mktemp("chain") / "home"
    for hours in range(10):
        assert issue(made, hours) == {PEPE: 10, BTC: 10}
    for series in (PEPE, BTC):
        write_candles(made, [8e-6] * 30, series)
    for hours in (3, 12):
        assert score_due(made, [PEPE, BTC], START + hours * HOUR).failures == ()
    return made


@pytest.fixture
def home(twelve_lines, tmp_path):
    """The test's own copy of that home."""
    return Path(shutil.copytree(twelve_lines, tmp_path, dirs_exist_ok=True))


def lines_of(home, market="spot"):
    return list(read_lines(chain_path(home, market)))


def faults(home):
    return {damage.path: damage.reason for damage in verify(home, "spot")}


def test_each_batch_is_one_line_that_describes_its_rows_and_files(home):
    lines = lines_of(home)

    assert [line.number for line in lines] == list(range(1, 13))
    assert [line.kind for line in lines] == ["forecasts"] * 10 + ["scores"] * 2
    assert lines[0].previous == ORIGIN
    assert [entry.file for entry in lines[9].entries] == [PEPE_JUNE, BTC_JUNE]
    assert {entry.rows for line in lines[:10] for entry in line.entries} == {10}
    assert lines[9].entries[0].rows_sha256 == rows_digest(rows_at(9))
    assert datetime.fromisoformat(lines[0].time).tzinfo == UTC
    assert faults(home) == {}


def alter_text(number, old, new):
    """Change a line's text, as an editor would."""

    def change(home):
        path = chain_path(home, "spot")
        lines = path.read_bytes().splitlines(keepends=True)
        assert old in lines[number - 1]
        lines[number - 1] = lines[number - 1].replace(old, new, 1)
        path.write_bytes(b"".join(lines))

    return change


def reorder(*order):
    """Put the first lines in another order, or leave some out."""

    def change(home):
        path = chain_path(home, "spot")
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*(lines[n - 1] for n in order), *lines[max(order) :]]))

    return change


def forge(home):
    """Change a line and give it the hash of its new text."""
    path = chain_path(home, "spot")
    lines = path.read_bytes().splitlines(keepends=True)
    text = lines[4].replace(b'"rows":10', b'"rows":11', 1)
    lines[4] = text[:-67] + line_hash(text).encode() + text[-3:]
    path.write_bytes(b"".join(lines))


CHAIN_DAMAGE = {
    "a count": (alter_text(3, b'"rows":10', b'"rows":20'), 3),
    "a time": (alter_text(7, b"202", b"203"), 7),
    "a hash of the last line": (alter_text(12, b'"}\n', b"0}\n"), 12),
    "the last line break": (alter_text(12, b"\n", b""), 12),
    "a dropped line": (reorder(1, 2, 4), 3),
    "swapped lines": (reorder(1, 2, 4, 3), 3),
    "a forged line": (forge, 6),
    "another line behind": (lambda home: chain_path(home, "spot").open("a").write("{}\n"), 13),
}


@pytest.mark.parametrize("name", CHAIN_DAMAGE)
def test_a_changed_chain_is_found_and_its_first_bad_line_named(home, name):
    change, line = CHAIN_DAMAGE[name]
    change(home)

    named = faults(home)

    assert set(named) == {CHAIN}
    assert named[CHAIN].startswith(f"line {line} does not fit: ")


@pytest.mark.parametrize("place", [i / 20 for i in range(20)])
def test_every_flipped_bit_of_the_chain_is_found(home, place):
    flip(chain_path(home, "spot"), place)

    assert set(faults(home)) == {CHAIN}


@pytest.mark.parametrize("cut", [1, 2, 3, 11])
def test_a_chain_that_is_cut_off_is_found_by_the_rows_it_leaves_without_a_line(home, cut):
    path = chain_path(home, "spot")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-cut]))

    named = faults(home)

    assert named
    assert all("no line" in reason for reason in named.values())
    if cut == 3:
        assert named[PEPE_JUNE].startswith("row 51 and the rows after it")


def test_without_its_chain_a_market_is_named_and_stores_nothing_until_it_is_restored(home):
    path = chain_path(home, "spot")
    content = path.read_bytes()
    path.unlink()

    assert set(faults(home)) == {CHAIN}
    for error in issue(home, 11).values():
        assert error.code == "damaged"
        assert "chain.jsonl is missing or empty though rows were stored" in str(error)
        assert "restore it from a backup" in str(error)
    assert not path.exists()
    path.write_bytes(content)
    assert issue(home, 11) == {PEPE: 10, BTC: 10}
    assert faults(home) == {}


def test_an_empty_chain_beside_rows_is_named_like_a_missing_one(home):
    path = chain_path(home, "spot")
    path.write_bytes(b"")

    assert faults(home)[CHAIN] == "the file is empty, though rows were stored with lines in it"
    assert {error.code for error in issue(home, 11).values()} == {"damaged"}
    assert path.read_bytes() == b""


def test_a_chain_whose_times_run_backwards_is_named(home):
    """Each line fits the one before it, but for its time: the clock was set back."""
    path, previous = chain_path(home, "spot"), ORIGIN
    raw = []
    for line in lines_of(home):
        time = "2025-01-01T00:00:00.000000Z" if line.number == 7 else line.time
        raw.append(replace(line, previous=previous, time=time).encode())
        previous = line_hash(raw[-1])
    path.write_bytes(b"".join(raw))

    reason = faults(home)[CHAIN]
    assert reason.startswith(
        "line 7 does not fit: its time, 2025-01-01T00:00:00.000000Z, is before that of line 6, 20"
    )


class Clock(datetime):
    """The clock, set back (or ahead) by `ahead`."""

    ahead = HOUR * 0

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + cls.ahead


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(chain, "datetime", Clock)
    monkeypatch.setattr(Clock, "ahead", HOUR * 0)
    return Clock


@pytest.mark.parametrize("ahead", [-100 * HOUR, -24 * 400 * HOUR, -timedelta(minutes=2)])
def test_with_the_clock_set_back_nothing_is_stored(home, clock, ahead):
    """A replay would be stored with a time at which it were a live forecast."""
    before = chain_path(home, "spot").read_bytes()
    clock.ahead = ahead

    done = issue(home, 20)

    assert {error.code for error in done.values()} == {"clock"}
    assert "set the clock" in str(done[PEPE])
    assert chain_path(home, "spot").read_bytes() == before
    clock.ahead = HOUR * 0
    assert issue(home, 20) == {PEPE: 10, BTC: 10}
    assert faults(home) == {}


def test_a_clock_that_is_corrected_by_seconds_goes_on_and_no_time_runs_backwards(home, clock):
    clock.ahead = timedelta(seconds=-20)
    assert issue(home, 20) == {PEPE: 10, BTC: 10}
    assert faults(home) == {}
    times = [line.time for line in lines_of(home)]
    assert times[-1] == times[-2]


def test_a_forecast_made_before_its_own_last_candle_closed_is_not_live(home, clock):
    now = datetime.now(UTC)
    rows = {}
    for series, late in ((PEPE, timedelta(seconds=20)), (BTC, HOUR)):
        made = rows_at(0, series=series, made_at=None)
        shift = now + late - made["issued_at"][0]
        rows[series] = made.with_columns(pl.col("issued_at", "target_time") + shift)
    assert chain.append(home, "spot", "forecasts", rows) == {PEPE: 10, BTC: 10}

    live = {series: months.issues(home, series, 1)["live"].to_list() for series in rows}
    assert live == {PEPE: [True], BTC: [False]}
    stored = read(home, PEPE).tail(1)
    assert (
        stored["made_at"].to_list() == stored["issued_at"].to_list()
    )  # the exchange's clock was a little ahead


def test_behind_a_damaged_chain_forecasts_are_stored(home):
    alter_text(3, b'"rows":10', b'"rows":20')(home)

    for hours in (11, 12):
        assert issue(home, hours) == {PEPE: 10, BTC: 10}

    assert faults(home)[CHAIN].startswith("line 3 does not fit")


def rewrite(path, change):
    """Change rows and keep the record of digests right, as someone who wants to hide it would."""
    frame = change(pl.read_parquet(path, hive_partitioning=False))
    path.write_bytes(month_bytes(path, frame))


ROW_DAMAGE = {
    "a price": (
        lambda rows: rows.with_columns(
            last_close=pl.when(pl.int_range(pl.len()) == 33).then(8.1e-6).otherwise("last_close")
        ),
        "row 31, or a later row of the same batch, is missing or differs from line 8 of the chain",
    ),
    "a role": (lambda rows: rows.with_columns(role=pl.lit("other")), "row 1, "),
    "the order": (lambda rows: rows.reverse(), "row 1, "),
    "rows added": (
        lambda rows: pl.concat([rows, rows_at(30)]),
        "row 61 and the rows after it have no line in the chain",
    ),
    "rows dropped": (
        lambda rows: rows[:-10],
        "row 51, or a later row of the same batch, is missing or differs from line 10 of the chain",
    ),
}


@pytest.mark.parametrize("name", ROW_DAMAGE)
def test_rows_that_are_not_those_of_the_chain_are_found_and_the_first_is_named(home, name):
    change, reason = ROW_DAMAGE[name]
    path = home / PEPE_JUNE
    rewrite(path, change)

    named = faults(home)

    assert set(named) == {PEPE_JUNE}
    assert named[PEPE_JUNE].startswith(reason)


@pytest.mark.parametrize("there", [0, 1, 200, -1])
def test_a_line_that_a_crash_left_half_written_is_written_anew(home, there, monkeypatch):
    written = []
    with monkeypatch.context() as patch:
        patch.setattr(chain, "_append_line", lambda path, line: written.append(line) or 1 / 0)
        done = issue(home, 20)
    assert {error.code for error in done.values()} == {"unexpected"}
    with chain_path(home, "spot").open("ab") as file:
        file.write(written[0][:there])

    assert faults(home) == {}
    assert chain_path(home, "spot").read_bytes().endswith(written[0])
    assert len(lines_of(home)) == 13
    assert issue(home, 20) == {PEPE: 0, BTC: 0}


@pytest.mark.parametrize("number", [1, 5, 12])
def test_a_pending_line_that_the_chain_has_is_only_removed(home, number):
    """As restored with an older backup: appended behind later lines, it would damage the chain for ever."""
    path, pending = chain_path(home, "spot"), chain.pending_path(home, "spot")
    content = path.read_bytes()
    pending.write_bytes(content.splitlines(keepends=True)[number - 1])

    assert faults(home) == {}
    assert (path.read_bytes(), pending.exists()) == (content, False)


def test_a_pending_line_of_another_time_is_named_and_never_appended(home, tmp_path):
    path, pending = chain_path(home, "spot"), chain.pending_path(home, "spot")
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    path.write_bytes(whole.removesuffix(last))
    left = path.read_bytes()
    pending.write_bytes(replace(parse_line(last), previous=ORIGIN).encode())

    reason = faults(home)["forecasts/chain.pending"]
    assert "is of another time: its line 12 does not follow the last line of " in reason
    assert {error.code for error in issue(home, 21).values()} == {"damaged"}
    assert path.read_bytes() == left
    (found,) = [damage for damage in verify(home, "spot") if damage.path.endswith("chain.pending")]
    assert found.command == f"rm -f {pending}"
    pending.unlink()
    path.write_bytes(whole)
    assert issue(home, 21) == {PEPE: 10, BTC: 10}
    assert faults(home) == {}


def test_a_damaged_pending_file_is_named_and_nothing_is_stored_until_it_is_restored(home, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(chain, "_append_line", lambda *_: 1 / 0)
        issue(home, 20)
    pending = chain.pending_path(home, "spot")
    whole = pending.read_bytes()
    flip(pending, 0.2)

    named = faults(home)
    assert "restore it from a backup" in named.pop("forecasts/chain.pending")
    assert named
    assert all("no line" in reason for reason in named.values())
    assert {error.code for error in issue(home, 21).values()} == {"damaged"}
    assert len(read(home, PEPE)) == 110
    pending.write_bytes(whole)
    assert issue(home, 21) == {PEPE: 10, BTC: 10}
    assert faults(home) == {}


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.tools.forecast_tools import BTC, PEPE, rows_at
from tasks.forecasting import chain
home, limit, seen = Path({home!r}), {limit}, 0
batch = {{series: rows_at({hours}, series=series) for series in (PEPE, BTC)}}
def hook(event, args):
    global seen
    if event not in ("open", "os.rename", "os.remove", "os.truncate") or str(home) not in str(args[0]):
        return
    seen += 1
    if seen == limit:
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
print(chain.append(home, "spot", "forecasts", batch), seen)
"""


def killed_at(forking, home, limit, hours):
    """Run one batch in a process that is killed before its `limit`-th access to a file; whether it was."""
    code = KILLED.format(root=str(ROOT), home=str(home), limit=limit, hours=hours)
    done = subprocess.run([forking / fork_server.CODE, code], capture_output=True, text=True, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


def check_after_a_kill(home, hours, before):
    """Both series have the batch or neither; the chain fits; the batch can be repeated."""
    assert faults(home) == {}
    after = {series: read(home, series) for series in (PEPE, BTC)}
    assert len({len(after[series]) - before for series in after}) == 1
    added = len(after[PEPE]) - before
    assert added in (0, 10)
    assert issue(home, hours) == {PEPE: 10 - added, BTC: 10 - added}
    assert faults(home) == {}


@pytest.mark.parametrize("limit", [3, 10, 15])
@pytest.mark.parametrize("stored", [0, 1])  # 0: the chain begins with this batch
def test_a_kill_leaves_rows_and_line_or_neither(tmp_path, forking, limit, stored):
    for hours in range(stored):
        issue(tmp_path, hours)

    assert killed_at(forking, tmp_path, limit, hours=stored)
    check_after_a_kill(tmp_path, stored, before=10 * stored)


WRITER = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.tools.forecast_tools import BTC, PEPE, rows_at
from tasks.forecasting import chain
for hours in range({first}, {first} + 12):
    batch = {{series: rows_at(hours, series=series) for series in (PEPE, BTC)}}
    assert all(type(new) is int for new in chain.append(Path({home!r}), "spot", "forecasts", batch).values())
"""


def test_two_processes_at_once_lose_nothing_and_their_lines_fit(tmp_path):
    codes = [WRITER.format(root=str(ROOT), home=str(tmp_path), first=first) for first in (0, 6)]
    writers = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]
    assert [writer.wait(120) for writer in writers] == [0, 0]

    assert len(read(tmp_path, PEPE)) == 180
    assert faults(tmp_path) == {}
    assert len(lines_of(tmp_path)) == 18


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="a small tmpfs needs root")
@pytest.mark.parametrize("step_kb", [20, pytest.param(4, marks=pytest.mark.slow)])
def test_on_a_full_disk_nothing_is_stored_and_the_chain_stays_whole(tmp_path, step_kb):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        codes = []
        for room in range(500, 0, -step_kb):  # less and less room, so that it ends at another place each time
            filler = disk / "filler"
            filler.write_bytes(b"")
            free = shutil.disk_usage(disk).free
            filler.write_bytes(bytes(max(0, free - room * 1024)))
            done = issue(disk, 500 - room)
            codes += [result.code for result in done.values() if isinstance(result, CpbError)]
            filler.unlink()
            assert faults(disk) == {}
        assert set(codes) == {"disk-full"}
        assert issue(disk, 600) == {PEPE: 10, BTC: 10}
        assert faults(disk) == {}
        assert not list(disk.rglob(".*.parquet.*"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_verify_does_not_take_a_writer_at_work_for_damage(home, monkeypatch):
    """A batch that is to be stored between reading the chain and reading the files waits."""
    original, batches = Chain.read.__func__, []

    def slow(cls, path):
        chain_read = original(cls, path)
        if not batches:
            batches.append(writer.submit(issue, home, 20))
            assert wait(batches, timeout=0.2).not_done
        return chain_read

    monkeypatch.setattr(Chain, "read", classmethod(slow))
    with ThreadPoolExecutor(1) as writer:
        assert faults(home) == {}
    assert batches[0].result() == {PEPE: 10, BTC: 10}
    assert faults(home) == {}


def test_a_line_is_json_whose_hash_can_be_recomputed_with_sha256sum(home):
    path = chain_path(home, "spot")
    command = r"""tail -n 1 "$0" | sed 's/,"hash":"[0-9a-f]*"}$/}/' | tr -d "\n" | sha256sum"""
    done = subprocess.run(["bash", "-c", command, str(path)], capture_output=True, text=True, check=True)

    assert done.stdout.split()[0] == json.loads(path.read_text().splitlines()[-1])["hash"]
