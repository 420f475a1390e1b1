from benchmarks import pipeline


def test_a_command_is_timed_with_its_memory(tmp_path):
    found = pipeline.measure(["--version"], tmp_path)
    assert found["exit"] == 0
    assert found["peak_rss_mb"] > 0
    assert pipeline.help_page(runs=1)["median_seconds"] > 0
