"""No credential leaves through a URL that is shown or stored."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.storage.files import local_path, public_url, without_credentials


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:pw@host:8080/path?a=1#x", "http://host:8080/path?a=1#x"),
        ("postgresql+psycopg2://u:p%40w@db/x", "postgresql+psycopg2://db/x"),
        (
            "s3://bucket/key?X-Amz-Signature=abc&X-Amz-Date=1",
            "s3://bucket/key?X-Amz-Signature=***&X-Amz-Date=1",
        ),
        ("https://h/?access_token=t&q=1", "https://h/?access_token=***&q=1"),
        ("sqlite:///mlruns/mlflow.db", "sqlite:///mlruns/mlflow.db"),
        ("/a/folder", "/a/folder"),
        ("sim", "sim"),
        ("http://token@host", "http://host"),
        ("http://[broken@x", "http://x"),
        ("http://user:p@ss@host/a", "http://host/a"),
        ("http://user:p@ss/word@host/x", "http://***"),
        ("http://user:12/ss@host/x", "http://***"),
        ("http://user:12?ss@host/x", "http://***"),
        ("http://user:12#s/s@host/x", "http://***"),
        ("http://host/a@b", "http://host/a@b"),
        ("http://user:p/ss@host/x", "http://***"),
        ("http://user:#pass@host/x", "http://host/x"),
        ("http://user:?pass@host/x", "http://***"),
        ("http://[::1]:5000/x", "http://[::1]:5000/x"),
        ("http://[::1]/x", "http://[::1]/x"),
        ("sqlite:////tmp/mlflow.db", "sqlite:////tmp/mlflow.db"),
    ],
)
def test_credentials_are_cut(url, shown):
    assert public_url(url) == shown


def test_a_message_keeps_its_words():
    text = "cannot connect to postgresql://me:secret@db:5432/x (refused), nor http://a:b@c/"
    assert without_credentials(text) == "cannot connect to postgresql://db:5432/x (refused), nor http://c/"


@given(st.from_regex(r"[a-z0-9!$%&*()_+=.,;-]{6,20}", fullmatch=True))
def test_no_password_is_left(password):
    """Not even where it holds what ends a URL's host, before or behind any character that may stand in one."""
    secret = f"Zq{password}Zq"
    assert secret not in public_url(f"http://user:{secret}@host/path")
    assert password not in public_url(f"http://user:1@/{password}@host/path")
    assert password not in public_url(f"http://user:80/{password}@host:80/path")


def test_local_artifacts_are_told_from_remote_ones(tmp_path):
    assert local_path(tmp_path.as_uri()) == tmp_path
    assert local_path(str(tmp_path)) == tmp_path
    assert local_path("mlflow-artifacts:/1/x") is None
    assert local_path("s3://bucket/x") is None
    assert local_path("file://other-host/x") is None
    assert local_path("file://localhost/a%20b#c") == Path("/a b")
    assert local_path("/a%20b#c") == Path("/a b#c")
