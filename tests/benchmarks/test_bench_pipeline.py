from benchmarks import pipeline


def test_a_command_is_timed_with_its_memory(tmp_path):
    found = pipeline.measure(["--version"], tmp_path)
    assert found["exit"] == 0
    assert found["peak_pss_mb"] > 0
    assert found["cpu_seconds"] > 0
