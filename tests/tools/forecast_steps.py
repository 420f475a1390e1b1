"""Steps of a forecast flow that find everything as stored."""

from types import SimpleNamespace

from schemas.handover import ForecastBatch, IngestResult, Issued
from schemas.ledger import Score, Watching
from tasks.running.step import step
from tasks.steps import Serving
from tests.tools.forecast_tools import BTC, PEPE

FORECAST = ("champions", "ingest", "forecast", "score", "watch")
"""The steps of the second DAG, in order."""

VERDICT = "better than the random walk"


class Steps:
    """Steps that find every candle and forecast as stored."""

    def one(self, step, scope, *_):
        if step == "champions":
            models = tuple(SimpleNamespace(series=series, verdict=VERDICT) for series in (BTC, PEPE))
            return Serving(models, ())
        series = tuple(scope.series)
        results = {
            "ingest": IngestResult(series=series),
            "forecast": ForecastBatch(
                issued=tuple(
                    Issued(series=s, model_version=f"{s.registered}/1", verdict=VERDICT) for s in series
                ),
                total_rows=10 * len(series),
            ),
            "score": Score(),
            "watch": Watching(),
        }
        return results[step]

    def step_of(self, name):
        return step(name)(lambda *given: self.one(name, *given))

    def stand_in(self, monkeypatch):
        """Let the forecast flow call these steps."""
        for name in FORECAST:
            monkeypatch.setattr(f"flows.forecast.{name}", self.step_of(name))
