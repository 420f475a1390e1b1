"""Pictures of every view of a running `cpb serve`: both themes, a desk and a phone.

    python docs/_site/screens.py --series BTCUSDT/1h/spot [--url URL] [--mlflow PASSWORD VIEW] [--out docs/img]

Writes `page-VIEW-WIDTH-THEME.webp` (1440 and 390 px wide, scaled to three quarters and as it is) of overview, series,
models and runs, from the top; `page.png`, the top of the series, for the README; and with `--mlflow`, the password
that `cpb ui` prints and the address of a view, `mlflow.png`.
"""

import argparse
import io
from pathlib import Path

_VIEWS = {
    "overview": ("#/?market={market}", ".series tbody tr"),
    "series": ("#/series/{series}", "#chart path.box"),
    "models": ("#/models", "#compare tbody tr"),
    "runs": ("#/runs", "#newest-runs tbody tr"),
}
"""Address of each view, and what stands once it is drawn."""
_WIDTHS = {1440: 0.75, 390: 1.0}
"""Width of the window in px, and how much the picture is scaled."""

_README = 700
"""Height of the README's picture, px."""
_MLFLOW_MS = 15_000
"""Time in which MLflow draws its charts; it keeps a connection busy, so that there is no better sign."""
_TALLEST = 2_000
"""What of a longer page is not shown, px."""


def screens(args: argparse.Namespace) -> None:
    """Write the pictures; print each one's name and kB."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    args.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=args.chromium, args=["--no-sandbox", "--disable-gpu"]
        )
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
                        place = address.format(series=args.series, market=args.series.rsplit("/", 1)[-1])
                        tab.goto(f"{args.url}/{place}")
                        tab.wait_for_selector(drawn, state="attached")
                        tab.wait_for_load_state("networkidle")
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
    parser.add_argument("--mlflow", nargs=2, metavar=("PASSWORD", "VIEW"), help="of `cpb ui`")
    parser.add_argument("--out", type=Path, default=Path("docs/img"))
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    screens(parser.parse_args())
