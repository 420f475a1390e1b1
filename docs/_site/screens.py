"""Pictures of every view of a running `cpb serve`: both themes, a desk and a phone.

    python docs/_site/screens.py --series BTCUSDT/1h/spot [--url URL] [--mlflow PASSWORD VIEW] [--out docs/img]
    python docs/_site/screens.py --series BTCUSDT/1h/spot --home data --at 2025-06-06T01:00

The second form serves a home itself, with the clocks of service and browser at that time (UTC): shortly after the last
candle of a mirror that has ended, nothing is stale, as it is for who runs `cpb forecast` every hour.
Writes `page-VIEW-WIDTH-THEME.webp` (1440 and 390 px wide, scaled to three quarters and as it is) of overview, series,
models and runs, from the top; `page.png`, the top of the series, for the README; and with `--mlflow`, the password
that `cpb ui` prints and the address of a view, `mlflow.png`.
"""

import argparse
import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

_VIEWS = {
    "overview": ("#/?market={market}", ".series tbody tr"),
    "series": ("#/series/{series}", "#chart path.box"),
    "models": ("#/models", "#compare tbody tr"),
    "runs": ("#/runs", "#newest-runs tbody tr"),
}
"""Address of each view, and what stands once it is drawn."""
_LOADED = "[...document.querySelectorAll('.loading')].every(part => !part.checkVisibility())"
"""Whether no part of a view says any more that it is loading."""

_WIDTHS = {1440: 0.75, 390: 1.0}
"""Width of the window in px, and how much the picture is scaled."""

_README = 700
"""Height of the README's picture, px."""
_MLFLOW_MS = 15_000
"""Time in which MLflow draws its charts; it keeps a connection busy, so that there is no better sign."""
_TALLEST = 2_000
"""What of a longer page is not shown, px."""


@contextmanager
def served(home: Path, at: datetime) -> Iterator[str]:
    """Serve a home whose data are as old as they were at an instant; yields the address."""
    import uvicorn

    from webapp.app import create_app

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return at

    os.environ["CPB_HOME"] = str(home)  # by which MLflow's store is found
    server = uvicorn.Server(uvicorn.Config(create_app(home), port=0, log_level="warning"))
    with patch("tasks.forecasting.staleness.datetime", Clock):
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.1)
        try:
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def screens(args: argparse.Namespace) -> None:
    """Write the pictures; print each one's name and kB."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    args.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=args.chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        url = running.enter_context(served(args.home, args.at)) if args.home else args.url
        if args.mlflow:
            password, address = args.mlflow
            size, auth = {"width": 1700, "height": 900}, {"username": "cpb", "password": password}
            with browser.new_context(viewport=size, http_credentials=auth) as context:
                tab = context.new_page()
                tab.goto(address)
                tab.wait_for_timeout(_MLFLOW_MS)
                tab.locator('[data-component-id="mlflow.assistant.chat_panel.close"]').click()
                tab.wait_for_timeout(_MLFLOW_MS)
                picture = Image.open(io.BytesIO(tab.screenshot()))
                picture.quantize(128).save(args.out / "mlflow.png", optimize=True)
        for width, scale in _WIDTHS.items():
            for theme in ("light", "dark"):
                with browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=theme
                ) as context:
                    for view, (address, drawn) in _VIEWS.items():
                        tab = context.new_page()
                        if args.home:
                            tab.clock.set_fixed_time(args.at)
                        place = address.format(series=args.series, market=args.series.rsplit("/", 1)[-1])
                        tab.goto(f"{url}/{place}")
                        tab.wait_for_selector(drawn, state="attached")
                        tab.wait_for_load_state("networkidle")
                        tab.wait_for_function(_LOADED)
                        picture = Image.open(io.BytesIO(tab.screenshot(full_page=True)))
                        picture = picture.crop((0, 0, picture.width, min(picture.height, _TALLEST)))
                        small = picture.resize((round(picture.width * scale), round(picture.height * scale)))
                        path = args.out / f"page-{view}-{width}-{theme}.webp"
                        small.save(path, quality=85, method=6)
                        print(path.name, round(path.stat().st_size / 1000), "kB")
                        if (view, width, theme) == ("series", 1440, "light"):
                            top = small.crop((0, 0, small.width, _README))
                            top.quantize(128).save(args.out / "page.png", optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", required=True, help="as in BTCUSDT/1h/spot")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--home", type=Path, help="serve this one, at the time of --at")
    parser.add_argument(
        "--at", type=lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC), help="UTC"
    )
    parser.add_argument("--mlflow", nargs=2, metavar=("PASSWORD", "VIEW"), help="of `cpb ui`")
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    given = parser.parse_args()
    if bool(given.home) != bool(given.at):
        parser.error("--home and --at belong together")
    screens(given)
