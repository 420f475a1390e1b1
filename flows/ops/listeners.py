"""The servers that cpb starts, and for each the rules of the guard before it (`flows.ops.guard`)."""

from dataclasses import dataclass

_OWN_PAGE = (
    # No script, style, font or image from another host, no inline script, no eval, and no framing of this page.
    # plotly sets styles inline, and saves a figure by drawing it as an image.
    "default-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
_OTHERS_PAGE = (
    # Prefect's and MLflow's pages run inline scripts and eval, and use data: and blob: images. Requests to other hosts
    # are blocked: Prefect's login page would contact amplitude.com, MLflow's page a telemetry service.
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob:{sources}; "
    "base-uri 'self'; form-action 'self'; frame-ancestors {frames}; object-src 'none'"
)


@dataclass(frozen=True)
class Listener:
    """A server of cpb, and the rules of its guard.

    Args:
        policy: Content-Security-Policy; `{sources}` is replaced by the listener's other origins.
        wrong_host: HTTP status of a request for another host; 421 is part of the page's documented API.
        own_login: whether the application asks for a password itself, as Prefect does: in a header, and in the first
            message of a websocket. The guard then only refuses what is malformed, at which Prefect fails with a
            traceback in its log: a header that is not HTTP Basic in ASCII, a message without a token in ASCII.
    """

    name: str
    policy: str
    wrong_host: int = 403
    own_login: bool = False


PAGE = Listener("page", _OWN_PAGE, wrong_host=421)
# MLflow's page shows artifacts in frames.
UI = Listener("ui", _OTHERS_PAGE.replace("{frames}", "'self'"))
PREFECT = Listener("prefect", _OTHERS_PAGE.replace("{frames}", "'none'"), own_login=True)

LISTENERS = (PAGE, UI, PREFECT)
"""Every server that cpb starts. `serve` only accepts these; docs/operations.md and the tests use the same table."""
