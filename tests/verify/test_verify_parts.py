"""The check of each kind of artefact: features, fleets and champions."""

import json
import shlex
import shutil
import subprocess
from contextlib import suppress

import numpy as np
import pytest

from flows.train_all import run_train_all
from schemas.errors import DamagedError
from schemas.run import RunSpec
from tasks.judging import judge
from tasks.judging.score_files import known_score
from tasks.signals.feature_files import read_features, write_features
from tasks.storage.locks import locked
from tasks.storage.model_folder import read_config, write_metrics
from tasks.storage.sealed import SEAL, resealing
from tasks.tracking import fleet_log
from tasks.training.checkpoint import TRAINED, progress_so_far
from tasks.training.shard import JOB, RESULT
from tasks.verify.verification import verify_all
from tests.tools.stored_home import (
    DAMAGE,
    MARKET,
    SERIES,
    SPAN,
    champion,
    fleet_of,
    flip,
    member_of,
    only,
    train_again,
)
from tests.tools.verifying import verify_champions, verify_features, verify_fleets


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("ending", ["parquet", "json"])
def test_damaged_features_are_named_and_computed_again(stored, damage, ending):
    record = write_features(stored, SERIES, **SPAN)
    path = (stored / record.path).with_suffix(f".{ending}")
    before = read_features(stored, record)
    damage(path)
    damage_found = only(verify_features(stored, MARKET))
    assert damage_found.path == path.relative_to(stored).as_posix()
    subprocess.run(shlex.split(damage_found.command), check=True)
    assert not list(verify_features(stored, MARKET))
    again = write_features(stored, SERIES, **SPAN)
    assert (again.path, again.digest, again.rows) == (record.path, record.digest, record.rows)
    assert np.array_equal(read_features(stored, again).features, before.features, equal_nan=True)


def test_features_that_are_gone_are_named_and_those_without_a_record_are_not(stored):
    record = write_features(stored, SERIES, **SPAN)
    beside = (stored / record.path).with_suffix(".json")
    (stored / record.path).unlink()
    assert only(verify_features(stored, MARKET)).reason == "it is missing"
    assert list(verify_features(stored, "spot")) == []
    beside.unlink()
    assert list(verify_features(stored, MARKET)) == []


@pytest.mark.parametrize("damage", [*DAMAGE, lambda path: path.unlink()])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_fleet_with_a_damaged_model_is_named_with_its_command(stored, damage, name):
    path = member_of(stored, f"model/{name}")
    damage(path)
    damage_found = only(verify_fleets(stored, MARKET))
    assert damage_found.path == path.relative_to(stored).as_posix()
    # after it the next training trains it again
    subprocess.run(shlex.split(damage_found.command), check=True)
    assert not list(verify_fleets(stored, MARKET))
    assert progress_so_far(fleet_of(stored)) == ""


@pytest.mark.parametrize("content", ["[]", "{}", None])
def test_scores_that_are_not_those_of_judging_are_named(stored, content):
    path = member_of(stored, "model/metrics.json")
    path.write_text(content or path.read_text().replace("the random walk", "a random walk"))
    damage = only(verify_fleets(stored, MARKET))
    assert (damage.path, damage.reason) == (
        path.relative_to(stored).as_posix(),
        "it is not the file that was written (its sha256 differs)",
    )


def test_what_judging_adds_to_a_config_is_no_damage_and_anything_else_is(stored):
    path = member_of(stored, "model/config.json")
    values = json.loads(path.read_text())
    assert values["metrics"]
    assert not list(verify_fleets(stored, MARKET))
    for name in ("metrics", "context"):
        values[name] = values["metrics"] | {"test_crps_ratio": 0.1} if name == "metrics" else 1
        path.write_text(json.dumps(values, indent=2) + "\n")
        assert only(verify_fleets(stored, MARKET)).path.endswith("/config.json")


def test_a_kill_while_a_member_is_judged_again_costs_no_training(stored):
    """The files that judging was writing are not finished; what was trained is whole."""
    member, fleet = member_of(stored), fleet_of(stored)
    (score,) = member.glob("score-*.npz")
    with (
        suppress(KeyboardInterrupt),
        resealing(member, score.name, "model/config.json", "model/metrics.json"),
    ):
        raise KeyboardInterrupt
    score.write_bytes(b"half")
    assert not list(verify_fleets(stored, MARKET))
    assert progress_so_far(fleet) == TRAINED
    assert known_score(member) is None


def test_of_two_runs_that_judge_a_member_at_once_the_first_can_read_its_scores(stored, monkeypatch):
    """They may run the same command: the slower one is done with its figures when the first has stored its own."""
    member, fleet, compare = member_of(stored), fleet_of(stored), judge.chance_scores
    (score,) = member.glob("score-*.npz")
    with resealing(member, score.name):
        score.unlink()
    seen = []

    def while_the_other_run_judges(*how, **more):
        monkeypatch.setattr(judge, "chance_scores", compare)
        assert judge.judge_members(fleet, [SERIES.name]) == []
        monkeypatch.setattr(judge, "loss_png", lambda *_: seen.append(known_score(member)))
        return compare(*how, **more)

    monkeypatch.setattr(judge, "chance_scores", while_the_other_run_judges)
    assert judge.judge_members(fleet, [SERIES.name]) == []
    assert None not in seen
    assert known_score(member)


def test_another_run_may_correct_the_scores_of_a_shared_shard_while_a_fleet_is_logged(stored, monkeypatch):
    """Of more coins or timeframes: its p-values are corrected over more members."""
    log_members = fleet_log.log_members

    def after_the_other_run(fleet_run, records):
        metrics = read_config(member_of(stored, "model")).model_dump()["metrics"]
        write_metrics(member_of(stored), metrics | {"test_p_holm_models": 40.0}, "no different")
        return log_members(fleet_run, records)

    monkeypatch.setattr(fleet_log, "log_members", after_the_other_run)
    done, _ = train_again()
    assert done.exit_code == 0
    assert not list(verify_fleets(stored, MARKET))


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name",
    [
        f"../../{JOB}",
        f"../../{RESULT}",
        SEAL,
        "score-*.npz",
        "model/metrics.json",
        "model/reference.json",
        "model/forecast.png",
        "model/loss.png",
    ],
)
def test_damaged_records_scores_and_pictures_are_named(stored, damage, name):
    (path,) = (path.resolve() for path in member_of(stored).glob(name))
    damage(path)
    assert only(verify_fleets(stored, MARKET)).path == path.relative_to(stored).as_posix()


def test_a_fleet_in_training_is_left_alone(stored):
    flip(member_of(stored, "model/model.safetensors"))
    with locked(fleet_of(stored) / "lock"):
        assert not list(verify_fleets(stored, MARKET))
    assert list(verify_fleets(stored, MARKET))


@pytest.mark.parametrize("damage", [*DAMAGE, lambda path: path.unlink()])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "metrics.json", "forecast.png"])
def test_a_damaged_champion_is_named(stored, damage, name):
    path = champion().folder / name
    damage(path)
    damage_found = only(verify_champions(stored, MARKET))
    assert damage_found.path == path.as_posix()  # outside the home: as it is
    assert damage_found.command.startswith("cpb train-all --coins BTCUSDT ")


def test_a_damaged_champion_is_trained_again_by_the_named_command(stored):
    path = champion().folder / "model.safetensors"
    flip(path)
    damage_found = only(verify_champions(stored, MARKET))
    expected = "cpb train-all --coins BTCUSDT --timeframes 1h --source sim --architectures"
    assert damage_found.command == f"{expected} {champion().architecture} --preset smoke"
    assert f"`{damage_found.command}`" in refusal()
    options = shlex.split(damage_found.command)[2:]
    asked = dict(zip((o.removeprefix("--") for o in options[::2]), options[1::2], strict=True))
    # The user's own part of the first run's options: the named command alone learns everything that there is.
    assert run_train_all(RunSpec(**asked, since="2025-03", as_of="2025-05-20"), lambda _: None)
    assert champion().damage == ""
    assert not list(verify_champions(stored, MARKET))


def refusal():
    with pytest.raises(DamagedError) as caught:
        champion().check()
    return str(caught.value)


def test_a_store_that_is_gone_is_named_where_models_are_packaged(stored, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    told = verify_all(stored, ("sim",))
    assert not told.is_good
    assert (
        "the champions of market sim could not be checked: the MLflow store sqlite:///" in told.unchecked[0]
    )
    assert f"sqlite:///{stored.parent}/mlruns/mlflow.db" in told.unchecked[0]
    assert "unset MLFLOW_TRACKING_URI" in told.unchecked[0]
    shutil.rmtree(stored / "sim/hub")
    assert not verify_all(stored, ("sim",)).is_good
    (stored / "cpb-store.json").unlink()
    assert verify_all(stored, ("sim",)).is_good
    assert not (tmp_path / "none.db").exists()


def test_a_broken_store_is_said_once_for_all_markets(stored, tmp_path, monkeypatch):
    (tmp_path / "broken.db").write_bytes(b"no database" * 99)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/broken.db")
    (sentence,) = verify_all(stored, ("spot", "um", MARKET)).unchecked
    assert sentence.startswith("the champions of market spot, um, sim could not be checked: ")
    assert sentence.endswith("then run `cpb verify` again")
