"""Every server that cpb starts. `serve` takes one of these, and docs/security.md and the tests go through the table."""

from dataclasses import dataclass
from typing import Literal

_LOCKED = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
_OWN_PAGE = (
    # No script, style, font or image of anyone else's, no inline script, no eval, and no page may frame this one.
    # plotly sets styles inline, and saves a figure by drawing it as an image of its own.
    f"default-src 'self'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; {_LOCKED}"
)
_OTHERS_PAGE = (
    # Prefect's and MLflow's pages run inline scripts and eval, and draw from data: and blob:. Nothing is loaded from
    # or sent to another host: Prefect's login page would ask amplitude.com, MLflow's a telemetry service.
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob:{sources}; "
    "base-uri 'self'; form-action 'self'; frame-ancestors {frames}; object-src 'none'"
)


@dataclass(frozen=True)
class Listener:
    """A server of cpb, and what stands before it.

    Args:
        command: the arguments of `python -m` that start it in the foreground, with a place for the port.
        asks: who asks for the password: nobody (anyone who reaches the port may read all of it), the guard, or the
            application behind it, whose websockets are limited until they have signed in.
        policy: Content-Security-Policy; `{sources}` is filled with the listener's own other addresses.
        open_paths: what the guard hands on without a password.
        hidden_paths: what is never served.
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
_MLFLOW = _OTHERS_PAGE.replace("{frames}", "'self'")  # it shows reports in frames of its own
UI = Listener("ui", "flows.cli ui --port {port}", "guard", _MLFLOW, frozenset({"/health"}))
TRACKING = Listener(
    "tracking-server", "flows.cli tracking-server --port {port}", "guard", _MLFLOW, frozenset({"/health"})
)
PREFECT = Listener(
    "prefect", "flows.deploy.server --port {port}", "application", _OTHERS_PAGE.replace("{frames}", "'none'"),
    # what Prefect answers without a password: the page's files, its settings, two probes
    frozenset({"/api/health", "/api/ready", "/ui-settings", "/"}),
    frozenset({"/docs", "/redoc", "/api/docs", "/api/redoc"}),  # they load scripts of another site
)  # fmt: skip

LISTENERS = (PAGE, UI, TRACKING, PREFECT)
