from benchmarks.ledger import measure


def test_an_hours_scoring_reads_two_month_files_a_series_and_nothing_is_left_out(tmp_path):
    found = measure(tmp_path, 2, 35, repeats=2)

    assert found["months"] == 4
    assert found["scored rows"] == 2 * 35 * 24 * 10
    assert found["summary.json KB"] > 1
