"""Every server that cpb starts. `serve` only accepts these; docs/security.md and the tests use the same table."""

from dataclasses import dataclass

_LOCKED = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
_OWN_PAGE = (
    # No script, style, font or image from another host, no inline script, no eval, and no framing of this page.
    # plotly sets styles inline, and saves a figure by drawing it as an image.
    f"default-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; {_LOCKED}"
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
        command: the arguments of `python -m` that start it in the foreground, with a placeholder for the port.
        policy: Content-Security-Policy; `{sources}` is replaced by the listener's other origins.
        hidden_paths: paths that are never served.
        wrong_host: HTTP status of a request for another host; 421 is part of the page's documented API.
    """

    name: str
    command: str
    policy: str
    hidden_paths: frozenset[str] = frozenset()
    wrong_host: int = 403


PAGE = Listener("page", "flows.cli serve --port {port}", _OWN_PAGE, wrong_host=421)
UI = Listener(
    "ui", "flows.cli ui --port {port}", _OTHERS_PAGE.replace("{frames}", "'self'")
)  # it shows artifacts in frames
PREFECT = Listener(
    "prefect", "flows.deploy.server --port {port}", _OTHERS_PAGE.replace("{frames}", "'none'"),
    frozenset({"/docs", "/redoc", "/api/docs", "/api/redoc"}),  # they load scripts from another site
)  # fmt: skip

LISTENERS = (PAGE, UI, PREFECT)
