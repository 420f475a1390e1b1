"""`cpb export`: a champion for other languages."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import Json, Shown, takes
from flows.console import emit, quiet_libraries, say
from schemas.errors import CpbError, UsageError
from schemas.run import ScopeSpec

FORMATS = ("onnx",)


@takes(
    ScopeSpec,
    only=("coins", "timeframes", "market"),
    shown={
        "coins": Shown(argument=True, metavar="COIN", help="BTCUSDT, or BTC"),
        "timeframes": Shown(argument=True, metavar="TIMEFRAME", help="a Binance interval, as in 1h"),
    },
)
def export(
    spec: ScopeSpec,
    form: Annotated[str, typer.Option("--format", help="onnx")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="folder; default: export/COIN-TIMEFRAME")] = None,
    json: Json = False,
) -> None:
    """Write a champion (har, robust-har or linear) as model.onnx, with model.json that defines its columns.

    Example: cpb export BTC 1h --format onnx
    """
    if form not in FORMATS:
        raise UsageError(
            f"format {form!r} is unknown: choose from {', '.join(FORMATS)}", code="format", field="format"
        )
    if len(spec.scope.series) != 1:
        raise UsageError("`cpb export` writes one model: name one coin and one timeframe", code="one-model")
    quiet_libraries()
    import cpbmodels
    from cpbmodels.onnx_export import export_onnx
    from schemas.scope import home
    from tasks.signals.store import newest_series
    from tasks.tracking.registry import champions

    series = spec.scope.series[0]
    found = champions([series])
    if not found:
        raise CpbError(
            f"{series} has no champion yet; train first, as in `cpb train-all {series.options}`",
            code="no-champion",
        )
    found[0].check()
    folder = out or Path("export", series.name)
    try:
        paths = export_onnx(cpbmodels.load(found[0].folder), folder, newest_series(home(), series))
    except cpbmodels.ModelError as error:
        raise CpbError(str(error), code="export") from None
    if json:
        emit({"exported": found[0].model_version, "files": [str(path) for path in paths], "exit": 0})
    else:
        say(f"exported {found[0].model_version}: {' and '.join(map(str, paths))}")
