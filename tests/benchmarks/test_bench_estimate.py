import pytest

from benchmarks import estimate


@pytest.mark.slow
def test_the_estimate_and_a_training_are_held_side_by_side(tmp_path, monkeypatch, capsys):
    """Two coins, two timeframes and a small model: the figures are not looked at, only that all are there."""
    monkeypatch.chdir(tmp_path)
    sizes = (
        "hidden_dim=8",
        "n_layers=1",
        "batch_size=256",
        "max_validation_windows=200",
        "max_train_rows=900",
    )
    words = [word for size in sizes for word in ("--set", size)]
    code = estimate.main(["--preset", "seed-gru", "--epochs", "2", "--coins", "BTC,ETH", *words])
    shown = capsys.readouterr().out
    assert code in (0, 1)
    assert "4 models of seed-gru, 2 epochs" in shown
    for row in ("trained", "estimate", "estimate again"):
        assert f"| {row} |" in shown
    assert "estimate / trained = " in shown
