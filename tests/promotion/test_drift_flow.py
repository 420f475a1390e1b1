"""`cpb forecast` with the drift watch: who is looked at, and who is told."""

from datetime import UTC, datetime

from typer.testing import CliRunner

from flows.cli.app import _app
from flows.forecast import run_forecast
from schemas.forecasting import ForecastSpec
from tasks.forecasting.watch import read_watch, save_watch
from tests.tools.promotion_tools import BTC, ETH, SECOND
from webapp.one_series import scored


def hour(**options):
    said = []
    spec = ForecastSpec(
        **{"coins": "BTC,ETH", "timeframes": "1h", "source": "sim", "as_of": SECOND} | options
    )
    return run_forecast(spec, said.append), said, spec.scope.home


def test_the_flow_looks_at_every_champion_and_tells_of_one_that_has_drifted(trainer):
    result, said, home = hour()
    assert result["drifted"] == []
    watches = read_watch(home, "sim").series
    assert {watched.state for watched in watches.values()} <= {"fine", "watch"}
    assert {watched.model_version for watched in watches.values()} == {
        f"{s.registered}/1" for s in (BTC, ETH)
    }

    since = datetime(2025, 1, 1, tzinfo=UTC)
    bad = watches[BTC.name].model_copy(
        update={"state": "drifted", "bands": 12.0, "excess": 12.0, "since": since}
    )
    save_watch(home, "sim", [bad])
    result, said, _ = hour()
    assert len(result["drifted"]) == 1
    assert any(line.startswith("DRIFTED ") and "BTCUSDT 1h is drifted" in line for line in said)
    assert scored(home, BTC, 0)[0].watch.state == "drifted"
    shown = CliRunner().invoke(_app(), ["champions", "--why"]).stdout
    assert "live drifted since 2025-01-01" in shown.split("ETHUSDT 1h:")[0]
