"""Prefect's and MLflow's own pages work under the guard's Content-Security-Policy, and ask no other host."""

import json
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import launch, needs_browser
from starting import started

from flows.ops.listeners import PREFECT, UI

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_browser]


@contextmanager
def browsing(port):
    """Yield a page; no request of it may go to another host, and no error may be thrown in it."""
    from playwright.sync_api import sync_playwright

    faults, foreign = [], []

    def is_own(url):
        parts = urlsplit(url)
        return parts.scheme in ("data", "blob") or parts.netloc in (f"127.0.0.1:{port}", f"localhost:{port}")

    def failed(request):
        if not is_own(request.url) and request.failure != "csp":
            foreign.append((request.url, request.failure))

    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("requestfailed", failed)
        page.on("response", lambda answer: is_own(answer.url) or foreign.append((answer.url, answer.status)))
        yield page
        page.wait_for_timeout(3000)  # what a page sends late
        browser.close()
    assert foreign == []
    assert faults == []


def test_prefects_page(tmp_path):
    with started(PREFECT, tmp_path) as (_, port), browsing(port) as page:
        password = (tmp_path / "prefect/cpb-api-auth").read_text().strip()
        for host in ("127.0.0.1", "localhost"):  # the second page asks the API under the first name
            page.goto(f"http://{host}:{port}", timeout=120_000)
            page.locator("input[type=password]").fill(password, timeout=120_000)
            page.keyboard.press("Enter")
            page.get_by_text("Run a task or flow to get started").wait_for(timeout=120_000)
            page.goto(f"http://{host}:{port}/flows", timeout=120_000)  # of Prefect's older page
            page.get_by_text("Run a flow to get started").wait_for(timeout=120_000)


def test_mlflows_page(tmp_path):
    from tasks.tracking.mlflow_store import open_store

    (tmp_path / "mlruns").mkdir()
    store = open_store(f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    run = store.client.create_run(store.experiment_id, run_name="a-run-to-see")
    store.client.set_terminated(run.info.run_id)
    with started(UI, tmp_path) as (_, port), browsing(port) as page:
        said = Path(tmp_path / "ui.log")
        for _ in range(100):
            if "/sign-in?code=" in said.read_text():
                break
            page.wait_for_timeout(100)
        link = next(word for word in said.read_text().split() if "/sign-in?code=" in word)
        page.goto(link, timeout=120_000)
        page.goto(f"http://127.0.0.1:{port}/#/experiments/{store.experiment_id}/runs", timeout=120_000)
        page.get_by_text("a-run-to-see").first.wait_for(timeout=120_000)
        assert (
            json.loads(page.evaluate("JSON.stringify(document.cookie)")) == ""
        )  # no script sees the session
