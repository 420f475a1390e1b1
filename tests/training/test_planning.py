"""A job's digest names its result; a member's seed depends on nobody else."""

import zlib

from planned import job, planned

from schemas.identity import SeriesId
from schemas.run import RunSpec, is_universal
from tasks.training.plan import job_key, member_seed, preset_label
from tasks.training.shard import home_of, prepare, progress_so_far, read_job, shard_folder


def test_the_key_names_the_result_not_the_place():
    base = job()
    assert job_key(job(planned(path="elsewhere/b.parquet"))) == job_key(base)
    others = [
        job(architecture="lstm"), job(overrides={"batch_size": 8}), job(dtype="float64"), job(seeds=2),
        job(planned(digest="e")), job(planned(market="um")), job(planned(fold=1)),
        job(planned(), planned("ETHUSDT")),
    ]  # fmt: skip
    assert len({job_key(other) for other in [base, *others]}) == len(others) + 1


def test_a_job_is_read_back_from_the_fleets_folder(tmp_path):
    for market, root in (("spot", tmp_path), ("sim", tmp_path / "sim")):
        shard = job(planned(market=market), architecture="har-universal", overrides={"batch_size": 8})
        folder = prepare(root, shard)
        assert folder == shard_folder(root, shard)
        assert read_job(folder) == shard
        assert home_of(folder, shard) == tmp_path.resolve()
        assert is_universal(shard.architecture)
        assert progress_so_far(folder) == ""


def test_a_members_seed_depends_on_nobody_else_and_spot_keeps_its_own():
    series = [
        SeriesId(m, s, t) for m in ("spot", "um") for s in ("BTCUSDT", "ETHUSDT") for t in ("1h", "15m")
    ]
    seeds = {member_seed(1, a, s, fold) for a in ("gru", "har") for s in series for fold in (0, 1, 2)}
    assert len(seeds) == 2 * 8 * 3
    assert member_seed(1, "gru", series[0]) == zlib.crc32(b"1/gru/BTCUSDT/1h")
    assert member_seed(1, "gru", series[0], 2) == zlib.crc32(b"1/gru/BTCUSDT/1h/1")


def test_a_recipe_is_the_preset_and_what_was_changed_in_it():
    assert preset_label(RunSpec(preset="smoke", coins="BTC", device="cpu"), "gru") == "smoke"
    changed = {preset_label(RunSpec(preset="smoke", **options), "gru") for options in
               ({"overrides": {"epochs": 2}}, {"seeds": 3}, {"dtype": "float64"})}  # fmt: skip
    assert len(changed) == 3
    assert all(name.startswith("smoke+") for name in changed)
