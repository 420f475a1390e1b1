"""`cpb forecast` with the drift watch: who is looked at, who is told, and the fallback where it is asked for."""

from datetime import UTC, datetime

from live_record import read
from promotion_tools import BTC, ETH, SECOND
from typer.testing import CliRunner

from flows.cli.app import _app
from flows.forecast import run_forecast
from flows.runner import Runner
from schemas.forecasts import CHAMPION, FALLBACK
from schemas.reference import BANDS
from schemas.scope import ForecastSpec
from tasks.forecasting.stored_forecasts import latest
from tasks.forecasting.watch import Recent, keep, read_watch
from webapp.reading import scored


def hour(**options):
    said = []
    spec = ForecastSpec(
        **{"coins": "BTC,ETH", "timeframes": "1h", "source": "sim", "as_of": SECOND} | options
    )
    return run_forecast(spec, Runner(), said.append), said, spec.scope.home


def test_the_flow_looks_at_every_champion_and_the_fallback_forecasts_where_one_has_drifted(trainer):
    result, said, home = hour(fallback="on")
    assert (result["drifted"], result["fallbacks"]) == ([], 0)
    found = read_watch(home, "sim").series
    assert {one.state for one in found.values()} <= {"fine", "watch"}
    assert {one.model_version for one in found.values()} == {f"{s.registered}/1" for s in (BTC, ETH)}
    assert set(found[BTC.name].stability)

    bad = found[BTC.name].model_copy(
        update={
            "state": "drifted",
            "bands": 12.0,
            "excess": 12.0,
            "since": datetime(2025, 1, 1, tzinfo=UTC),
            "recent": Recent(
                n=1,
                missed=dict.fromkeys(BANDS, 0.4),
                ref_missed=dict.fromkeys(BANDS, 0.2),
                promised=dict.fromkeys(BANDS, 0.2),
                crps=1,
                promised_crps=1,
            ),
        }
    )
    keep(home, "sim", [bad])
    result, said, _ = hour()
    assert (len(result["drifted"]), result["fallbacks"]) == (1, 0)
    assert any(line.startswith("DRIFTED ") and "BTCUSDT 1h is drifted" in line for line in said)
    assert set(latest(home, BTC)["role"]) == {CHAMPION}
    assert scored(home, BTC, 0).head.watch.state == "drifted"
    shown = CliRunner().invoke(_app(), ["champions", "--why"]).stdout
    assert "live drifted since 2025-01-01" in shown.split("ETHUSDT 1h:")[0]

    result, _, _ = hour(fallback="on")
    assert (result["fallbacks"], result["new_rows"]) == (1, 0)  # the champion's rows stand already
    assert set(latest(home, BTC)["role"]) == {FALLBACK}
    assert set(latest(home, ETH)["role"]) == {CHAMPION}
    newest = latest(home, BTC)["issued_at"][0]
    assert set(read(home, BTC, newest)["role"]) == {CHAMPION, FALLBACK}
