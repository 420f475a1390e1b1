"""What `cpb deploy status` prints for people."""

from pathlib import Path

from flows.cli.deploy import _lines
from flows.deploy.status import Status
from tasks.notices.event import Event


def test_stale_series_are_one_line_that_names_them_all():
    events = [
        Event("data stale", f"spot/{coin}/1h candle", f"{coin} 1h: too old") for coin in ("A", "B", "C")
    ]
    services = dict.fromkeys(("server", "worker"))
    found = Status(
        False, Path("home"), services, problems=[*events, Event("deployment", "disk", "it is full")]
    )
    wrong = [line for line in _lines(found) if line.startswith("WRONG")]
    assert wrong == [
        "WRONG: it is full",
        "WRONG: A 1h: too old; also too old: spot/B/1h candle, spot/C/1h candle",
    ]
