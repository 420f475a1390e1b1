"""What stands in a message, and that an event is told once a day."""

from datetime import UTC, datetime

import pytest

from tasks.notices.event import MAX_LINES, Event, Told, claim, message, release
from tasks.storage.records import read_record

NIGHT = datetime(2025, 6, 6, 23, 59, tzinfo=UTC)
NEXT = datetime(2025, 6, 7, 0, 1, tzinfo=UTC)


def test_a_message_has_a_part_per_kind_the_most_urgent_first():
    found = message(
        [
            Event("champion changed", "a", "gru serves"),
            Event("run partial", "b", "one failed"),
            Event("run partial", "c", "two failed"),
        ]
    )
    assert found.title.endswith(": run partial, champion changed")
    assert found.body == "Run partial:\n- one failed\n- two failed\n\nChampion changed:\n- gru serves"


@pytest.mark.parametrize(
    ("kinds", "level"),
    [(["champion changed"], "info"), (["champion changed", "data stale"], "warning"), (["run failed"], "failure"),
     (["data stale", "service dead"], "failure")],
)  # fmt: skip
def test_the_level_is_that_of_the_most_urgent_event(kinds, level):
    assert message([Event(kind, "x", "text") for kind in kinds]).level == level


def test_credentials_are_taken_out_even_where_the_text_is_cut():
    source = "http://alice:sesame@mirror.example/data?token=geheim"
    found = message([Event("run failed", "x", f"{source} is away\n{'y' * 330} {source} {'z' * 400}")])
    assert "sesame" not in found.body
    assert "geheim" not in found.body
    assert "mirror.example" in found.body
    assert max(len(line) for line in found.body.splitlines()) < 410


def test_many_events_make_a_message_of_limited_length():
    found = message([Event("data stale", str(n), f"series {n}") for n in range(100)])
    assert len(found.body.splitlines()) == MAX_LINES + 2
    assert "80 more" in found.body


def test_an_event_is_told_once_a_day_and_again_on_the_next(tmp_path):
    event, other = Event("run failed", "a", "first words"), Event("run failed", "b", "text")
    assert claim(tmp_path, [event], NIGHT) == [event]
    assert claim(tmp_path, [Event("run failed", "a", "other words")], NIGHT) == []
    assert claim(tmp_path, [event, other, other], NIGHT) == [other]
    assert claim(tmp_path, [event], NEXT) == [event]
    assert read_record(tmp_path / "notify.json", Told).events == ("run failed: a",)


def test_what_no_service_accepted_is_told_later(tmp_path):
    first, second = Event("run failed", "a", "text", part_of="flow"), Event("data stale", "b", "text")
    claim(tmp_path, [first], NIGHT)
    claim(tmp_path, [second], NIGHT)
    release(tmp_path, [first], NIGHT)
    assert claim(tmp_path, [first, second], NIGHT) == [first]


def test_a_run_that_told_its_failures_itself_is_not_told_of_again(tmp_path):
    claim(tmp_path, [Event("run partial", "train-all BTCUSDT 1h train", "text", part_of="train-all")], NIGHT)
    assert claim(tmp_path, [Event("run partial", "train-all", "the last run was partial")], NIGHT) == []


def test_a_damaged_record_is_set_aside(tmp_path):
    (tmp_path / "notify.json").write_text("{")
    event = Event("run failed", "a", "text")
    assert claim(tmp_path, [event], NIGHT) == [event]
    assert claim(tmp_path, [event], NIGHT) == []
