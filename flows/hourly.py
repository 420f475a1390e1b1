"""The forecast as a Prefect flow, which the deployment `forecast/hourly` runs."""

from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.forecast import run_forecast
from flows.prefect import NOT_YET, as_flow
from schemas.errors import EXIT_COMPLETE, CpbError, counted
from schemas.forecasting import ForecastSpec
from schemas.home import home_folder
from schemas.scope import Scope
from tasks.forecasting.months import series_with_forecasts
from tasks.hub.packaged import serving
from tasks.tracking.experiment import NO_STORE


def _is_untrained(scope: Scope) -> bool:
    """Whether no series of the scope has a champion or ever had a forecast; a lost champion is an error."""
    if any(map(scope.selects, series_with_forecasts(home_folder(), scope.market))):
        return False
    try:
        packaged, failures = serving(home_folder(), scope.market)
    except CpbError as error:
        if error.code != NO_STORE:
            raise
        return True
    series = [*(model.series for model in packaged), *(f.series for f in failures if f.series)]
    return not any(map(scope.selects, series))


@as_flow("forecast", ForecastSpec, lambda spec: spec.scope.title)
def forecast_flow(spec: ForecastSpec) -> State:
    """Forecast with every champion of the scope from the newest candles; does nothing before the first training."""
    if _is_untrained(spec.scope):
        return Completed(
            name=NOT_YET,
            message="no champions yet: the first run of train-all creates them",
            data={"exit": EXIT_COMPLETE},
        )
    result = run_forecast(spec)
    counts = {name: value for name, value in result.items() if name not in ("rows", "models")}
    if not (failed := result["failed"]):
        return Completed(data=counts)
    # `cpb deploy status` and Prefect's page show the message, and nothing else of it.
    message = f"{counted(len(failed), 'problem')}, the first: {failed[0]}"
    return Completed(name="Partial", message=message, data=counts)
