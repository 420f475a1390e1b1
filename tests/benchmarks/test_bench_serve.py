"""The service under a small load, and the page in a browser."""

import json

import pytest
from browser import CHROMIUM, needs_browser

from benchmarks import page, serve
from benchmarks._paired import main

SMALL = ["--series", "2", "--days", "20", "--json"]
pytestmark = pytest.mark.slow


def test_every_answer_of_the_service_is_counted(capsys):
    parts = {"throughput": serve.throughput, "latency": serve.latency}
    main("serve", parts, [*SMALL, "--seconds", "3"], serve.options)
    found = json.loads(capsys.readouterr().out)
    assert found["throughput"]["4 clients, limit=5000"]["requests/s"] > 0
    assert found["latency"]["50 clients, once a second"]["p99 ms"] > 0


@needs_browser
def test_the_page_is_opened_and_its_chart_dragged(capsys, monkeypatch):
    monkeypatch.setattr(page, "OPENINGS", 1)
    monkeypatch.setattr(page, "MOVES", 10)
    main("page", {"page": page.page}, [*SMALL, "--chromium", CHROMIUM], page.options)
    found = json.loads(capsys.readouterr().out)["page"]
    assert found["series opened"]["chart_stands_ms"] > 0
    assert found["chart panned"]["frames_per_s"] > 0
