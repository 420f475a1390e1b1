from tasks.judging.promotion import Candidate, choose


def candidate(architecture, validation, test, name="BTCUSDT-1h"):
    symbol, timeframe = name.split("-")
    metrics = {"validation_crps_ratio": validation, "test_crps_ratio": test}
    return Candidate(
        name, symbol, timeframe, architecture, f"run-{architecture}", metrics, "no different from"
    )


def test_the_choice_is_made_on_validation_not_on_test():
    (choice,) = choose([candidate("gru", 0.99, 0.90), candidate("har", 0.98, 0.99)])
    assert choice.best.architecture == "har"
    assert "0.9800" in choice.reason
    assert "gru 0.9900" in choice.reason


def test_every_series_gets_its_own_champion():
    choices = choose([candidate("gru", 0.99, 1), candidate("har", 0.98, 1, "ETHUSDT-15m")])
    assert {(c.best.name, c.best.architecture) for c in choices} == {
        ("BTCUSDT-1h", "gru"),
        ("ETHUSDT-15m", "har"),
    }


def test_ties_are_settled_by_name():
    (choice,) = choose([candidate("lstm", 0.99, 1), candidate("gru", 0.99, 1)])
    assert choice.best.architecture == "gru"
