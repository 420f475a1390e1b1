"""A job's digest names its result; a member's seed depends on nobody else."""

from datetime import UTC, datetime

from schemas.handover import JobMember, SeriesRecord, SplitBounds
from schemas.identity import ModelId, SeriesId
from schemas.run import RunSpec, is_universal
from tasks.training.plan import job_key, member_seed, plan_job, preset_label
from tasks.training.shard import home_of, prepare, progress_so_far, read_job, shard_folder


def day(n):
    return datetime(2024, 1, n, tzinfo=UTC)


BOUNDS = SplitBounds(
    timeframe="1h", train=(day(1), day(9)), validation=(day(10), day(12)), test=(day(13), day(15))
)


def member(
    symbol="BTCUSDT", market="spot", digest="d", path="a.parquet", fold=0, architecture="gru", **changes
):
    series = SeriesId(market, symbol, "1h")
    seed = member_seed(1, architecture, series, fold)
    record = SeriesRecord(
        series=series, path=path, digest=digest, file_digest=path, rows=9, first_us=0, last_us=1
    )
    model = ModelId(architecture, "smoke", series, seed)
    return JobMember(model=model, features=record, bounds=BOUNDS, fold=fold, **changes)


def job(*members, architecture="gru", **options):
    return plan_job(RunSpec(preset="smoke", **options), architecture, members or [member()])


def test_the_key_names_the_result_not_the_place():
    base = job()
    assert job_key(job(member(path="elsewhere/b.parquet"))) == job_key(base)
    others = [
        job(architecture="lstm"), job(overrides={"batch_size": 8}), job(dtype="float64"), job(seeds=2),
        job(member(digest="e")), job(member(market="um")), job(member(fold=1)), job(member(continues="x")),
        job(member(), member("ETHUSDT")),
    ]  # fmt: skip
    assert len({job_key(one) for one in [base, *others]}) == len(others) + 1


def test_a_job_is_read_back_from_the_fleets_folder(tmp_path):
    for market, root in (("spot", tmp_path), ("sim", tmp_path / "sim")):
        planned = job(member(market=market), architecture="har-universal", overrides={"batch_size": 8})
        folder = prepare(root, planned)
        assert folder == shard_folder(root, planned)
        assert read_job(folder) == planned
        assert home_of(folder, planned) == tmp_path.resolve()
        assert is_universal(planned.architecture)
        assert progress_so_far(folder) == ""


def test_a_members_seed_depends_on_nobody_else_and_spot_keeps_its_own():
    series = [
        SeriesId(m, s, t) for m in ("spot", "um") for s in ("BTCUSDT", "ETHUSDT") for t in ("1h", "15m")
    ]
    seeds = {member_seed(1, a, s, fold) for a in ("gru", "har") for s in series for fold in (0, 1, 2)}
    assert len(seeds) == 2 * 8 * 3
    import zlib

    assert member_seed(1, "gru", series[0]) == zlib.crc32(b"1/gru/BTCUSDT/1h")
    assert member_seed(1, "gru", series[0], 2) == zlib.crc32(b"1/gru/BTCUSDT/1h/1")


def test_a_recipe_is_the_preset_and_what_was_changed_in_it():
    assert preset_label(RunSpec(preset="smoke", coins="BTC", device="cpu"), "gru") == "smoke"
    changed = {preset_label(RunSpec(preset="smoke", **options), "gru") for options in
               ({"overrides": {"epochs": 2}}, {"seeds": 3}, {"dtype": "float64"})}  # fmt: skip
    assert len(changed) == 3
    assert all(name.startswith("smoke+") for name in changed)
