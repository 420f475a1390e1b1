"""Telling people over real HTTP: every kind of event, once a day, without secrets, and never at a run's cost."""

import logging
import socket
import time
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from inbox import inbox as serve_inbox
from registering import register_champion

from schemas.errors import CpbError, UsageError
from schemas.frames import KLINES
from schemas.handover import Alarm, Decision, Failure, ModelRef
from schemas.identity import ModelId, SeriesId
from schemas.scope import ScopeSpec
from tasks.market.manifest import MANIFEST, FileRecord, Manifest
from tasks.notices import findings
from tasks.notices.event import Event, claim, message, release
from tasks.notices.services import beat, senders, services, tell, tell_outcome, try_services, within
from tasks.tracking.mlflow_store import open_store
from tasks.tracking.runs import finish, log_members

BTC = SeriesId("spot", "BTCUSDT", "1h")
GRU = ModelId("gru", "default", BTC, 1)
SECRETS = ("sesame", "token-abc", "geheim", "ping-secret")


def scope(**options):
    return ScopeSpec(**{"coins": "BTC", "timeframes": "1h"} | options).scope


def run(outcome=None, error=None, **options):
    """A run of the main job that ends like this."""
    with tell_outcome("train-all", scope(**options)) as found:
        for name, value in (outcome or {}).items():
            setattr(found, name, value)
        if error:
            raise error


def decided(outcome, reason):
    """A decision on BTC, whose champion is version 2 after it."""
    return Decision(
        series=BTC, outcome=outcome, rule="a-rule", version_number="2", reason=reason,
        candidate=ModelRef(recipe="gru/default/3f9a12c0d4e5"), decided_at=datetime(2025, 6, 6, tzinfo=UTC),
    )  # fmt: skip


def failed(error, **options):
    with pytest.raises(type(error)):
        run(error=error, **options)


def bodies(inbox):
    return [one["message"] for one in inbox.messages]


def test_a_run_that_failed_is_told_once_a_day_and_another_error_too(inbox):
    failed(CpbError("the source http://u:geheim@mirror/x is away", code="unreachable"))
    failed(CpbError("the source is still away", code="unreachable"))
    assert len(inbox.messages) == 1
    (first,) = inbox.messages
    assert "run failed" in first["title"]
    assert first["type"] == "failure"
    assert "http://mirror/x is away" in first["message"]
    failed(ZeroDivisionError("division by zero"))
    assert "division by zero" in bodies(inbox)[1]
    assert not any(secret in str(bodies(inbox)) for secret in SECRETS)


def test_a_partial_run_names_each_failure_and_later_only_the_new_ones(inbox):
    one = Failure.of(BTC, "ingest", "not listed")
    two = Failure.of(GRU, "train", CpbError("it diverged", code="diverged"))
    run({"failures": [one]})
    run({"failures": [one, two]})
    run({"failures": [one, two]})
    assert bodies(inbox) == [
        "Run partial:\n- train-all: BTCUSDT 1h failed in ingest: not listed",
        "Run partial:\n- train-all: gru/BTCUSDT/1h failed in train: it diverged",
    ]


def test_stale_data_is_told_once_even_where_it_is_also_a_failure(inbox, home):
    old = datetime(2025, 1, 1, tzinfo=UTC)
    frame = pl.DataFrame({"open_time": [old + timedelta(hours=n) for n in range(50)]}).with_columns(
        pl.lit(1.0).cast(kind).alias(name) for name, kind in KLINES.items() if name != "open_time"
    )
    folder = BTC.folder(home, "klines")
    folder.mkdir(parents=True)
    columns = [pl.col(name).cast(kind) for name, kind in KLINES.items()]
    frame.select(columns).write_parquet(folder / "2025-01.parquet")
    run({"failures": [Failure(step="forecast", reason="too old", code="stale", series=BTC)]})
    run()
    (body,) = bodies(inbox)
    assert body.startswith("Data stale:\n- BTCUSDT 1h: the newest candle is ")
    run(as_of="2025-01-03T02:30")  # not stale then
    assert len(inbox.messages) == 1


def test_files_refused_or_changed_in_this_run_are_told(inbox, home):
    with tell_outcome("train-all", scope()), Manifest(home / MANIFEST) as manifest:
        now = int(time.time())
        manifest.save(
            BTC,
            [
                FileRecord("2025-01", "k1", "v", status="quarantined", reason="wrong CHECKSUM", facts={"at": now}),
                FileRecord("2025-02", "k2", "v", facts={"changed": 3, "at": now}),
                FileRecord("2024-01", "k3", "v", status="quarantined", reason="old", facts={"at": now - 9000}),
                FileRecord("2024-02", "k4", "v"),
            ],
            [], [], (0, 0),
        )  # fmt: skip
    (found,) = inbox.messages
    assert found["title"].endswith("file quarantined, file changed upstream")
    assert "BTCUSDT 1h 2025-01: wrong CHECKSUM" in found["message"]
    assert "BTCUSDT 1h 2025-02: published again with 3 candles changed" in found["message"]
    assert "2024" not in found["message"]
    run()
    assert len(inbox.messages) == 1


def test_a_champion_is_told_where_it_is_another_than_before(inbox, champion):
    new = decided("refreshed", reason="validation 0.98")
    same = new.model_copy(update={"version_number": champion})
    run({"decisions": [same]})
    assert inbox.messages == []
    run({"decisions": [new]})
    (found,) = inbox.messages
    assert found["type"] == "info"
    assert found["message"] == (
        "Champion changed:\n- BTCUSDT 1h: gru, version 2 is the champion now: validation 0.98"
    )
    run(
        {
            "decisions": [
                decided("kept", reason="it is worse"),
                decided("unchanged", reason="the same candles"),
            ]
        }
    )
    assert len(inbox.messages) == 1
    run({"decisions": [decided("retired", reason="not traded any more")]})
    assert "version 2 is retired: not traded any more" in bodies(inbox)[1]


@pytest.fixture
def champion(home, tmp_path):
    """The version that serves BTCUSDT 1h."""
    from tasks.tracking.records import MemberRecord
    from tasks.tracking.runs import start_fleet, start_parent

    open_store()
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    parent = start_parent("key", {})
    fleet = start_fleet(parent.run_id, "gru", "fleet", {})
    record = MemberRecord(key="k", model=GRU, device="cpu", preset="default", data_digest="d", as_of="newest",
                          folder=folder)  # fmt: skip
    (run_id,) = log_members(fleet.run_id, [record])
    finish(fleet.run_id)
    return register_champion(BTC, run_id)


def test_nothing_is_told_of_a_good_run_or_one_that_a_person_interrupted(inbox):
    run()
    with pytest.raises(KeyboardInterrupt), tell_outcome("train-all", scope()):
        raise KeyboardInterrupt
    assert inbox.messages == []


def test_without_services_a_run_leaves_nothing_behind(home):
    run({"failures": [Failure.of(BTC, "ingest", "not listed")]})
    assert list(home.iterdir()) == []


def test_a_dead_service_fails_no_run_and_the_event_is_told_by_the_next(inbox, caplog):
    inbox.stop()
    error = CpbError("away", code="unreachable")
    failed(error)
    assert "no message through json (service 1)" in caplog.text
    assert not any(secret in caplog.text for secret in SECRETS)
    inbox.serve(inbox.port)
    failed(error)
    failed(error)
    assert len(inbox.messages) == 1


def test_a_service_that_refuses_is_no_service_that_accepted(inbox):
    inbox.status = 500
    assert list(tell(scope().home, [Event("data stale", "a", "text")]).values()) != [""]
    inbox.status = 200
    assert list(tell(scope().home, [Event("data stale", "a", "text")]).values()) == [""]


def test_one_dead_service_keeps_no_message_from_the_others(inbox, home, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"json://127.0.0.1:{unused.getsockname()[1]}/"
    monkeypatch.setenv("CPB_NOTIFY", f"{dead} {inbox.url} nonsense://x")
    problems = try_services(home)
    assert [bool(problem) for problem in problems.values()] == [True, False, True]
    assert list(problems) == ["json (service 1)", "json (service 2)", "nonsense (service 3)"]
    assert len(inbox.messages) == 1


def test_a_service_that_answers_byte_by_byte_is_left_behind_at_the_deadline(inbox, home):
    inbox.slow = True
    problems = within(senders(services(home), message([Event("test", "a", "text")])), deadline_s=1)
    assert inbox.slow  # it still answers
    assert list(problems.values()) == ["no answer within 1 s"]


def test_a_file_that_others_can_read_fails_no_run_but_the_command(home, caplog):
    (home / "notify").write_text("json://127.0.0.1:9/")
    (home / "notify").chmod(0o644)
    run({"failures": [Failure.of(BTC, "ingest", "not listed")]})
    assert "chmod 600" in caplog.text
    with pytest.raises(CpbError) as refused:
        try_services(home)
    assert refused.value.code == "notify-file"


def test_a_test_message_without_services_is_a_usage_error(home):
    with pytest.raises(UsageError) as refused:
        try_services(home)
    assert (refused.value.code, refused.value.field) == ("notify-unset", "CPB_NOTIFY")


def test_the_heartbeat_is_called_after_complete_runs_alone(inbox, monkeypatch):
    monkeypatch.delenv("CPB_NOTIFY")
    monkeypatch.setenv("CPB_HEARTBEAT_URL", inbox.heartbeat)
    run({"failures": [Failure.of(BTC, "ingest", "not listed")]})
    failed(CpbError("away"))
    assert inbox.beats == []
    run()
    assert inbox.beats == ["/ping-secret/train-all"]


def test_a_heartbeat_that_fails_is_a_warning_without_its_url(inbox, monkeypatch, caplog):
    monkeypatch.setenv("CPB_HEARTBEAT_URL", inbox.heartbeat)
    inbox.status = 404
    run()
    assert "CPB_HEARTBEAT_URL: it answered 404" in caplog.text
    inbox.stop()
    run()
    assert "cannot be reached" in caplog.text
    assert not any(secret in caplog.text for secret in SECRETS)
    inbox.serve()


def test_a_heartbeat_is_redirected_on_its_own_host_only(inbox):
    with serve_inbox() as other:
        inbox.redirect = f"http://127.0.0.1:{other.port}/x"
        assert beat(inbox.heartbeat) == "it redirects to another host"
        assert other.beats == []
    inbox.redirect = "/again"
    assert beat(inbox.heartbeat) == "it redirects too many times"
    assert beat("file:///etc/passwd") == "it is not an http or https URL"


def test_what_libraries_log_names_no_url(inbox, caplog, home):
    caplog.set_level(logging.INFO)
    logging.getLogger("apprise").setLevel(logging.NOTSET)
    assert list(try_services(home).values()) == [""]
    inbox.status = 403
    try_services(home)
    assert not any(secret in caplog.text for secret in SECRETS)


def test_a_drifted_champion_is_told_once_not_once_a_day(inbox, tmp_path):
    def alarm(since, state="drifted"):
        return Alarm(
            series=BTC, state=state, reason="35.0% of the next closes miss the band", model_version="cpb-BTCUSDT-1h/3",
            evidence={"bands": 12.0, "crps": 0.1}, threshold=10.0, since=since if state == "drifted" else None,
        )  # fmt: skip

    first = datetime(2025, 6, 5, 14, tzinfo=UTC)
    run({"alarms": [alarm(first, "watch")]})
    assert inbox.messages == []
    run({"alarms": [alarm(first)]})
    assert "BTCUSDT 1h is drifted since 2025-06-05 14:00 UTC: 35.0%" in bodies(inbox)[0]
    assert inbox.messages[0]["type"] == "warning"
    events = findings.of_alarms([alarm(first)])
    assert claim(tmp_path, events, datetime.now(UTC) + timedelta(days=3)) == []
    run({"alarms": [alarm(first + timedelta(days=30))]})  # it had recovered in between
    assert len(inbox.messages) == 2


def test_what_is_told_once_is_tried_again_when_no_service_has_accepted_it(tmp_path):
    event = Event("champion drifted", "BTCUSDT-1h", "it drifted", once=True)
    assert claim(tmp_path, [event]) == [event]
    release(tmp_path, [event])
    assert claim(tmp_path, [event]) == [event]
    assert claim(tmp_path, [event]) == []
