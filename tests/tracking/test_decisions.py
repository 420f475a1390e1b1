"""What the registry keeps of the decisions on a series."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest import mock

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST, RESOURCE_DOES_NOT_EXIST

from schemas.decision import Decision
from schemas.identity import SeriesId
from schemas.retention import EARLIER_DECISIONS
from tasks.tracking.decisions import DECISION, decisions_on, keep_decision, newest_decisions
from tasks.tracking.registry import make_model

BTC = SeriesId("spot", "BTCUSDT", "1h")


def decided(night):
    return Decision(
        series=BTC,
        outcome="kept",
        rule="worse",
        version_number="1",
        reason=f"night {night}",
        decided_at=datetime(2025, 1, 1, 3, tzinfo=UTC) + timedelta(days=night),
    )


def test_the_newest_and_those_of_the_last_nights_are_kept_and_no_more(store):
    make_model(store, BTC)
    for night in range(EARLIER_DECISIONS + 5):
        keep_decision(store, decided(night))
    decisions = decisions_on(store, BTC, 1000)
    assert [decision.reason for decision in decisions] == [
        f"night {EARLIER_DECISIONS + 4 - n}" for n in range(EARLIER_DECISIONS + 1)
    ]
    assert newest_decisions(store) == {BTC: decisions[0]}
    assert len(decisions_on(store, BTC, 3)) == 3
    tags = store.client.get_registered_model(BTC.registered).tags
    assert len([name for name in tags if name.startswith(DECISION)]) == EARLIER_DECISIONS + 1


@pytest.mark.parametrize("written", [0, 1])
def test_a_kill_at_any_write_loses_no_decision_before(store, written):
    make_model(store, BTC)
    keep_decision(store, decided(0))
    client = mock.Mock(wraps=store.client)
    client.set_registered_model_tag.side_effect = [*[mock.DEFAULT] * written, KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        keep_decision(replace(store, client=client), decided(1))
    assert [decision.reason for decision in decisions_on(store, BTC, 9)] == ["night 0"]
    keep_decision(store, decided(1))
    assert [decision.reason for decision in decisions_on(store, BTC, 9)] == ["night 1", "night 0"]


def test_a_tag_that_another_machine_inserts_at_the_same_moment_is_written_again(store):
    make_model(store, BTC)
    client = mock.Mock(wraps=store.client)

    def other_machine_is_first(*arguments):
        client.set_registered_model_tag.side_effect = None
        store.client.set_registered_model_tag(BTC.registered, DECISION, decided(0).model_dump_json())
        raise MlflowException("(psycopg2.errors.UniqueViolation) duplicate key value", BAD_REQUEST)

    client.set_registered_model_tag.side_effect = other_machine_is_first
    keep_decision(replace(store, client=client), decided(1))
    assert newest_decisions(store)[BTC].reason == "night 1"
    client.set_registered_model_tag.side_effect = MlflowException("no such model", RESOURCE_DOES_NOT_EXIST)
    with pytest.raises(MlflowException, match="no such model"):
        keep_decision(replace(store, client=client), decided(2))


def test_a_tag_that_a_person_wrote_is_no_decision(store):
    make_model(store, BTC)
    store.client.set_registered_model_tag(BTC.registered, DECISION, "mine")
    assert newest_decisions(store) == {}
    keep_decision(store, decided(1))
    assert [decision.reason for decision in decisions_on(store, BTC, 9)] == ["night 1"]
    assert decisions_on(store, SeriesId("spot", "ETHUSDT", "1h"), 9) == []
