"""How a browser gets into `cpb ui`: by a link that is good once and for a minute, then by a cookie."""

import asyncio

import httpx
import pytest

from flows.ops import guard as module
from flows.ops.guard import Guard, SignIn
from flows.ops.listeners import PAGE, PREFECT, TRACKING, UI

URL = "http://127.0.0.1:5000"


async def app(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"runs"})


@pytest.fixture
def sign_in():
    return SignIn("cpb:s3cret", cookie="cpb-5000", landing="/#/runs")


def browse(sign_in, *requests, cookies=None):
    """The answers that a browser with a cookie jar gets: (method, path) each."""

    async def asked():
        transport = httpx.ASGITransport(Guard(app, UI, sign_in=sign_in))
        async with httpx.AsyncClient(transport=transport, base_url=URL, cookies=cookies) as client:
            return [await client.request(method, path) for method, path in requests]

    return asyncio.run(asked())


def test_the_link_signs_in_once_and_the_cookie_goes_on(sign_in):
    link = sign_in.new_link(URL)
    entered, page, again = browse(sign_in, ("GET", link), ("GET", "/"), ("GET", link))
    assert (entered.status_code, entered.headers["location"]) == (303, "/#/runs")
    cookie = entered.headers["set-cookie"]
    assert cookie.startswith("cpb-5000=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "no-store" in entered.headers["cache-control"]
    assert entered.headers["referrer-policy"] == "no-referrer"
    assert (page.status_code, page.text) == (200, "runs")
    assert again.status_code == 303  # this browser is in already
    (elsewhere,) = browse(sign_in, ("GET", link))
    assert elsewhere.status_code == 403
    assert "set-cookie" not in elsewhere.headers


def test_the_link_ends_after_a_minute(sign_in, monkeypatch):
    link = sign_in.new_link(URL)
    now = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + module.CODE_S + 1)
    assert module.CODE_S == 60
    assert [answer.status_code for answer in browse(sign_in, ("GET", link), ("GET", "/"))] == [403, 401]


def test_a_person_with_an_old_link_reads_a_sentence_that_says_what_to_do(sign_in):
    link = sign_in.new_link(URL)
    browse(sign_in, ("GET", link))
    (answer,) = browse(sign_in, ("GET", link))
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "older than a minute" in answer.text
    assert f"start it again, or open {URL}/ and give the user and the password" in answer.text
    assert "{" not in answer.text


@pytest.mark.parametrize("query", ["", "?code=", "?code=x", "?code=s3cret", "?code=%00"])
def test_a_guessed_code_does_not(sign_in, query):
    sign_in.new_link(URL)
    assert browse(sign_in, ("GET", f"/sign-in{query}"))[0].status_code == 403


def test_only_get_spends_a_code(sign_in):
    link = sign_in.new_link(URL)
    answers = browse(sign_in, ("HEAD", link), ("POST", link), ("GET", link))
    assert [answer.status_code for answer in answers] == [403, 403, 303]


@pytest.mark.parametrize("cookies", [{"cpb-5000": ""}, {"cpb-5000": "guess"}, {"other": "x"}])
def test_a_wrong_cookie_is_none(sign_in, cookies):
    answer = browse(sign_in, ("GET", "/"), cookies=cookies)[0]
    assert answer.status_code == 401
    assert "s3cret" not in answer.text


def test_a_server_without_a_cookie_gives_no_link():
    plain = SignIn("cpb:s3cret")
    assert browse(plain, ("GET", "/sign-in?code="), ("GET", "/"))[0].status_code == 401
    assert browse(plain, ("GET", "/"), cookies={"": ""})[0].status_code == 401


def test_the_table_says_who_asks_for_a_password():
    for listener in (UI, TRACKING):
        with pytest.raises(ValueError, match="asks for a password"):
            Guard(app, listener)
    for listener in (PAGE, PREFECT):
        with pytest.raises(ValueError, match="asks for a password"):
            Guard(app, listener, sign_in=SignIn("cpb:x"))
