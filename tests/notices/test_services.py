"""Which services are told: from the environment and from a file that only its owner can read."""

import pytest

from schemas.errors import CpbError
from tasks.notices.services import heartbeat_url, services


def names(home):
    return [one.name for one in services(home)]


def test_without_a_setting_nobody_is_told(home):
    assert services(home) == []
    assert heartbeat_url("train-all") == ""


def test_urls_are_separated_by_blanks_commas_and_lines_and_may_hold_commas(home, monkeypatch):
    mail = "mailto://u:p@example.org?to=a@example.org,b@example.org"
    monkeypatch.setenv("CPB_NOTIFY", f" json://one/x, {mail},tgram://1/2\n\tslack://a/b/c,")
    assert [one.url for one in services(home)] == ["json://one/x", mail, "tgram://1/2", "slack://a/b/c"]
    assert names(home) == ["json (service 1)", "mailto (service 2)", "tgram (service 3)", "slack (service 4)"]
    assert "u:p" not in repr(services(home))


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_the_home_that_is_its_owners_alone_is_read_too(home, monkeypatch, mode):
    monkeypatch.setenv("CPB_NOTIFY", "json://one")
    file = home / "notify"
    file.write_text("# on call\nslack://a/b/c\n\njson://one\n")
    file.chmod(mode)
    assert names(home) == ["json (service 1)", "slack (service 2)"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o660])
def test_a_file_that_others_may_read_or_write_is_refused_in_one_sentence(home, mode):
    file = home / "notify"
    file.write_text("slack://secret/b/c\n")
    file.chmod(mode)
    with pytest.raises(CpbError) as refused:
        services(home)
    assert (refused.value.code, refused.value.field) == ("notify-file", str(file))
    assert "secret" not in str(refused.value)
    assert "chmod 600" in str(refused.value)


def test_another_file_can_be_named_and_must_then_exist(home, monkeypatch, tmp_path):
    monkeypatch.setenv("CPB_NOTIFY_FILE", str(tmp_path / "else where"))
    with pytest.raises(CpbError) as refused:
        services(home)
    assert refused.value.code == "notify-file"
    (tmp_path / "else where").write_text("json://one")
    (tmp_path / "else where").chmod(0o600)
    assert names(home) == ["json (service 1)"]
    (tmp_path / "else where").unlink()
    (tmp_path / "else where").mkdir()
    with pytest.raises(CpbError):
        services(home)


def test_what_is_no_url_is_refused_without_being_shown(home, monkeypatch):
    monkeypatch.setenv("CPB_NOTIFY", "json://one my-password")
    with pytest.raises(CpbError) as refused:
        services(home)
    assert (refused.value.code, refused.value.field) == ("notify-url", "CPB_NOTIFY")
    assert "my-password" not in str(refused.value)
    assert "entry 2" in str(refused.value)
