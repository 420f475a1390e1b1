"""What `cpb deploy status` prints for people: on stdout, with the runs at work, those that wait, and what is paused."""

from datetime import UTC, datetime

from flows.cli.serve import _print_status
from flows.deploy.status import Deployment, Status

NIGHT = datetime(2026, 1, 2, 6, 30, tzinfo=UTC)


def test_the_table_shows_running_queued_and_paused(capsys):
    status = Status(
        4200,
        {"server": 1, "worker": 2},
        5_000_000_000,
        [
            Deployment(
                "train-all/train-all", "Failed", "no space", NIGHT, None, ["train-all BTC 1h"], [], False
            ),
            Deployment("train-all/nightly", None, "", None, NIGHT, [], ["quick-fox"], False),
            Deployment("forecast/hourly", None, "", None, None, [], [], True),
        ],
        ["the last run of train-all/train-all ended Failed"],
    )
    _print_status(status)
    out, err = capsys.readouterr()
    assert err == ""
    rows = {line.split()[0]: line for line in out.splitlines() if "/" in line}
    assert "train-all BTC 1h" in rows["train-all/train-all"]
    assert "Failed 2026-01-02 06:30 UTC" in rows["train-all/train-all"]
    assert "quick-fox" in rows["train-all/nightly"]
    assert rows["train-all/nightly"].rstrip().endswith("2026-01-02 06:30 UTC")
    assert rows["forecast/hourly"].rstrip().endswith("paused")
    assert "WRONG: the last run" in out
