"""What is displayed while a fleet is judged."""

from pathlib import Path
from types import SimpleNamespace

from tasks.judging import fleet as module
from tasks.running.progress import reports_to


def test_judging_is_displayed_from_the_first_trained_shard_on(monkeypatch):
    monkeypatch.setattr(module, "shard_folder", lambda root, job: root / job)
    heard, while_it_trains = [], []
    plan = SimpleNamespace(name="gru", members=[SimpleNamespace(name=name) for name in "ab"])

    def trained():
        while_it_trains.extend(heard)
        yield "first", SimpleNamespace(members=[])
        yield "second", SimpleNamespace(members=[])

    judges = SimpleNamespace(number=1)
    with reports_to(SimpleNamespace(progress=heard.append)):
        module.judge_fleet(Path("home"), plan, trained(), judges)
    assert while_it_trains == []
    assert [(report.step, report.done, report.total) for report in heard] == [
        ("judge gru", 0, 2),
        ("judge gru", 2, 2),
    ]


def test_nothing_is_displayed_of_a_fleet_without_a_trained_shard():
    heard = []
    with reports_to(SimpleNamespace(progress=heard.append)):
        module.judge_fleet(Path("home"), SimpleNamespace(name="gru", members=[]), [], SimpleNamespace())
    assert heard == []
