"""REST as the last resort: what it refuses is not confirmed, what it makes up is not believed."""

import json
from collections import Counter

import pytest

from tasks.market import simulator
from tasks.market.client import HttpSource
from tasks.market.ingest import update_store
from tasks.market.layout import source_file
from tests.tools.folder_mirror import FolderMirror
from tests.tools.market_tools import FAST, build, csv_of, key, lines, put, scope

MONTH = source_file(key(), "2024-02")
HELD, LACKING = 24 * 19, 24 * 10


def rows(period):
    """The candles of a month as REST has them."""
    table = [line.split(",") for line in csv_of(source_file(key(), period)).decode().splitlines()]
    return [[int(c[0]), *c[1:6], int(c[6]), c[7], int(c[8]), *c[9:]] for c in table]


@pytest.fixture
def asked(tmp_path):
    """Ingests BTC, whose February is cut, from a server with the given REST; counts its questions."""
    build(tmp_path / "mirror", ["BTCUSDT"])
    put(tmp_path / "mirror", MONTH, b"".join(lines(csv_of(MONTH))[:HELD]))

    def run(answer, **options):
        count = Counter()

        def hook(handler, name, query):
            count["rest" if name.startswith("api") else "zip" if name.endswith(".zip") else "other"] += 1
            return answer(query) if name.startswith("api") else None

        with simulator.serve(FolderMirror(tmp_path / "mirror"), hook) as url:
            report = update_store(
                scope(tmp_path / "home", url, "BTC", **options), limits=FAST, tail="as_of" in options
            )
        return report, count

    return run


def told(body):
    return lambda query: (200, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def honest(query):
    start, end = int(query["startTime"]), int(query["endTime"])
    return told([r for r in rows("2024-02") if start <= r[0] <= end])(query)


NONSENSE = {
    "the oldest candles, whatever is asked": rows("2024-01")[:1000] * 2,
    "one endless candle": [rows("2024-02")[0]] * 1000,
    "an error as an object": {"code": -1000, "msg": "unknown"},
    "no JSON": b"<html>",
    "too deep a JSON": b"[" * 100_000,
    "lists of something else": [[1, 2]],
    "times that are no integers": [[float(r[0]), *r[1:]] for r in rows("2024-02")],
    "times that are truths": [[True, *r[1:]] for r in rows("2024-02")],
    "a year without end": [[10**30, *r[1:]] for r in rows("2024-02")[:1]],
}


@pytest.mark.parametrize("answer", [*NONSENSE, 418, 451, 403, 500])
def test_what_rest_did_not_say_is_not_confirmed_and_asked_again(asked, answer):
    says = told(NONSENSE[answer]) if answer in NONSENSE else (lambda query: (answer, {}, b""))
    report, count = asked(says)
    assert [(h["bars"], h["cause"]) for h in report.series[0].holes] == [(LACKING, "absent at source")]
    assert report.exit == 3
    assert sum(n.startswith("REST not available") for n in report.notes) == 1
    assert count["rest"] <= FAST.tries  # one question, perhaps repeated, for ten days
    again, count = asked(honest)
    assert (again.series[0].holes, again.exit, count["zip"]) == ([], 0, 0)


@pytest.mark.parametrize("answer", [lambda query: (400, {}, b'{"code": -1121}'), told([])])
def test_what_the_exchange_does_not_have_is_confirmed_once(asked, answer):
    report, _ = asked(answer)
    assert [h["cause"] for h in report.series[0].holes] == ["absent at source"]
    again, count = asked(honest)
    assert again.series == report.series
    assert count["rest"] == 0


def test_candles_of_rest_that_are_no_candles_confirm_nothing(asked):
    def half_wrong(query):
        status, headers, body = honest(query)
        return status, headers, json.dumps([[r[0], "nan", *r[2:]] for r in json.loads(body)]).encode()

    report, _ = asked(half_wrong)
    assert [h["cause"] for h in report.series[0].holes] == ["absent at source"]
    assert asked(honest)[0].series[0].holes == []


def _dated(date):
    """A hook that answers every request for a file or a listing with this date."""

    def hook(handler, name, query):
        if name.startswith("api"):
            vars(handler).pop("date_time_string", None)  # a connection is used again
            return told([])(query)
        handler.date_time_string = lambda _timestamp=None: date
        return None

    return hook


@pytest.mark.parametrize("date", ["Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_the_clock_of_a_server_of_files_decides_about_no_candle(tmp_path, date):
    """A CDN's or a mirror's clock is not the exchange's."""
    build(tmp_path / "mirror", ["BTCUSDT"])
    with simulator.serve(FolderMirror(tmp_path / "mirror"), _dated(date)) as url:
        source = HttpSource(url, limits=FAST)
        source.get(source_file(key(), "2024-01").key)
        source.list_page({"prefix": ""})
        assert source.clock_ahead is None
        source.klines("api/v3/klines", {"symbol": "BTCUSDT"})
        assert abs(source.clock_ahead) < 60
        source.close()
