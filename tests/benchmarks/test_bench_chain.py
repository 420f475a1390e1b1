from benchmarks import chain


def test_a_year_that_is_checked_is_whole_and_an_hour_is_appended():
    found = chain.time_verify(2, 40)
    assert (found["series"], found["rows"], found["files"]) == (2, 2 * 40 * 24 * 10, 2 * 2 * 2)
    assert chain.time_batch(2, repeats=1)["series"] == 2


def test_a_site_of_it_is_whole_to_its_own_verifier():
    found = chain.time_site(2, 3)
    assert (found["series"], found["rows"]) == (2, 2 * 3 * 24 * 10)
    assert 200 < found["row_bytes"] < 600
