"""The views that `cpb ui` links to: which runs they are about, and that MLflow's page shows those alone."""

import json
from dataclasses import replace

import pytest
from browser import launch, needs_browser
from interface import interface
from ports import free_port
from test_leaderboard import flow

from tasks.tracking.connection import search
from tasks.tracking.database import sqlite_path
from tasks.tracking.runs import log_metrics
from tasks.tracking.tags import PARENT
from tasks.tracking.views import announced, interface_of, run_page, views


def trained(store, key, ratios, market="spot"):
    """One flow whose fleets have what the charts show; their names end in the flow's key."""
    config = {"market": market, "architectures": list(ratios)}
    run = flow(key, ratios, market=market, config=config)
    for fleet in search(store, f"tags.`{PARENT}` = '{run}'"):
        architecture = fleet.data.tags["architecture"]
        skill = {"crps_skill_percent_1h": 100 * (1 - ratios[architecture][0])}
        log_metrics(fleet.info.run_id, skill, history=[{"epoch": e, "val_loss": 1 / e} for e in (1, 2, 3)])
        store.client.update_run(fleet.info.run_id, name=f"{architecture}-of-{key}")
    return run


@pytest.fixture
def nights(store):
    """Two nights of real data, then a later training of one architecture, and simulated ones between and after."""
    trained(store, "night1", {"har": [0.97, 0.97], "gru": [0.99, 0.99]})
    trained(store, "sim1", {"har": [0.5, 0.5], "gru": [0.5, 0.5]}, "sim")
    newest = trained(store, "night2", {"har": [0.96, 0.96], "gru": [1.0, 1.0]})
    trained(store, "one", {"gru": [0.9]})
    trained(store, "sim2", {"har": [0.5, 0.5], "gru": [0.5, 0.5]}, "sim")
    return newest


def test_an_interface_is_known_as_long_as_it_runs(store):
    assert interface_of(store) is None
    with announced(store, "http://127.0.0.1:5000"):
        assert interface_of(store) == "http://127.0.0.1:5000"
        assert run_page("U", store, "r") == "U/#/experiments/1/runs/r?workflowType=machine_learning"
    sqlite_path(store.uri).with_name("ui-5000.lock").write_text("of a killed process")
    assert interface_of(store) is None
    assert interface_of(replace(store, uri="http://user:secret@host:5000")) == "http://host:5000"


def found(store, condition):
    return sorted(run.info.run_name for run in search(store, condition))


def test_the_views_are_of_the_newest_real_run_and_of_its_best_architecture(store, nights):
    newest, history = views(store)
    assert found(store, newest.filter) == ["gru-of-night2", "har-of-night2"]
    assert found(store, history.filter) == ["har-of-night1", "har-of-night2"]
    assert "real data" in newest.about


def test_before_a_real_run_the_simulated_one_is_shown_and_called_so(store):
    assert views(store) == []
    trained(store, "sim1", {"har": [0.5], "gru": [0.5]}, "sim")
    newest, history = views(store)
    assert found(store, newest.filter) == ["gru-of-sim1", "har-of-sim1"]
    assert "simulated data" in newest.about
    assert "simulated data" in history.about


@pytest.mark.slow
@needs_browser
@pytest.mark.timeout(600)  # a server and a browser start
def test_the_links_show_what_they_say_in_a_browser(store, nights, tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    views_of = interface(tmp_path, free_port(), "json.dumps([where.sign_in, *where.views.values()])")
    with views_of as (_, links), sync_api.sync_playwright() as browsers:
        browser = launch(browsers)
        context = browser.new_context(viewport={"width": 1440, "height": 1000}, reduced_motion="reduce")
        sign_in, *addresses = json.loads(links)
        entered = context.new_page()
        entered.goto(sign_in)
        _wait_for(entered, "matching runs", "Runs", "Models", "Model registry")
        assert "Traces 0" not in entered.evaluate("document.body.innerText")
        shown = [_text_of(context, link) for link in addresses]
        browser.close()
    newest, history = shown
    assert all(name in newest for name in ("har-of-night2", "gru-of-night2", "train_seconds", "val_loss"))
    assert all(name in history for name in ("har-of-night1", "har-of-night2"))
    assert "gru-of" not in history
    assert "night1" not in newest
    assert not any("of-sim" in text or "of-one" in text for text in shown)


def _text_of(context, link):
    page = context.new_page()
    page.goto(link, timeout=120_000)
    _wait_for(page, "2 matching runs", "train_seconds")
    text = page.evaluate("document.body.innerText")
    page.close()  # it would go on drawing beside the next one
    return text


def _wait_for(page, *texts):
    drawn = f"() => {json.dumps(texts)}.every(text => document.body.innerText.includes(text))"
    page.wait_for_function(
        drawn, timeout=200_000, polling=2000
    )  # by default in every frame: it lays out the page
