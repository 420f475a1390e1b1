"""MLflow's standard tags: user, command and commit, where little is known of them."""

import getpass
import json
import subprocess
from importlib.metadata import PackageNotFoundError

import pytest

from tasks.tracking import context
from tasks.tracking.runs import start_fleet, start_parent
from tests.tools.tracked_members import log_member, member


@pytest.fixture(autouse=True)
def _read_again():
    context.git_commit.cache_clear()
    yield
    context.git_commit.cache_clear()


class Installed:
    def __init__(self, noted):
        self.noted = noted

    def read_text(self, name):
        assert name == "direct_url.json"
        return self.noted


def test_a_package_installed_from_a_repository_has_its_commit(monkeypatch):
    noted = {"url": "https://me:hush@host/cpb", "vcs_info": {"vcs": "git", "commit_id": "ab" * 20}}
    monkeypatch.setattr(context, "distribution", lambda name: Installed(json.dumps(noted)))
    assert context.git_commit() == "ab" * 20
    assert context.context_tags("cpb train")["mlflow.source.git.commit"] == "ab" * 20


@pytest.mark.parametrize("noted", [None, "", "{", '{"dir_info": {"editable": true}}'])
def test_without_commit_and_git_there_is_no_version(monkeypatch, noted):
    def no_git(*_args, **_options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(context, "distribution", lambda name: Installed(noted))
    monkeypatch.setattr(subprocess, "check_output", no_git)
    assert context.git_commit() == "unknown"
    assert "mlflow.source.git.commit" not in context.context_tags("cpb train")


def test_a_clone_that_is_not_installed_asks_git(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(context, "distribution", missing)
    monkeypatch.setattr(subprocess, "check_output", lambda *_, **__: "cd" * 20 + "-dirty\n")
    assert context.git_commit() == "cd" * 20 + "-dirty"
    assert context.context_tags("cpb train")["mlflow.source.git.commit"] == "cd" * 20


def test_a_container_whose_user_has_no_name(monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert context.context_tags("cpb train")["mlflow.user"] == "unknown"


def test_the_user_is_the_one_whom_the_server_knows(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ana")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hush")
    tags = context.context_tags("cpb train")
    assert tags["mlflow.user"] == "ana"
    assert "hush" not in str(tags)


def test_fleets_and_members_say_the_command_of_their_flow(store):
    flow = start_parent("f", {}, {"command": "train", "source": "https://me:hush@host"})
    fleet = start_fleet(flow.run_id, "gru", "f/gru")
    for run_id in (flow.run_id, fleet.run_id, log_member(fleet.run_id, member())):
        assert store.client.get_run(run_id).data.tags["mlflow.source.name"] == "cpb train"
