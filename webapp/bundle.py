"""plotly's browser bundle, `/static/plotly.min.js`, from the wheel that is installed: nothing comes from a CDN."""

import gzip
from functools import cache
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI, Request, Response

from webapp.replies import Reply, is_known

PATH = "/static/plotly.min.js"
_YEAR_S = 31_536_000


def add_bundle(app: FastAPI) -> None:
    """Serve the bundle; with `?v=` and the installed version a browser need not ask again."""

    @app.get(PATH, include_in_schema=False)
    def bundle(request: Request, v: str = "") -> Response:
        packed = "gzip" in request.headers.get("accept-encoding", "")
        reply = _read(packed)
        fixed = v == version("plotly")
        headers = {
            "ETag": reply.etag,
            "Vary": "Accept-Encoding",
            "Cache-Control": f"public, max-age={_YEAR_S}, immutable" if fixed else "no-cache",
        }
        if is_known(request, reply.etag):
            return Response(status_code=304, headers=headers)
        if packed:
            headers["Content-Encoding"] = "gzip"
        return Response(reply.body, headers=headers, media_type="text/javascript")


@cache
def _read(packed: bool) -> Reply:
    """Return the bundle's bytes, packed once per process: 4.8 MB become 1.5."""
    import plotly

    content = (Path(plotly.__file__).parent / "package_data/plotly.min.js").read_bytes()
    return Reply.of(gzip.compress(content, 6, mtime=0) if packed else content)
