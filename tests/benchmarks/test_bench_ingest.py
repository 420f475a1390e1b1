"""Ingestion from a small mirror that a process of its own serves."""

import json

import pytest

from benchmarks import ingest
from benchmarks._paired import main


@pytest.mark.slow
def test_ours_and_the_naive_way_read_the_whole_mirror(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(ingest.tempfile, "tempdir", None)
    monkeypatch.setattr(ingest, "LATENCY", 0.001)
    main("ingest", ingest.PARTS, ["--coins", "1", "--repeats", "1", "--json"], ingest.options)
    answer = json.loads(capsys.readouterr().out)
    assert answer["throughput"]["cpb"]["krows_per_s"] > 0
    assert answer["latency"]["cpb, nothing new"]["requests"] < 10
