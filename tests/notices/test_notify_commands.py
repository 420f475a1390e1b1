"""`cpb notify` and `cpb deploy status --notify`, as real processes."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial

import pytest

from flows.deploy.services import Service
from tasks.notices.services import DEADLINE_S
from tasks.storage.processes import ProcessId
from tasks.storage.records import write_record


def cpb(*arguments, program=(sys.executable, "-m", "flows.cli"), **env):
    return subprocess.run(
        [*program, *map(str, arguments)],
        env=os.environ | env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def forked(forking):
    return partial(cpb, program=[forking / "cpb"])


def last(done):
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_services_are_listed_and_tried_by_their_scheme_alone(inbox, forked):
    listed = forked("notify", "--json")
    assert last(listed) == {"services": ["json (service 1)"], "exit": 0}
    tried = forked("notify", "--test", "--json", CPB_NOTIFY=f"{inbox.url} json://127.0.0.1:9/other-token")
    assert tried.returncode == 0
    assert [one["accepted"] for one in last(tried)["services"]] == [True, False]
    assert "test message" in inbox.messages[0]["message"]
    for secret in ("sesame", "token"):
        assert secret not in listed.stdout + listed.stderr + tried.stdout + tried.stderr


def test_where_no_service_accepts_it_exits_1_and_without_any_2(home, forked):
    assert forked("notify", "--test", CPB_NOTIFY="json://127.0.0.1:9/token").returncode == 1
    unset = forked("notify", "--test")
    assert unset.returncode == 2
    assert unset.stderr.count("\n") == 1
    assert "CPB_NOTIFY" in unset.stderr
    (home / "notify").write_text("json://127.0.0.1:9/token")
    (home / "notify").chmod(0o644)
    refused = forked("notify")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "chmod 600" in refused.stderr


@pytest.mark.slow
def test_a_service_that_never_ends_its_answer_ends_the_command_within_10_seconds(inbox):
    inbox.slow = True
    assert DEADLINE_S < 10
    done = cpb("notify", "--test")
    assert done.returncode == 1
    assert f"no answer within {DEADLINE_S:.0f} s" in done.stderr


def test_status_tells_what_is_wrong_once_a_day(inbox, home, tmp_path):
    here = ProcessId.current()
    dead = ProcessId(here.host, here.boot_id, here.pid, here.started - 1000)  # its number is another's now
    state = tmp_path / "state"
    for name in ("server", "worker"):
        one = Service(
            name=name, process=dead, since=datetime.now(UTC), port=4299, home=tmp_path, data_home=home
        )
        write_record(state / f"{name}.json", one)
    env = {"CPB_DEPLOY_STATE": str(state), "PREFECT_HOME": str(tmp_path)}
    first = cpb("deploy", "status", "--notify", **env)
    assert first.returncode == 1
    assert "json (service 1): notified" in first.stderr
    (found,) = inbox.messages
    assert "service dead" in found["title"]
    assert "the server no longer runs" in found["message"]
    assert "the worker no longer runs" in found["message"]
    again = cpb("deploy", "status", "--notify", "--json", **env)
    assert again.returncode == 1
    assert len(last(again)["problems"]) == 2
    assert len(inbox.messages) == 1


def test_status_cannot_notify_where_nobody_is_named(home, tmp_path):
    done = cpb(
        "deploy", "status", "--notify", CPB_DEPLOY_STATE=str(tmp_path / "state"), PREFECT_HOME=str(tmp_path)
    )
    assert done.returncode == 2
    assert "CPB_NOTIFY" in done.stderr
