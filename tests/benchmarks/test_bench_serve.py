"""The service under a small load."""

import json
import os

import pytest

from benchmarks import serve
from benchmarks._paired import main


@pytest.mark.slow
def test_every_answer_of_the_service_is_counted(capsys):
    before = dict(os.environ)
    small = [
        "--series",
        "2",
        "--days",
        "4",
        "--seconds",
        "1",
        "--times",
        "10",
        "--nights",
        "1",
        "--queries",
        "5",
    ]
    main("serve", serve.PARTS, [*small, "--json"], serve.options)
    assert dict(os.environ) == before  # its stores are not those of whatever runs after it
    answer = json.loads(capsys.readouterr().out)
    assert answer["throughput"]["4 clients, limit=5000"]["requests/s"] > 0
    assert {"50 clients, once a second", "/api/forecast", "/api/ledger"} <= set(answer["latency"])
    assert answer["latency"]["/api/forecast"]["p99 ms"] > 0
