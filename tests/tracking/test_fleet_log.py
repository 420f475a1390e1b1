"""What MLflow holds of a judged fleet, from hand-made results: no training, no judging."""

import pytest

from schemas.failure import Failure
from schemas.handover import ShardResult
from schemas.identity import SeriesId
from schemas.run import RunSpec
from tasks.judging.fleet import FleetScore
from tasks.tracking.calls import search
from tasks.tracking.fleet_log import log_fleet
from tasks.tracking.runs import start_parent
from tasks.training.plan import job_key
from tests.tools.planned import fleet, planned

AWAY = SeriesId("spot", "SOLUSDT", "1h")
HOURLY = Failure.of(AWAY, "ingest", "not listed")
OF_15M = Failure.of(SeriesId("spot", "SOLUSDT", "15m"), "ingest", "not listed")


def logged(store, earlier, **options):
    """Log a fleet whose two members failed, one in training, one in judging; return its judgement and its runs."""
    plan = fleet([planned(), planned("ETHUSDT")])
    (shard,) = plan.shards
    btc, eth = plan.members
    result = ShardResult(
        key=job_key(shard), architecture="gru", failures=(Failure.of(btc.model, "train", "it diverged"),)
    )
    score = FleetScore({}, [], [Failure.of(eth.model, "evaluate", "its forecast is not finite")])
    parent = start_parent("flow", {"market": "spot"}).run_id
    spec = RunSpec(coins="BTC,ETH,SOL", timeframes="1h", architectures="gru", preset="smoke", **options)
    judgement = log_fleet(spec, parent, plan, [result], score, earlier)
    of_fleet = store.client.get_run(judgement.run_id)
    members = list(search(store, f"tags.`mlflow.parentRunId` = '{judgement.run_id}'"))
    return plan, judgement, of_fleet, {run.info.run_name: run for run in members}


def test_every_member_that_failed_has_a_run_with_its_reason(store):
    plan, judgement, of_fleet, members = logged(store, (HOURLY,))
    assert (judgement.key, judgement.judgements, len(judgement.failures)) == (plan.key, (), 1)
    assert {name: (run.info.status, run.data.tags["reason"]) for name, run in members.items()} == {
        "gru/BTCUSDT/1h": ("FAILED", "it diverged"),
        "gru/ETHUSDT/1h": ("FAILED", "its forecast is not finite"),
        "gru/SOLUSDT/1h": ("FAILED", "not listed"),
    }
    tags = of_fleet.data.tags
    assert (of_fleet.info.status, tags["outcome"], tags["fleet_key"]) == ("FAILED", "failed", plan.key)
    assert "it diverged" in tags["reason"]


@pytest.mark.parametrize(("serving", "known"), [(False, 4), (True, 3)])
def test_a_series_that_failed_early_is_a_member_where_the_fleet_would_have_trained_it(store, serving, known):
    """With `serving` a recipe is trained where it serves: this one on 1h alone."""
    *_, members = logged(store, (HOURLY, OF_15M), serving=serving)
    assert len(members) == known


def test_the_same_fleet_logged_again_is_the_same_run(store):
    first, again = (logged(store, ()) for _ in range(2))
    assert again[1].run_id == first[1].run_id
    assert again[3].keys() == first[3].keys()
