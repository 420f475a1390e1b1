"""Every server that cpb starts. `serve` only accepts these; docs/security.md and the tests use the same table."""

from dataclasses import dataclass
from typing import Literal

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
        asks: which part checks the password: nobody (all content is public on the port), the guard, or the application
            behind it, whose websockets are limited until they have signed in.
        policy: Content-Security-Policy; `{sources}` is replaced by the listener's other origins.
        open_paths: paths served without a password.
        hidden_paths: paths that are never served.
        wrong_host: HTTP status of a request for another host; 421 is part of the page's documented API.
    """

    name: str
    command: str
    asks: Literal["nobody", "guard", "application"]
    policy: str
    open_paths: frozenset[str] = frozenset()
    hidden_paths: frozenset[str] = frozenset()
    wrong_host: int = 403


PAGE = Listener("page", "flows.cli serve --port {port}", "nobody", _OWN_PAGE, wrong_host=421)
_MLFLOW = _OTHERS_PAGE.replace("{frames}", "'self'")  # it shows reports in frames
UI = Listener("ui", "flows.cli ui --port {port}", "guard", _MLFLOW, frozenset({"/health"}))
TRACKING = Listener(
    "tracking-server", "flows.cli tracking-server --port {port}", "guard", _MLFLOW, frozenset({"/health"})
)
PREFECT = Listener(
    "prefect", "flows.deploy.server --port {port}", "application", _OTHERS_PAGE.replace("{frames}", "'none'"),
    # served by Prefect without a password: the page's files, its settings, two health checks
    frozenset({"/api/health", "/api/ready", "/ui-settings", "/"}),
    frozenset({"/docs", "/redoc", "/api/docs", "/api/redoc"}),  # they load scripts from another site
)  # fmt: skip

LISTENERS = (PAGE, UI, TRACKING, PREFECT)
