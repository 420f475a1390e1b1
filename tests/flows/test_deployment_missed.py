"""Runs that schedules had due while nothing was up."""

from flows import deployment


def test_missed_scheduled_runs_are_dropped_and_asked_for_ones_kept(monkeypatch):
    runs = [
        {"id": "a", "auto_scheduled": True},
        {"id": "b", "auto_scheduled": False},
        {"id": "c", "auto_scheduled": True},
    ]
    asked = []

    def ask(port, method, path, body=None):
        asked.append((method, path))
        return runs if method == "POST" else None

    monkeypatch.setattr(deployment, "_ask", ask)
    deployment._drop_missed(4200)
    assert asked == [("POST", "flow_runs/filter"), ("DELETE", "flow_runs/a"), ("DELETE", "flow_runs/c")]
