"""The page in a folder, and in a Space: what changed is written, what cpb wrote is replaced or removed, no more."""

import errno
import json
import threading

import pytest

from schemas.errors import CpbError
from tasks.hub import page as pages
from tasks.hub.page import write_page
from tasks.hub.publish import publish_page
from tasks.hub.tree import read_sums
from tests.tools.fake_hub import TOKEN, Repo, blob_oid

FILES = {"index.html": b"<html>", "api/overview.json": b"{}", "api/forecast/BTCUSDT/1h.json": b"[1]"}
SPACE = "alice/prices"


def files_of(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_is_brought_up_to_date_file_by_file(tmp_path):
    folder = tmp_path / "new" / "site"
    assert write_page(FILES, folder, "spot", nightly=True)
    there = files_of(folder)
    assert there.keys() == FILES.keys() | {"SHA256SUMS", "page.json"}
    assert (
        json.loads(there["page.json"]).items() >= {"cpb": "page", "market": "spot", "nightly": True}.items()
    )

    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert not write_page(FILES, folder, "spot", nightly=True)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before

    (folder / "CNAME").write_text("prices.example.org")  # a person's own
    newer = {"index.html": b"<html>", "api/overview.json": b"{1}"}
    assert write_page(newer, folder, "spot")
    there = files_of(folder)
    assert there.keys() == newer.keys() | {"SHA256SUMS", "page.json", "CNAME"}
    assert there["api/overview.json"] == b"{1}"
    assert (folder / "index.html").stat().st_mtime_ns == before[folder / "index.html"]
    assert not (folder / "api" / "forecast").exists()
    (folder / "api" / "overview.json").write_text("damaged")
    assert write_page(newer, folder, "spot")
    assert files_of(folder)["api/overview.json"] == b"{1}"


def a_folder_of_a_persons(folder):
    (folder / "thesis.txt").write_text("years")


def a_page_of_another_market(folder):
    write_page(FILES, folder, "um")


def a_file_where_a_new_one_belongs(folder):
    write_page({"index.html": b""}, folder, "spot")
    (folder / "api").mkdir()
    (folder / "api/overview.json").write_text("mine")


def a_link_where_a_file_belongs(folder):
    write_page({"index.html": b""}, folder, "spot")
    (folder.parent / "elsewhere").mkdir()
    (folder / "api").symlink_to(folder.parent / "elsewhere")


def a_list_that_leads_elsewhere(folder):
    write_page(FILES, folder, "spot")
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'0' * 64}  ../precious.txt\n")


def a_list_with_the_whole_path_of_another_file(folder):
    write_page(FILES, folder, "spot")
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'0' * 64}  {folder.parent / 'precious.txt'}\n")


def a_list_with_a_folder(folder):
    write_page(FILES, folder, "spot")
    with (folder / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'0' * 64}  api\n")


def a_list_that_is_none(folder):
    write_page(FILES, folder, "spot")
    (folder / "SHA256SUMS").write_text("no list")


@pytest.mark.parametrize(
    "make",
    [
        a_folder_of_a_persons,
        a_page_of_another_market,
        a_file_where_a_new_one_belongs,
        a_link_where_a_file_belongs,
        a_list_that_leads_elsewhere,
        a_list_with_the_whole_path_of_another_file,
        a_list_with_a_folder,
        a_list_that_is_none,
    ],
)
def test_what_is_not_provably_cpbs_stays(tmp_path, make):
    folder = tmp_path / "site"
    folder.mkdir()
    (tmp_path / "precious.txt").write_text("precious")
    make(folder)
    before = files_of(tmp_path)
    with pytest.raises(CpbError) as caught:
        write_page({**FILES, "index.html": b"<new>"}, folder, "spot")
    assert str(folder) in str(caught.value) + caught.value.field
    assert files_of(tmp_path) == before


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "site").write_text("mine")
    with pytest.raises(CpbError, match="site is a file, so nothing was written: name a folder"):
        write_page(FILES, tmp_path / "site", "spot")
    assert (tmp_path / "site").read_text() == "mine"


@pytest.mark.parametrize("after", range(1, 7))
def test_what_was_killed_midway_is_finished_by_the_next_run(tmp_path, monkeypatch, after):
    folder = tmp_path / "site"
    write_page({"index.html": b"<old>", "old.json": b"0"}, folder, "spot")
    written = []

    def write(path, data, really=pages.write_bytes):
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(path)
        really(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(pages, "write_bytes", write)
        with pytest.raises(KeyboardInterrupt) if after < 6 else _nothing():
            write_page(FILES, folder, "spot")
    newer = {**FILES, "api/overview.json": b"{2}"}
    assert write_page(newer, folder, "spot")
    assert {**files_of(folder), "SHA256SUMS": b"", "page.json": b""} == {
        **newer,
        "SHA256SUMS": b"",
        "page.json": b"",
    }


def test_what_a_full_disk_leaves_in_a_new_folder_has_no_start(tmp_path, monkeypatch):
    written = []

    def write(path, data, really=pages.write_bytes):
        if len(written) == 2 + len(FILES) - 1:  # page.json, SHA256SUMS, and all of the page but one
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        really(path, data)

    monkeypatch.setattr(pages, "write_bytes", write)
    with pytest.raises(OSError, match="No space left"):
        write_page(FILES, tmp_path, "spot")
    assert files_of(tmp_path).keys() == FILES.keys() - {"index.html"} | {"SHA256SUMS", "page.json"}


def test_drafts_that_a_kill_left_are_removed_and_no_other_file(tmp_path):
    folder, killed = tmp_path / "site", "0123456789ab"
    folder.mkdir()
    (folder / f".page.json.{killed}").touch()
    assert write_page(FILES, folder, "spot")
    assert set(files_of(folder)) == {*FILES, "SHA256SUMS", "page.json"}
    for name in (f"api/.overview.json.{killed}", f".mine.{killed}", ".htaccess"):
        (folder / name).touch()
    assert not write_page(FILES, folder, "spot")
    assert set(files_of(folder)) == {*FILES, "SHA256SUMS", "page.json", f".mine.{killed}", ".htaccess"}


def test_of_two_at_once_the_second_begins_when_the_first_has_ended(tmp_path, monkeypatch):
    folder, begun = tmp_path / "site", []

    def write(path, data, really=pages.write_bytes):
        if not begun:
            second = {"index.html": b"2", "second.json": b"2"}
            begun.append(threading.Thread(target=write_page, args=(second, folder, "spot")))
            begun[0].start()
            begun[0].join(0.5)
        really(path, data)

    monkeypatch.setattr(pages, "write_bytes", write)
    write_page({"index.html": b"1", "first.json": b"1"}, folder, "spot")
    begun[0].join()
    assert sorted(files_of(folder)) == ["SHA256SUMS", "index.html", "page.json", "second.json"]
    assert sorted(read_sums(folder)) == ["index.html", "second.json"]


def _nothing():
    from contextlib import nullcontext

    return nullcontext()


def committed(hub):
    return {name: hub.content(SPACE, name) for name in hub.repos[SPACE].files if name != ".gitattributes"}


def sent(hub, number):
    """The names of the files that a commit changed."""
    (_, before), (_, after) = hub.repos[SPACE].commits[number - 1 : number + 1]
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_a_space_has_one_commit_of_what_changed(hub):
    done = publish_page(FILES, SPACE, "spot", nightly=True)
    assert done.sent
    assert ("POST", "/api/repos/create") in hub.requests
    assert any(path.startswith(f"/api/spaces/{SPACE}/commit/") for _, path in hub.requests)
    assert committed(hub).keys() == FILES.keys() | {"SHA256SUMS", "page.json"}
    assert json.loads(committed(hub)["page.json"])["nightly"] is True

    again = publish_page(FILES, SPACE, "spot")
    assert (again.sent, again.oid) == (False, done.oid)
    assert len(hub.repos[SPACE].commits) == 2

    theirs = {"notes.txt": ("file", blob_oid(b"theirs"))}
    hub.blobs[blob_oid(b"theirs")] = b"theirs"
    hub.repos[SPACE].commit(hub.repos[SPACE].files | theirs)
    newer = {"index.html": b"<html>", "api/overview.json": b"{1}"}
    assert publish_page(newer, SPACE, "spot").sent
    assert sent(hub, 3) == {"api/overview.json", "api/forecast/BTCUSDT/1h.json", "SHA256SUMS", "page.json"}
    assert committed(hub).keys() == newer.keys() | {"SHA256SUMS", "page.json", "notes.txt"}


def test_a_commit_in_between_is_kept_and_a_fault_of_the_hub_is_waited_for(hub):
    publish_page(FILES, SPACE, "spot")
    hub.blobs[blob_oid(b"theirs")] = b"theirs"
    hub.on_preupload.append(
        lambda repo: repo.commit(repo.files | {"notes.txt": ("file", blob_oid(b"theirs"))})
    )
    hub.faults.append(("POST", "/commit/main", 503))
    assert publish_page({**FILES, "index.html": b"<new>"}, SPACE, "spot", pause=0.01).sent
    assert committed(hub)["notes.txt"] == b"theirs"
    assert committed(hub)["index.html"] == b"<new>"


def test_a_space_of_other_files_or_another_market_is_left_as_it_is(hub):
    publish_page(FILES, SPACE, "um")
    hub.repos["alice/app"] = type(hub.repos[SPACE])()
    hub.blobs[blob_oid(b"app")] = b"app"
    hub.repos["alice/app"].commit({"app.py": ("file", blob_oid(b"app"))})
    for space in (SPACE, "alice/app"):
        with pytest.raises(CpbError) as caught:
            publish_page({**FILES, "index.html": b"<new>"}, space, "spot")
        assert caught.value.code == "foreign-folder"
        assert space in str(caught.value)
    assert len(hub.repos["alice/app"].commits) == 1
    assert len(hub.repos[SPACE].commits) == 2


def commit(hub, space, **files):
    """A commit of a person's own; `_` stands for the dot of a name."""
    repo = hub.repos.setdefault(space, Repo())
    named = {name.replace("_", "."): data for name, data in files.items()}
    hub.blobs |= {blob_oid(data): data for data in named.values()}
    there = repo.files if repo.commits else {}
    repo.commit(there | {name: ("file", blob_oid(data)) for name, data in named.items()})


def test_a_new_space_is_taken_with_the_hubs_template_and_none_that_a_person_has_changed(hub):
    for space in ("alice/new", "alice/site"):
        commit(hub, space, README_md=b"---", index_html=b"<p>hello", style_css=b"p {}")
    commit(hub, "alice/site", index_html=b"<h1>my own site")

    assert publish_page(FILES, "alice/new", "spot").sent
    with pytest.raises(CpbError, match="alice/site is neither empty nor cpb's page"):
        publish_page(FILES, "alice/site", "spot")
    assert hub.content("alice/site", "index.html") == b"<h1>my own site"


def test_a_persons_file_in_a_space_is_not_replaced(hub):
    publish_page(FILES, SPACE, "spot")
    commit(hub, SPACE, notes_html=b"mine")
    with pytest.raises(CpbError, match=r"notes\.html in alice/prices was not written by cpb") as caught:
        publish_page({**FILES, "notes.html": b"<new>"}, SPACE, "spot")
    assert caught.value.code == "foreign-folder"
    assert hub.content(SPACE, "notes.html") == b"mine"


def test_a_private_space_is_made_private_and_a_public_one_never_taken_for_it(hub):
    publish_page(FILES, SPACE, "spot", private=True)
    assert hub.repos[SPACE].private
    publish_page(FILES, "alice/public", "spot")
    with pytest.raises(CpbError) as caught:
        publish_page({**FILES, "index.html": b"secret"}, "alice/public", "spot", private=True)
    assert caught.value.code == "public"
    assert b"secret" not in hub.blobs.values()


def test_a_refusal_of_the_hub_is_a_sentence_without_the_token(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(CpbError) as caught:
        publish_page(FILES, SPACE, "spot")
    assert caught.value.code == "hub-401"
    assert "hf_wrong" not in str(caught.value)
    assert TOKEN not in str(caught.value)
