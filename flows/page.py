"""The page as files: made from what is stored, for a folder, a Space of the Hub, or both."""

from pathlib import Path

from flows.run import Run
from schemas.handover import Publication
from schemas.home import home_folder
from schemas.identity import Market
from schemas.space import SpaceSpec


def publish_page(
    market: Market,
    *,
    out: Path | None = None,
    space: str | None = None,
    private: bool = False,
    nightly: bool = False,
) -> Publication:
    """Bring the page of a market up to date in a folder, and in a Space; damaged series are failures.

    Args:
        private: create the Space as private, and refuse it if it exists and is public.
        nightly: whether the run that makes it makes it again, as every night.

    Raises:
        CpbError: as `page_files`, `write_page` and `tasks.hub.publish.publish_page`.
    """
    # FastAPI and the Hub's client take a second, which a forecast without a page does not wait for.
    from tasks.hub import publish
    from tasks.hub.page import write_page
    from webapp.published import page_files

    files, failures = page_files(home_folder(), market)
    places = []
    if out:
        changed = write_page(files, out, market, nightly=nightly)
        places.append(f"{out} ({'brought up to date' if changed else 'nothing had changed'})")
    if space:
        places.append(str(publish.publish_page(files, space, market, nightly=nightly, private=private)))
    return Publication(place=" and ".join(places), failures=tuple(failures))


def update_space(run: Run, spec: SpaceSpec) -> None:
    """Bring the Space of a run up to date, if it has one; where that fails, its forecasts stay valid."""
    if spec.space:
        with run.attempt("publish"):
            published = run.note(
                publish_page(spec.market, space=spec.space, private=spec.private, nightly=True)
            )
            run.report(f"page: {published.place}")
