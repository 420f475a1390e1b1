from benchmarks import pipeline


def test_a_command_is_timed_with_its_memory(tmp_path):
    found = pipeline.measure(["--version"], tmp_path, pipeline.ROOT)
    assert found["exit"] == 0
    assert found["peak_pss_mb"] > 0
    assert found["cpu_seconds"] > 0


def test_two_clones_are_compared_within_pairs(tmp_path):
    order = []

    def run(root):
        order.append(root)
        times = len(order) if root == pipeline.ROOT else 2 * len(order)
        return {"job": dict.fromkeys(pipeline.FIGURES, times)}

    found = pipeline.against(tmp_path, 2, run)
    assert order == [tmp_path, pipeline.ROOT, pipeline.ROOT, tmp_path]
    assert found["job, seconds"] == {"here": 2.5, "there": 5, "ratio": 0.688}
