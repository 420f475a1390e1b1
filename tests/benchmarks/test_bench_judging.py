from benchmarks import judging


def test_every_member_is_judged_pooled_and_compared():
    found = judging.judge(members=2, architectures=2)
    assert found["forecast_rows"] == 2 * 2 * 2000 * 10
    assert (found["pools"], found["pairs"]) == (2, 1)
    assert found["rss_peak_mb"] > 100


def test_features_and_pictures_are_made():
    assert judging.features(rows=3000)["rows_per_s"] > 0
    assert all(ms > 0 for ms in judging.pictures(count=1).values())
