"""The report of a flow's run: what it says, and that MLflow's own page shows it."""

import base64
import errno
import gzip
import json
import os
import re
from datetime import UTC, datetime

import pytest
from browser import axe_findings, launch, needs_browser
from interface import interface
from known_markets import judged, market
from ports import free_port

from schemas.errors import CpbError
from schemas.handover import Decision
from schemas.identity import SeriesId
from tasks.storage.urls import local_path
from tasks.tracking.flow_report import ReportedFleet, keep_report
from tasks.tracking.prune_plan import _OWN_FILES
from tasks.tracking.records import REPORT
from tasks.tracking.runs import finish, start_parent
from tasks.tracking.tags import FLOW

SYMBOLS = ("AUSDT", "BUSDT")


EPOCHS = [{"epoch": i, "train_loss": x, "val_loss": 2 * x} for i, x in enumerate((3.0, 2.0), 1)]


@pytest.fixture(scope="module")
def fleet():
    scores = [judged(market(seed=i, symbol=s), architecture="har") for i, s in enumerate(SYMBOLS)]
    return ReportedFleet("har", EPOCHS, scores)


def reported(store, fleet, market="spot"):
    run = start_parent("k", {}, {"market": market}, name="train-all · 2 coins", store=store)
    decision = Decision(
        series=SeriesId("spot", "AUSDT", "1h"), outcome="first", rule="r", version_number="1", reason="it is the first",
        decided_at=datetime(2025, 6, 1, tzinfo=UTC),
    )  # fmt: skip
    keep_report(run.run_id, [fleet], [decision], store)
    finish(run.run_id, store=store)
    return run.run_id, local_path(store.client.get_run(run.run_id).info.artifact_uri) / REPORT


def test_it_holds_board_calibration_losses_and_decisions(store, fleet):
    _, path = reported(store, fleet)
    text = path.read_text()
    for words in (
        "train-all · 2 coins",
        "har 1h is no different",
        "Reliability",
        "Champions after this run",
        "it is the first",
    ):
        assert words in text
    assert "simulator" not in text
    assert path.stat().st_size < 2_100_000
    (packed,) = re.findall(r"<script type='application/gzip' id=figures>([^<]+)</script>", text)
    figures = json.loads(gzip.decompress(base64.b64decode(packed)))["figures"]
    losses = figures[-1]["data"]
    assert [one["y"] for one in losses] == [[6.0, 4.0], [3.0, 2.0]]
    assert REPORT in _OWN_FILES[FLOW]  # pruning knows it


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, "disk-full"), (errno.EDQUOT, "disk-full"), (errno.EIO, "artifacts")]
)
def test_a_disk_that_takes_no_more_is_named_in_a_sentence(store, fleet, monkeypatch, number, code):
    def fail(*_given, **_options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("shutil.copyfile", fail)
    with pytest.raises(CpbError, match=r"^(no space left in|artifacts cannot be written to) /") as found:
        reported(store, fleet)
    assert found.value.code == code
    assert "[" not in str(found.value)


def test_simulated_prices_are_called_so(store, fleet):
    _, path = reported(store, fleet, market="sim")
    assert "the built-in simulator" in path.read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)  # MLflow and a browser on a busy machine
@needs_browser
def test_mlflows_page_shows_it_in_its_frame_without_an_origin(store, fleet, tmp_path):
    from playwright.sync_api import sync_playwright

    run_id, _ = reported(store, fleet)
    with interface(tmp_path, free_port()) as (_, sign_in):
        with sync_playwright() as playwright:
            browser = launch(playwright)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            faults = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.goto(sign_in)
            url = sign_in.partition("/sign-in")[0]
            page.goto(f"{url}/#/experiments/{store.experiment_id}/runs/{run_id}/artifacts/{REPORT}")
            shown = page.frame_locator("iframe.mlflow-html-iframe")
            shown.locator("html[data-drawn=yes]").wait_for(state="attached", timeout=120_000)
            assert page.locator("iframe.mlflow-html-iframe").get_attribute("sandbox") == "allow-scripts"
            assert shown.locator(".plot .main-svg").count() >= 6
            assert shown.locator(".plot.failed").count() == 0
            if kept := os.environ.get("CPB_TEST_SCREENS"):
                page.screenshot(path=f"{kept}/mlflow-report.png")
            browser.close()
        assert faults == []


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_serious_and_nothing_sticks_out(store, fleet, theme, width):
    from playwright.sync_api import sync_playwright

    _, path = reported(store, fleet)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(color_scheme=theme, viewport={"width": width, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_selector(".plot svg")
        for details in page.locator("details > summary").all():
            details.click()

        assert axe_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
