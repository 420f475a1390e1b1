"""Telling people over real HTTP: each event once a day, without secrets, and never at a run's cost."""

import json
import logging
from datetime import UTC, datetime

import pytest

from flows.run import flow_run
from schemas.decision import Decision, ModelRef
from schemas.errors import CpbError, UsageError
from schemas.failure import STALE, Failure
from schemas.identity import ModelId, SeriesId
from schemas.ledger import Alarm
from tasks import notices
from tasks.notices import DEADLINE_S, MAX_LINES, SentEvents, send_test, services
from tasks.storage.records import find_record, write_record
from tests.tools.inbox import inbox as serve_inbox

BTC = SeriesId("spot", "BTCUSDT", "1h")
FAILED = Failure.of(BTC, "ingest", "not listed")
SECRETS = ("sesame", "token-abc", "geheim", "ping-secret")


def run(home, error=None, **outcome):
    """A run of the main job that ends like this."""
    with flow_run("train-all", print, notify=True) as told:
        for name, value in outcome.items():
            setattr(told, name, value)
        if error:
            raise error


def failed(home, error):
    with pytest.raises(type(error)):
        run(home, error)


def bodies(inbox):
    return [message["message"] for message in inbox.messages]


def test_a_run_that_failed_is_told_once_a_day_and_another_error_too(inbox, home):
    failed(home, CpbError("the source http://u:geheim@mirror/x is away", code="unreachable"))
    failed(home, CpbError("the source is still away", code="unreachable"))
    failed(home, ZeroDivisionError("division by zero"))
    assert bodies(inbox) == ["- the source http://mirror/x is away", "- division by zero"]
    assert inbox.messages[0]["title"].endswith(": train-all")
    told = find_record(home / "notify.json", SentEvents)
    write_record(home / "notify.json", told.model_copy(update={"day": "2025-06-06"}))  # yesterday
    failed(home, CpbError("the source is still away", code="unreachable"))
    assert len(inbox.messages) == 3
    (home / "notify.json").write_text("{")  # damaged
    failed(home, CpbError("away", code="unreachable"))
    assert len(inbox.messages) == 4


def test_a_partial_run_names_each_failure_and_later_only_the_new_ones(inbox, home):
    diverged = Failure.of(
        ModelId("gru", "default", BTC, 1), "train", CpbError("it diverged", code="diverged")
    )
    run(home, failures=[FAILED])
    run(home, failures=[FAILED, diverged])
    run(home, failures=[FAILED, diverged])
    assert bodies(inbox) == [
        "- BTCUSDT 1h failed in ingest: not listed",
        "- gru/BTCUSDT/1h (default) failed in train: it diverged",
    ]


def test_stale_series_are_told_in_one_sentence_again_once_another_is_stale(inbox, home):
    old = [
        Failure(step="forecast", reason=f"{s}: old", code=STALE, series=s)
        for s in (SeriesId("spot", f"C{n}USDT", "1h") for n in range(MAX_LINES + 5))
    ]
    for failures, stale in [(old[:-1], "24 are old"), (old[:-1], "24 are older"), (old, "25 are old")] * 2:
        run(home, failures=[*failures, FAILED], stale=stale)
    first = ["- 24 are old", "- BTCUSDT 1h failed in ingest: not listed"]
    assert [body.splitlines() for body in bodies(inbox)] == [first, ["- 25 are old"]]


def decided(outcome):
    return Decision(
        series=BTC,
        outcome=outcome,
        rule="a-rule",
        version_number="2",
        reason="it is better",
        candidate=ModelRef(recipe="gru/default/3f9a12c0d4e5"),
        decided_at=datetime(2025, 6, 6, tzinfo=UTC),
    )


def drifted(state):
    return Alarm(
        series=BTC,
        state=state,
        reason="35.0% of the next closes miss the band",
        model_version="cpb-BTCUSDT-1h/3",
        evidence={"bands": 12.0},
        threshold=10.0,
        since=datetime(2025, 6, 5, 14, tzinfo=UTC),
    )


def test_switches_and_drift_are_told_in_one_message_and_refreshes_are_not(inbox, home):
    run(home, decisions=[decided("refreshed"), decided("kept"), decided("first")], alarms=[drifted("watch")])
    assert inbox.messages == []
    for _ in range(2):
        run(home, decisions=[decided("switched")], alarms=[drifted("drifted")])
    (body,) = bodies(inbox)
    assert "BTCUSDT 1h follows the recipe that won a backtest, gru; it is better" in body
    assert "BTCUSDT 1h is drifted since 2025-06-05 14:00 UTC: 35.0%" in body


def test_nothing_is_told_of_a_good_run_or_one_that_a_person_interrupted(inbox, home):
    run(home)
    with pytest.raises(KeyboardInterrupt), flow_run("train-all", print, notify=True):
        raise KeyboardInterrupt
    assert inbox.messages == []


def test_without_services_a_run_leaves_nothing_behind(home):
    run(home, failures=[FAILED])
    assert list(home.iterdir()) == []


def test_long_texts_are_cut_after_their_credentials_are_taken_out(inbox, home):
    source = "http://alice:sesame@mirror.example/data?token=geheim"
    failures = [
        Failure.of(SeriesId("spot", f"C{n}USDT", "1h"), "ingest", f"{'y ' * 170}{source} {'z' * 400}")
        for n in range(99)
    ]
    run(home, failures=failures)
    (body,) = bodies(inbox)
    assert len(body.splitlines()) == MAX_LINES + 1
    assert "79 more" in body
    assert max(map(len, body.splitlines())) < 410
    assert not any(secret in body for secret in SECRETS)


def test_what_a_message_had_no_line_for_is_told_by_the_next_and_alerts_come_first(inbox, home):
    failures = [Failure.of(SeriesId("spot", f"C{n}USDT", "1h"), "ingest", "gone") for n in range(MAX_LINES)]
    for _ in range(3):
        with flow_run("forecast", print, notify=True) as noted:
            noted.failures, noted.alerts = failures, {"alert 1": "a chance", "alert 2": "another chance"}
    first, second = (body.splitlines() for body in bodies(inbox))
    assert first[:2] == ["- a chance", "- another chance"]
    assert first[-1] == "- and 2 more; see the run's log"
    assert [line.split()[1] for line in second] == ["C18USDT", "C19USDT"]


def test_a_dead_service_fails_no_run_and_the_event_is_told_by_the_next(inbox, home, caplog):
    caplog.set_level(logging.INFO)
    inbox.stop()
    for _ in range(2):
        run(home, failures=[FAILED])
    assert "no message through json (service 1)" in caplog.text
    inbox.serve(inbox.port)
    inbox.status = 500
    run(home, failures=[FAILED])
    inbox.status = 200
    run(home, failures=[FAILED])
    run(home, failures=[FAILED])
    assert len(inbox.messages) == 2  # the refused one and the accepted one
    assert not any(secret in caplog.text for secret in SECRETS)


def test_a_service_that_answers_byte_by_byte_is_left_behind_at_the_deadline(inbox, home, monkeypatch):
    assert DEADLINE_S < 10
    monkeypatch.setattr(notices, "DEADLINE_S", 1)
    inbox.slow = True
    assert list(send_test().values()) == ["no answer within 1 s"]


def test_the_heartbeat_is_called_once_after_complete_runs_alone(inbox, home, monkeypatch, caplog):
    monkeypatch.delenv("CPB_NOTIFY")
    monkeypatch.setenv("CPB_HEARTBEAT_URL", inbox.heartbeat)
    run(home, failures=[FAILED])
    failed(home, CpbError("away"))
    assert inbox.beats == []
    run(home)
    assert inbox.beats == ["/ping-secret/train-all"]
    with serve_inbox() as other:
        inbox.redirect = f"http://127.0.0.1:{other.port}/x"
        run(home)
        assert other.beats == []
    assert "CPB_HEARTBEAT_URL: it answered 302" in caplog.text
    inbox.stop()
    run(home)
    assert "cannot be reached" in caplog.text
    assert not any(secret in caplog.text for secret in SECRETS)
    inbox.serve()


def test_services_come_from_the_variable_and_the_owners_file(home, monkeypatch):
    assert services() == []
    mail = "mailto://u:p@example.org?to=a@example.org,b@example.org"
    monkeypatch.setenv("CPB_NOTIFY", f" json://one/x, {mail},tgram://1/2,")
    (home / "notify").write_text("# on call\nslack://a/b/c\n\njson://one/x\n")
    (home / "notify").chmod(0o600)
    assert services() == ["json://one/x", mail, "tgram://1/2", "slack://a/b/c"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused_and_fails_no_run(home, caplog, mode):
    (home / "notify").write_text("slack://secret/b/c\n")
    (home / "notify").chmod(mode)
    with pytest.raises(CpbError, match="chmod 600") as refused:
        send_test()
    assert (refused.value.code, refused.value.field) == ("notify-file", str(home / "notify"))
    run(home, failures=[FAILED])
    assert "chmod 600" in caplog.text
    assert "secret" not in caplog.text + str(refused.value)


def test_what_is_no_url_is_refused_without_being_shown(home, monkeypatch):
    monkeypatch.setenv("CPB_NOTIFY", "json://one my-password")
    with pytest.raises(CpbError, match="entry 2 in CPB_NOTIFY") as refused:
        services()
    assert "my-password" not in str(refused.value)


def test_doctor_sends_a_test_message_and_names_services_by_scheme(inbox, home, cpb_here, monkeypatch):
    def doctor(services):
        monkeypatch.setenv("CPB_NOTIFY", services)
        return cpb_here("doctor", "--notify", "--json")

    code, told, said = doctor(f"json://127.0.0.1:9/other-token {inbox.url} nonsense://x")
    assert code == 0
    problems = json.loads(told.splitlines()[-1])["services"]
    assert [bool(problem) for problem in problems.values()] == [True, False, True]
    assert list(problems) == ["json (service 1)", "json (service 2)", "nonsense (service 3)"]
    assert "test message" in bodies(inbox)[0]
    assert not any(secret in told + said for secret in (*SECRETS, "other-token"))
    assert doctor("json://127.0.0.1:9/token")[0] == 1
    code, _, said = doctor("")
    assert (code, said.count("\n")) == (2, 1)
    monkeypatch.delenv("CPB_NOTIFY")
    with pytest.raises(UsageError):
        send_test()
