from benchmarks import pipeline


def test_a_command_is_timed_with_its_memory(tmp_path):
    answer = pipeline.measure(["--version"], tmp_path)
    assert answer["exit"] == 0
    assert answer["peak_pss_mb"] > 0
    assert answer["cpu_seconds"] > 0
