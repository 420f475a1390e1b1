"""Members, jobs and fleets as plans have them, about candles that are nowhere."""

from datetime import UTC, datetime

from schemas.handover import JobMember, SeriesRecord, SplitBounds
from schemas.identity import ModelId, SeriesId
from schemas.run import RunSpec
from tasks.training.plan import member_seed, plan_fleet, plan_job


def day(n):
    return datetime(2024, 1, n, tzinfo=UTC)


def planned(
    symbol="BTCUSDT", timeframe="1h", fold=0, architecture="gru", market="spot", digest=None, path=None
):
    """A member of a job."""
    bounds = SplitBounds(
        timeframe=timeframe, train=(day(1), day(9)), validation=(day(10), day(12)), test=(day(13), day(15))
    )
    series = SeriesId(market, symbol, timeframe)
    record = SeriesRecord(
        series=series,
        path=path or f"{symbol}.npz",
        digest=digest or symbol,
        file_digest=path or "f",
        rows=9,
        first_us=0,
        last_us=1,
    )
    model = ModelId(architecture, "smoke", series, member_seed(1, architecture, series, fold))
    return JobMember(model=model, features=record, bounds=bounds, fold=fold)


def job(*members, architecture="gru", **options):
    """A job of these members, by default of one."""
    spec = RunSpec(**{"preset": "smoke", "architectures": architecture} | options)
    return plan_job(spec, spec.fleets[0], members or [planned()])


def universe(coins=40, timeframes=("15m", "1h"), architecture="gru"):
    """A member for each coin and timeframe, as a run lists them."""
    return [planned(f"C{i:03}USDT", t, architecture=architecture) for i in range(coins) for t in timeframes]


def fleet(members=None, architecture="gru", *, gpu=False, **options):
    """The fleet that trains them; by default two of the preset smoke."""
    members = members or [planned(), planned("ETHUSDT")]
    spec = RunSpec(**{"preset": "smoke", "architectures": architecture} | options)
    return plan_fleet(spec, spec.fleets[0], members, gpu=gpu)
