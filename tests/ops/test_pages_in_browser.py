"""Prefect's and MLflow's own pages work under the guard's Content-Security-Policy, and ask no other host."""

from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from PIL import Image

from flows.ops.listeners import PREFECT, UI
from tests.tools.browser import launch, needs_browser
from tests.tools.started_servers import started, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_browser]


@contextmanager
def browsing(port, **options):
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
        page = browser.new_page(viewport={"width": 1440, "height": 900}, **options)
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
    from tasks.tracking.experiment import store_at

    (tmp_path / "data/mlruns").mkdir(parents=True)
    store = store_at(f"sqlite:///{tmp_path}/data/mlruns/mlflow.db")
    run = store.client.create_run(store.experiment_id, run_name="a-run-to-see")
    Image.new("RGB", (300, 200), "teal").save(tmp_path / "forecast.png")
    store.client.log_artifact(run.info.run_id, str(tmp_path / "forecast.png"))
    store.client.set_terminated(run.info.run_id)
    with started(UI, tmp_path) as (_, port):
        said = tmp_path / "ui.log"
        wait_until(lambda: "password" in said.read_text())
        auth = {"username": "cpb", "password": said.read_text().partition("password ")[2].split()[0]}
        with browsing(port, http_credentials=auth) as page:
            runs = f"http://127.0.0.1:{port}/#/experiments/{store.experiment_id}/runs"
            page.goto(runs, timeout=120_000)
            page.get_by_text("a-run-to-see").first.wait_for(timeout=120_000)
            page.goto(f"{runs}/{run.info.run_id}/artifacts/forecast.png", timeout=120_000)
            picture = page.locator("img[src^=blob]").first
            picture.wait_for(timeout=120_000)
            assert picture.evaluate("image => image.naturalWidth") == 300
