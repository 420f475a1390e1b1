"""The last good copy: a lost, cut or other record never replaces the published one, from which it comes back."""

import gzip
import json
import os
import shutil
import subprocess
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CpbError, DamagedError
from schemas.identity import SeriesId
from tasks.forecasting.chain import append, pending_path
from tasks.forecasting.lines import Line, chain_path, last_line, line_hash
from tasks.forecasting.months import files_of_market, month_bytes
from tasks.forecasting.published import loss_sentence, merged_chain
from tasks.hub.publish import publish_tree
from tasks.hub.restore import restore_record
from tasks.hub.tree import SUMS, build_tree
from tasks.storage.home_version import mark_home
from tasks.verify.verification import verify_all
from tests.tools.hub_models import REPO, champion
from tests.tools.live_record import made_forecasts, write_walk
from tests.tools.published_record import (
    BTC,
    BTC_ROWS,
    ETH,
    FIRST,
    SCORES,
    build,
    damage,
    rewrite,
    store,
    verify,
)
from tests.tools.verifying import of_kind, verify_forecasts, verify_published

verify_record = of_kind("published record")
BTC_MONTH = BTC_ROWS.replace(".jsonl.gz", ".parquet")


@pytest.fixture
def home(recorded, tmp_path, monkeypatch):
    copy = shutil.copytree(recorded, tmp_path / "data")
    monkeypatch.setenv("CPB_HOME", str(copy))
    mark_home(copy)
    return copy


def contents(folder, pattern):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob(pattern)}


def stored_record(home):
    months = {
        path.relative_to(home).as_posix(): path.read_bytes() for *_, path in files_of_market(home, "spot")
    }
    chain = chain_path(home, "spot")
    return months | ({"chain": chain.read_bytes()} if chain.exists() else {})


def published_rows(home):
    return contents(home / "hub", "*.jsonl*")


def next_rows(home, series=BTC, hour=24 * 37):
    close = write_walk(home, series, FIRST, 24 * 40, 0)
    return {series: made_forecasts(series, FIRST, close, np.atleast_1d(hour), reference=1.5)}


def change_lines(change):
    def changed(home):
        path = chain_path(home, "spot")
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return changed


def everything_lost(home):
    for tree in ("forecasts", "ledger"):
        shutil.rmtree(home / tree)


def older_backup(home):
    """As it was before the last two batches, so without scores."""
    change_lines(lambda lines: lines[:3])(home)
    for _, tree, path in list(files_of_market(home, "spot")):
        rows = pl.read_parquet(path, hive_partitioning=False)
        rows = rows.filter(pl.col("issued_at") < FIRST + timedelta(hours=24 * 20))
        if tree.name == "ledger" or rows.is_empty():
            path.unlink()
        else:
            path.write_bytes(month_bytes(path, rows))


LOSSES = {
    "forecasts": lambda home: shutil.rmtree(home / "forecasts"),
    "everything": everything_lost,
    "the chain": lambda home: chain_path(home, "spot").unlink(),
    "all of the chain": change_lines(lambda _: []),
    "the chain's end": change_lines(lambda lines: lines[:3]),
    "half of its last line": change_lines(lambda lines: [*lines[:4], lines[4][:300]]),
    "a line and a note instead": change_lines(lambda lines: [*lines[:2], b"a note\n", lines[3]]),
    "the time since a backup": older_backup,
}


@pytest.mark.parametrize("loss", LOSSES)
def test_after_a_loss_the_published_record_stays_and_brings_the_stored_one_back(home, loss, cpb_here):
    before, published = stored_record(home), published_rows(home)
    LOSSES[loss](home)
    left = stored_record(home)

    (found,) = verify_record(home)
    assert (found.path, found.command) == ("forecasts/chain.jsonl", "cpb restore")
    assert found.reason.startswith("it lacks line 5 of 20")
    (refused,) = append(home, "spot", "forecasts", next_rows(home)).values()
    assert "`cpb restore` brings that back" in str(refused)
    assert stored_record(home) == left, "no chain is begun anew"
    tree, (reason,) = build(home)
    assert reason == str(refused)
    assert published_rows(home) == published
    assert verify(tree)[0] == 0

    code, _, said = cpb_here(*found.command.split()[1:])
    assert (code, said.count("\n")) == (0, 1), said
    assert stored_record(home) == before
    assert [*verify_record(home), *verify_forecasts(home), *verify_published(home)] == []
    assert build(home)[1] == []
    assert append(home, "spot", "forecasts", next_rows(home)) == {BTC: 10}


@pytest.mark.parametrize("lost", ["forecasts/interval=1h/symbol=ETHUSDT", "ledger", BTC_MONTH])
def test_lost_and_damaged_months_come_back_beside_what_was_stored_since(home, lost, cpb_here):
    """Verify names each with the command, and so does whoever would store behind it."""
    store(home, [24 * 37], ETH if "BTC" in lost else BTC)  # after publishing, in another month
    before = stored_record(home)
    path = home / lost
    shutil.rmtree(path) if path.is_dir() else damage(home, BTC_ROWS)

    found = verify_forecasts(home)
    assert found
    assert {damaged.command for damaged in found} == {"cpb restore"}
    assert all(lost in damaged.path for damaged in found)
    if "ETH" in lost:
        (refused,) = append(home, "spot", "forecasts", next_rows(home, ETH)).values()
        assert "`cpb restore` brings it back" in str(refused)
    _, reasons = build(home)
    assert len(reasons) == len(found)
    assert all("`cpb restore` brings it back" in reason for reason in reasons)

    assert cpb_here("restore")[0] == 0
    assert stored_record(home) == before
    assert verify_forecasts(home) == []


def test_a_month_that_was_published_in_part_is_not_made_up(home, cpb_here):
    """Whoever has no backup can go back to the record as it was published, which stays whole meanwhile."""
    published = published_rows(home)
    store(home, [24 * 36], BTC)  # in a published month
    path = home / BTC_MONTH.replace("-01", "-02")
    rows = path.read_bytes()
    path.unlink()
    way = "restore it from a backup, or go back to the record as it was published with `cpb restore --set-aside`"

    (found,) = verify_forecasts(home)
    assert found.command == way
    (refused,) = append(home, "spot", "forecasts", next_rows(home)).values()
    assert way in str(refused)
    tree, (reason,) = build(home)
    assert way in reason
    assert published_rows(home) == published, "a chain without its rows could neither be checked nor restored"
    assert verify(tree)[0] == 0
    assert verify_published(home) == []

    code, _, said = cpb_here("restore")
    assert code == 3
    assert said.startswith(
        "FAILED forecasts/interval=1h/symbol=BTCUSDT/2025-02.parquet: it is missing, and the published"
    )
    assert "add --set-aside" in said
    assert not path.exists()
    stored = chain_path(home, "spot").read_bytes()
    assert cpb_here("restore", "--set-aside")[0] == 0
    assert [*verify_record(home), *verify_forecasts(home)] == []
    assert build(home)[1] == []
    assert append(home, "spot", "forecasts", next_rows(home)) == {BTC: 10}

    chain_path(home, "spot").write_bytes(stored)  # the backup
    path.write_bytes(rows)
    assert verify_forecasts(home) == []


@pytest.mark.parametrize("place", ["forecasts/chain.jsonl", "hub/chain.jsonl", "forecasts/chain.pending"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_folder_in_place_of_a_chain_is_named_and_nothing_waits_for_it(home, place, make):
    before, published = stored_record(home), published_rows(home)
    path, whole = home / place, home / "whole"
    if path.exists():
        path.rename(whole)
    make(path)
    result = verify_all(home, ["spot"])
    assert place in " ".join([*(damage.path for damage in result.damaged), *result.unchecked])
    (refused,) = append(home, "spot", "forecasts", next_rows(home)).values()
    assert place in str(refused)
    if make is os.mkdir and place == "hub/chain.jsonl":
        return  # no folder of cpb's
    _, reasons = build(home)
    assert reasons
    assert len(published_rows(home)) >= len(published) - (place == "hub/chain.jsonl")
    if path.is_fifo():
        path.unlink()
    elif path.is_dir():
        path.rmdir()
    if whole.exists():
        whole.replace(path)
    assert stored_record(home) == before
    assert verify_forecasts(home) == []
    if place == "forecasts/chain.jsonl" and make is os.mkfifo:
        path.unlink()
        make(path)
        assert restore_record(home, "spot").lines == 5
        assert stored_record(home) == before


def test_a_first_publication_has_no_record_of_which_rows_are_damaged(home, cpb_here):
    (home / "hub").rename(home / "away")
    damage(home, BTC_ROWS)
    tree, (reason,) = build(home)
    assert reason.endswith("restore it from a backup: until then BTCUSDT 1h stores nothing in that month")
    assert published_rows(home) == {}
    assert not (tree / "verify.py").exists()
    assert verify_published(home) == []

    # such a record, as others may have written it: nothing that does not work is named
    shutil.rmtree(tree)
    (home / "away").rename(tree)
    (tree / BTC_ROWS).unlink()
    code, _, said = cpb_here("restore")
    assert code == 3
    assert said.endswith("it is not among the published rows: restore it from a backup\n")


def test_another_chain_is_set_aside_only_on_request(home, cpb_here):
    before = stored_record(home)
    everything_lost(home)
    (home / "hub").rename(home / "away")
    store(home, [40], BTC)
    (home / "away").rename(home / "hub")
    other = stored_record(home)

    (found,) = verify_record(home)
    assert found.command == "cpb restore --set-aside"
    assert "`cpb restore --set-aside` brings that back" in build(home)[1][0]
    with pytest.raises(CpbError, match="--set-aside") as caught:
        restore_record(home, "spot")
    assert caught.value.code == "other-record"
    assert stored_record(home) == other

    code, said, _ = cpb_here(*found.command.split()[1:], "--json")
    done = json.loads(said.splitlines()[-1])
    assert (code, done["lines"], len(done["months"])) == (0, 5, 8)
    assert stored_record(home) == before
    aside = contents(home / "set-aside", "*.parquet") | contents(home / "set-aside", "chain.jsonl")
    assert sorted(aside.values()) == sorted(other.values())
    assert cpb_here("restore")[0] == 0


def test_the_record_comes_back_from_a_copy_of_the_repository(home, hub, cpb_here, tmp_path):
    """After the loss of the home, its folder `hub` included."""
    tree = home / "hub"
    copy = shutil.copytree(tree, tmp_path / "copy")
    before = stored_record(home)
    publish_tree(tree, "alice/cpb-models")
    for name in ("forecasts", "ledger", "hub"):
        shutil.rmtree(home / name)
    code, _, said = cpb_here("restore")
    assert code == 1
    assert "hf download USER/NAME --local-dir copy" in said
    assert "--record" in said

    store(home, [40], BTC)  # a new chain
    with pytest.raises(CpbError, match=r"cpb restore --record copy") as caught:
        publish_tree(build(home)[0], "alice/cpb-models")
    assert caught.value.code == "other-record"
    shutil.rmtree(home / "hub")
    assert cpb_here("restore", "--record", copy)[0] == 1
    assert cpb_here("restore", "--record", copy, "--set-aside")[0] == 0
    assert stored_record(home) == before
    publish_tree(build(home)[0], "alice/cpb-models")
    for name in ("chain.jsonl", BTC_ROWS, SCORES):
        assert hub.content("alice/cpb-models", name) == (copy / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda chain: chain.unlink(), "no published record in"),
        (lambda chain: chain.write_bytes(b"x" + chain.read_bytes()), "line 1 does not"),
        (lambda chain: chain.write_bytes(b""), "no published record in"),
    ],
)
def test_a_damaged_copy_restores_nothing(home, tmp_path, change, said, cpb_here):
    copy = shutil.copytree(home / "hub", tmp_path / "copy")
    change(copy / "chain.jsonl")
    shutil.rmtree(home / "forecasts")
    left = stored_record(home)
    code, _, error = cpb_here("restore", "--record", copy)
    assert (code, error.count("\n")) == (1, 1)
    assert said in error
    assert stored_record(home) == left


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"x"),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(gzip.compress(b'{"symbol": 1}\n' * 1200)),
        lambda path: path.write_bytes(gzip.compress(bytes(100_000_000))),
        lambda path: rewrite(path, lambda lines: [lines[1], lines[0], *lines[2:]]),
        lambda path: rewrite(path, lambda lines: lines[:-1]),
    ],
)
def test_published_rows_that_are_not_those_of_the_chain_are_not_stored(home, change, cpb_here):
    change(home / "hub" / BTC_ROWS)
    shutil.rmtree(home / "forecasts")
    code, _, said = cpb_here("restore")
    assert code == 3
    assert [line.split(":")[0] for line in said.splitlines()[:-1]] == [f"FAILED {BTC_MONTH}"]
    assert not (home / BTC_MONTH).exists()
    assert [damaged.path for damaged in verify_forecasts(home)] == [BTC_MONTH]


def test_markets_have_records_of_their_own_and_are_not_exchanged(home, cpb_here):
    um, sim = (SeriesId(market, "BTCUSDT", "1h") for market in ("um", "sim"))
    for series in (um, sim):
        store(home, [30], series)
        build(home, series.market)
    shutil.rmtree(home / "sim/forecasts")
    shutil.rmtree(home / "forecasts-um")
    assert (verify_record(home), verify_record(home, "um")[0].command) == ([], "cpb restore --market um")
    for market, folder in (("um", "hub"), ("um", "sim/hub"), ("sim", "hub"), ("spot", "sim/hub")):
        before = stored_record(home)
        code, _, said = cpb_here("restore", "--market", market, "--record", home / folder, "--set-aside")
        assert (code, said.count("\n")) == (1, 1)
        assert f"is not the record of market {market}: its " in said
        assert stored_record(home) == before
    assert not [*(home / "sim").rglob("chain.jsonl*")][1:]  # that of sim/hub
    for market in ("sim", "um"):
        assert cpb_here("restore", "--market", market)[0] == 0
        assert verify_record(home, market) == verify_forecasts(home, market) == []


def test_a_published_chain_that_was_cut_too_does_not_hide_the_loss(home):
    """Both chains end at the same line, and the published rows go on."""
    for path in (chain_path(home, "spot"), home / "hub/chain.jsonl"):
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    published = published_rows(home)
    _, (reason,) = build(home)
    assert "the published record stays as it is" in reason
    assert published_rows(home) == published


def test_rows_that_were_published_without_their_chain_are_not_replaced_by_a_new_record(home):
    everything_lost(home)
    (home / "hub/chain.jsonl").unlink()
    published = published_rows(home)
    (found,) = verify_record(home)
    assert found.reason == "it is missing, though hub has published rows"
    assert append(home, "spot", "forecasts", next_rows(home))[BTC].code == "other-record"
    assert len(build(home)[1]) == 1
    assert published_rows(home) == published


@pytest.mark.parametrize("damage", ["a bit", "half", "gone", "a line more"])
def test_a_damaged_published_chain_is_made_again_from_the_stored_one(home, damage):
    path = home / "hub/chain.jsonl"
    whole = path.read_bytes()
    changed = {
        "a bit": whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:],
        "half": whole[: len(whole) // 2],
        "gone": None,
        "a line more": whole + b"{}\n",
    }[damage]
    path.unlink() if changed is None else path.write_bytes(changed)
    assert verify_record(home) == []
    (found,) = verify_published(home)
    assert found.command == "cpb publish --dry-run"
    assert build(home)[1] == []
    assert path.read_bytes() == whole


def test_an_older_published_folder_is_brought_up_to_date(home):
    older = shutil.copytree(home / "hub", home.with_name("older"))
    store(home, [24 * 37], BTC)
    build(home)
    newest = published_rows(home)
    shutil.rmtree(home / "hub")
    older.rename(home / "hub")
    assert verify_record(home) == []
    assert build(home)[1] == []
    assert published_rows(home) == newest


@pytest.mark.parametrize("listed", ["missing", "empty", "a line cut"])
def test_a_lost_list_of_digests_is_made_again_and_nothing_of_the_record_goes(home, listed):
    path = home / "hub" / SUMS
    whole = path.read_bytes()
    path.unlink() if listed == "missing" else path.write_bytes(
        {"empty": b"", "a line cut": whole[:-9]}[listed]
    )
    (found,) = verify_published(home)
    assert (found.path, found.command) == (f"hub/{SUMS}", "cpb publish --dry-run")
    shutil.rmtree(home / "forecasts")
    published = published_rows(home)
    assert len(build(home)[1]) == 1
    assert (path.read_bytes(), published_rows(home)) == (whole, published)


def test_a_persons_readme_is_never_taken_for_the_card(tmp_path):
    model = champion(tmp_path / "model")
    tree = build_tree([model], tmp_path / "tree")
    card = (tree / "README.md").read_text()
    (tree / SUMS).unlink()
    for text in ("mine", card.replace("MIT", "BSD"), f"{card}mine"):
        (tree / "README.md").write_text(text)
        with pytest.raises(CpbError, match=r"README\.md was not written by cpb: move it elsewhere"):
            build_tree([model], tree)
        assert (tree / "README.md").read_text() == text
    (tree / "README.md").rename(tmp_path / "mine")
    os.mkfifo(tree / "README.md")  # which nobody writes
    with pytest.raises(CpbError, match=r"README\.md was not written by cpb: move it elsewhere"):
        build_tree([model], tree)
    (tree / "README.md").unlink()
    assert (build_tree([model], tree) / "README.md").read_text() == card


@pytest.mark.parametrize("place", range(0, 800, 37))
def test_any_flipped_bit_of_the_list_is_seen_and_the_command_makes_it_again(home, place):
    path = home / "hub" / SUMS
    whole = path.read_bytes()
    for bit in (0, 3, 5, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        assert {found.command for found in verify_published(home)} == {"cpb publish --dry-run"}
    assert build(home)[1] == []
    assert path.read_bytes() == whole


def test_a_line_break_of_another_kind_in_the_list_is_seen(home):
    path = home / "hub" / SUMS
    path.write_bytes(path.read_bytes().replace(b"\n", b"\x0b", 1))
    assert [found.path for found in verify_published(home)] == [f"hub/{SUMS}"]


@pytest.mark.skipif(not shutil.which("mount"), reason="a small tmpfs is needed")
def test_on_a_full_disk_the_published_folder_stays_and_free_space_is_the_remedy(home, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        small = shutil.copytree(home, disk / "data")
        store(small, [24 * 37], BTC)
        filler, published = disk / "filler", contents(small / "hub", "*.*")
        model = champion(tmp_path / "model")
        for free_kb in (0, 8, 40, 150, 400):
            filler.write_bytes(b"")
            filler.write_bytes(bytes(shutil.disk_usage(disk).free - free_kb * 1024))
            with pytest.raises(CpbError, match="free some there, then run the same command again") as caught:
                build_tree([model], small / "hub", REPO, small)
            assert (caught.value.code, caught.value.field) == ("disk-full", str(small / "hub"))
            assert contents(small / "hub", "*.*") == published
            filler.unlink()
            assert [path.name for path in small.glob(".hub*")] == []
        build_tree([model], small / "hub", REPO, small)
        assert contents(small / "hub", "*.*") != published
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_pending_line_of_another_time_is_moved_away_on_request(home, cpb_here):
    before = stored_record(home)
    pending_path(home, "spot").write_bytes(
        Line(3, "2025-01-01T00:00:00.000000Z", "scores", (), "0" * 64).encode()
    )
    shutil.rmtree(home / "forecasts/interval=1h/symbol=ETHUSDT")
    code, _, said = cpb_here("restore")
    assert code == 3
    assert "chain.pending is of another time" in said
    assert cpb_here("restore", "--set-aside")[0] == 0
    assert stored_record(home) == before
    assert len(contents(home / "set-aside", "chain.pending")) == 1


def lines(numbers, previous="0" * 64):
    made = []
    for number in numbers:
        raw = Line(len(made) + 1, f"{number:04}", "scores", (), previous).encode()
        previous = json.loads(raw)["hash"]
        made.append(raw)
    return made


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8), st.lists(st.integers(0, 9), max_size=4), st.randoms()
)
def test_a_merged_chain_begins_with_the_published_one_and_keeps_what_follows_it(published, since, random):
    theirs, both = lines(published), lines([*published, *since])
    kept = [raw for raw in theirs if random.random() < 0.7]
    noise = [b"", b"a note\n", theirs[-1][:-9] + b"\n"]
    stored = b"".join(raw + random.choice(noise) for raw in [*kept, *both[len(theirs) :]])
    assert merged_chain(stored, b"".join(theirs)) == b"".join(both)
    other = lines([random.randint(10, 19), *since])
    assert merged_chain(b"".join(other), b"".join(theirs)) is None


def test_a_deleted_month_at_publish_is_a_sentence_with_what_to_do(home, cpb_here):
    (home / SCORES.replace(".jsonl.gz", ".parquet")).unlink()
    _, (reason,) = build(home)
    assert reason.startswith(
        "ledger/interval=1h/symbol=BTCUSDT/2025-01.parquet is missing, though the chain has rows"
    )
    assert cpb_here("restore")[0] == 0
    assert build(home)[1] == []
    with pytest.raises(DamagedError):
        restore_record(home, "um", home / "hub")


def test_a_damaged_last_copy_names_the_repository(home):
    shutil.rmtree(home / "forecasts")
    for name in ("verify.py", "README.md", BTC_ROWS):
        (home / "hub" / name).write_bytes(b"x")
    fetch = "hf download USER/NAME --local-dir copy && cpb restore --record copy"
    publish_again = "cpb publish --dry-run"
    assert {found.path: found.command for found in verify_published(home)} == {
        "hub/README.md": publish_again,
        "hub/verify.py": publish_again,
        f"hub/{BTC_ROWS}": fetch,
    }
    assert len(build(home)[1]) == 1
    assert (home / "hub" / BTC_ROWS).read_bytes() == b"x"
    assert verify(home / "hub")[0] == 1


def test_a_folder_that_a_killed_writer_left_aside_is_named_and_comes_back(home):
    """On a file system that cannot exchange two folders in one step."""
    published, aside = published_rows(home), home / ".hub.old.0123456789ab"
    (home / "hub").rename(aside)
    (found,) = verify_published(home)
    assert (found.path, found.command) == ("hub", "cpb publish --dry-run")
    assert aside.name in found.reason
    shutil.rmtree(home / "forecasts")
    assert len(build(home)[1]) == 1
    assert published_rows(home) == published
    assert not aside.exists()


@pytest.mark.parametrize("step", range(0, 22, 3))
def test_a_restore_that_was_interrupted_goes_on(home, monkeypatch, step):
    """At any of its writes; what was stored since the record was published stays."""
    store(home, [24 * 37], BTC)
    before, seen, replace = stored_record(home), [], Path.replace
    everything = [path for *_, path in files_of_market(home, "spot") if "2025-02" not in path.name]
    for path in everything:
        path.unlink()
    change_lines(lambda lines: [*lines[:2], *lines[3:]])(home)

    def stopped(path, target):
        seen.append(path)
        if len(seen) > step:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stopped)
        with suppress(KeyboardInterrupt):
            restore_record(home, "spot")
    assert restore_record(home, "spot").failures == []
    assert stored_record(home) == before
    assert verify_forecasts(home) == verify_record(home) == []


def test_a_published_chain_is_read_from_its_end(home, monkeypatch):
    """It is looked at before each batch, and grows for years."""
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} is read as a whole"))
    assert loss_sentence(home, "spot") == ""


@pytest.mark.parametrize("is_published", [False, True])
def test_after_a_clock_that_was_once_ahead_the_way_out_that_is_named_works(home, cpb_here, is_published):
    chain = chain_path(home, "spot")
    before, raw = stored_record(home), last_line(chain)
    line = Line(6, "2999-01-01T00:00:00.000000Z", "scores", (), line_hash(raw)).encode()
    chain.write_bytes(chain.read_bytes() + line)
    if is_published:
        assert build(home)[1] == []

    (refused,) = append(home, "spot", "forecasts", next_rows(home)).values()
    assert (refused.code, "set the clock" in str(refused)) == ("clock", True)
    if is_published:
        assert str(refused).endswith(f"move forecasts, ledger, hub out of {home} to begin a new record")
        for name in ("forecasts", "ledger", "hub"):
            (home / name).rename(home.with_name(name))
    else:
        assert str(refused).endswith("`cpb restore --set-aside` goes back to the published record")
        assert cpb_here("restore", "--set-aside")[0] == 0
        assert stored_record(home) == before
    assert append(home, "spot", "forecasts", next_rows(home)) == {BTC: 10}
    assert verify_forecasts(home) == verify_record(home) == []
