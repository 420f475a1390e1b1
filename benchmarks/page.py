"""What a browser needs for the page: first paint, the chart, frames while panning. Headless chromium, over loopback.

    python -m benchmarks.page [--series 40] [--days 365] [--home FOLDER] [--json]

Makes the home of `benchmarks.serve` (40 series with a year of hourly forecasts), starts `cpb serve` over it and opens
the page in a fresh profile each time, so that nothing is cached.

opened: first contentful paint of the overview and of a series, and when its chart stands (ms from the navigation).
pan: ms between frames (`requestAnimationFrame`) while the chart is dragged to and fro, one move a frame; and the same
moves on a blank page, which is what this machine can reach.
"""

import argparse
import statistics
from typing import Any

from benchmarks._paired import main
from benchmarks.serve import filled, service

OPENINGS, MOVES = 5, 180
_FRAMES = """async ([selector, moves]) => {
  const target = document.querySelector(selector), box = target.getBoundingClientRect();
  const at = (type, x, on) => on.dispatchEvent(
    new MouseEvent(type, {bubbles: true, buttons: 1, clientX: x, clientY: box.y + 120}));
  const middle = box.x + box.width / 2, frames = [];
  at("mousedown", middle, target);
  let last = await new Promise(requestAnimationFrame);
  for (let i = 0; i < moves; i += 1) {
    at("mousemove", middle + 150 * Math.sin(i / 15), document);
    const now = await new Promise(requestAnimationFrame);
    frames.push(now - last);
    last = now;
  }
  at("mouseup", middle, document);
  return frames;
}"""
_STANDS = "() => performance.now() * (document.querySelectorAll('#chart path.box').length > 0)"
_PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime || 0"


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "p95": ordered[int(0.95 * (len(ordered) - 1))]}


def _until(tab: Any, value: str) -> float:
    """Return a value of the page as soon as it is not 0; the page's policy forbids what playwright waits with."""
    while not (found := tab.evaluate(value)):
        tab.wait_for_timeout(10)
    return float(found)


def opened(browser: Any, base: str, view: str, *, chart: bool) -> dict[str, float]:
    """Return the milliseconds of first opens, each in a profile of its own."""
    paints, stands = [], []
    for _ in range(OPENINGS):
        with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
            tab = context.new_page()
            tab.goto(f"{base}/{view}", wait_until="commit")
            paints.append(_until(tab, _PAINT))
            if chart:
                stands.append(_until(tab, _STANDS))
    found = {"first_contentful_paint_ms": statistics.median(paints), "slowest_paint_ms": max(paints)}
    return found | ({"chart_stands_ms": statistics.median(stands)} if chart else {})


def pan(browser: Any, url: str, selector: str) -> dict[str, float]:
    """Return the time between frames while `selector` is dragged, ms."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        tab = context.new_page()
        tab.goto(url)
        tab.wait_for_selector(selector, state="attached")
        tab.wait_for_load_state("networkidle")
        frames = tab.evaluate(_FRAMES, [selector, MOVES])
    spread = _spread(frames)
    return {
        "frame_median_ms": spread["median"],
        "frame_p95_ms": spread["p95"],
        "frames_per_s": 1000 / statistics.mean(frames),
    }


def page(args: argparse.Namespace) -> dict[str, Any]:
    """Return all figures, a row for each thing that was done."""
    from playwright.sync_api import sync_playwright

    with filled(args) as (home, series), service(home) as (port, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=args.chromium, args=["--no-sandbox", "--disable-gpu", "--no-first-run"]
        )
        base = f"http://127.0.0.1:{port}"
        one = f"#/series/{series[0].symbol}/{series[0].timeframe}/{series[0].market}"
        opened(browser, base, "", chart=False)  # the service's own first answers are benchmarks.serve's
        return {
            "overview opened": opened(browser, base, "", chart=False),
            "series opened": opened(browser, base, one, chart=True),
            "chart panned": pan(browser, f"{base}/{one}", "#chart .nsewdrag"),
            "blank page": pan(browser, f"{base}/static/icon.svg", "svg"),
        }


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--series", type=int, default=40)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--home", default="", help="a home that was filled before, with these series")
    parser.add_argument("--chromium", default="/usr/bin/chromium")


if __name__ == "__main__":
    main("page", {"page": page}, options=options)
