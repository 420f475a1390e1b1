"""No credential leaves through a URL that is shown or stored."""

from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.storage.urls import local_path, public_url, without_credentials


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
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3D%7Bx%7D%3BUID%3Dsa%3BPWD%3Dhush", "mssql+pyodbc:///?***"),
        ("mssql+pyodbc://?odbc_connect=DRIVER={x};UID=sa;PWD=hu&sh", "mssql+pyodbc://?***"),
        ("mssql+pyodbc://sa:hush@host/db?driver=ODBC+18", "mssql+pyodbc://host/db?driver=ODBC+18"),
        ("mssql://host/db;PWD=hush;x=1", "mssql://host/db;PWD=***;x=1"),
        ("databricks://dapi0123456789abcdef", "databricks://***"),
        ("databricks+connector://token:dapi01@host:443/default?http_path=/x", "databricks+connector://***"),
        ("databricks-uc://profile", "databricks-uc://***"),
        ("http://me%3Ahush%40host/x", "http://***"),
        ("http://me%253Ahush%2540host/x", "http://***"),
        ("postgresql://%2Fvar%2Frun/db", "postgresql://%2Fvar%2Frun/db"),
        ("postgresql://host/db?user=me&p%61ssword=hush", "postgresql://host/db?user=me&password=***"),
        ("postgresql://host/db?password%3Dhush", "postgresql://host/db?***"),
        ("https://host/#access_token=hush&x=1", "https://host/#access_token=***&x=1"),
        ("https://host/?token=hu#sh", "https://host/?token=***#***"),
        ("https://host/?next=http%3A%2F%2Fa%3Fpassword%3Dhush", "https://host/?next=***"),
        ("https://host/?api_key=hush;x", "https://host/?***"),
        ("https://host/?key=hush&q=1", "https://host/?key=***&q=1"),
    ],
)
def test_credentials_are_cut(url, shown):
    assert public_url(url) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "login failed (SERVER=db;UID=sa;PWD=hush;Encrypt=no)",
            "login failed (SERVER=db;UID=sa;PWD=***;Encrypt=no)",
        ),
        ("PWD={hu;sh} x", "PWD=*** x"),
        ("host=db password='hu sh' user=me", "host=db password=*** user=me"),
        ("odbc_connect=DRIVER%3D%7Bx%7D%3BPWD%3Dhush failed", "odbc_connect=*** failed"),
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer ***"),
        ("token hf_abcdefghijkl is invalid", "token *** is invalid"),
        ("set HF_TOKEN or run `hf auth login`", "set HF_TOKEN or run `hf auth login`"),
        ("check the network or HF_ENDPOINT", "check the network or HF_ENDPOINT"),
        ("the Hub token contains blanks", "the Hub token contains blanks"),
    ],
)
def test_secrets_outside_of_a_url_are_hidden(text, shown):
    assert without_credentials(text) == shown


PLACES = [
    "http://me:{quoted}@host:5000/x",
    "postgresql+psycopg2://me:{quoted}@db/x?sslmode=require",
    "postgresql://db/x?user=me&password={quoted}",
    "mysql://db/x?passwd={quoted}&ssl=1",
    "s3://bucket/key?X-Amz-Signature={quoted}&X-Amz-Date=1",
    "https://host/x?access_token={quoted}#top",
    "https://host/x#access_token={quoted}",
    "mssql+pyodbc:///?odbc_connect={odbc}",
    "mssql+pyodbc:///?odbc_connect={odbc}&x=1",
    "mssql+pyodbc://host/db?driver=x&PWD={quoted}",
    "databricks://{quoted}",
    "databricks://token:{quoted}@host:443/default?http_path=/sql",
    "http://me%3A{quoted}%40host/x",
    "PWD={{{secret}}}",
    "password='{secret}'",
]


@given(
    core=st.text("abcXYZ0189!$*()_+.,-:@/?#&=% ~^|", min_size=4, max_size=16),
    place=st.sampled_from(PLACES),
    words=st.sampled_from(["{}", "the MLflow store {} cannot be used: no route", "('{}',)", "<{}>"]),
)
def test_no_secret_is_left_in_any_place(core, place, words):
    secret = f"Zq{core.strip()}qZ"
    quoted = quote(secret, safe="")
    odbc = quote(f"DRIVER={{ODBC 18}};SERVER=db;UID=sa;PWD={secret}", safe="")
    url = place.format(secret=secret, quoted=quoted, odbc=odbc)
    for text in (without_credentials(words.format(url)), public_url(url) if "://" in place else ""):
        assert secret not in unquote(unquote(text))
        assert "Zq" not in unquote(unquote(text))
        assert "qZ" not in unquote(unquote(text))
    assert without_credentials(without_credentials(url)) == without_credentials(url)


@given(st.text(max_size=60))
def test_any_text_can_be_shown(text):
    public_url(text)
    public_url(f"http://{text}")
    without_credentials(f"{text} http://{text}")


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
