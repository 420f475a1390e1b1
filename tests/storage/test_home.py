"""A home says which version of its layout it has; another one is refused, in one sentence, by whatever opens it."""

import pytest
from typer.testing import CliRunner

from schemas.errors import CpbError
from tasks.storage.home_version import VERSION, VERSION_FILE, check_home, mark_home


def test_a_new_home_gets_the_version_once(tmp_path):
    assert check_home(tmp_path / "none yet") == tmp_path / "none yet"
    assert not (tmp_path / "none yet").exists()

    mark_home(tmp_path)

    assert (tmp_path / VERSION_FILE).read_text() == f"{VERSION}\n"
    before = (tmp_path / VERSION_FILE).stat().st_mtime_ns
    mark_home(tmp_path)
    assert (tmp_path / VERSION_FILE).stat().st_mtime_ns == before


@pytest.mark.parametrize("content", ["1", "", "\N{SNOWMAN} " * 1000, f"{VERSION}J", "\033]0;title\a"])
def test_a_home_of_another_version_is_refused(tmp_path, content):
    (tmp_path / VERSION_FILE).write_text(content)
    with pytest.raises(CpbError) as caught:
        check_home(tmp_path)
    assert caught.value.code == "home-version"
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("command", ["ingest --source sim --coins BTC", "verify", "prune", "ledger"])
def test_commands_refuse_it_and_change_nothing(tmp_path, monkeypatch, command):
    from flows.cli.app import _app

    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / VERSION_FILE).write_text("99\n")

    done = CliRunner().invoke(_app(), command.split())

    assert getattr(done.exception, "code", "") == "home-version"
    assert [path.name for path in tmp_path.rglob("*")] == ["data", VERSION_FILE]
