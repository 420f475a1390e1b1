"""What decisions mean, in one sentence."""

from datetime import UTC, datetime

import pytest

from schemas.decision import Decision, ModelRef, decided_sentence
from schemas.identity import SeriesId

HAR, GRU = ModelRef(recipe="har/default/3f9a12c0d4e5"), ModelRef(recipe="gru/default/3f9a12c0d4e5")


def decision(outcome, symbol="BTCUSDT", timeframe="1h", candidate=HAR):
    series = SeriesId("spot", symbol, timeframe)
    made = {"rule": "x", "version_number": "1", "decided_at": datetime(2025, 6, 5, tzinfo=UTC)}
    return Decision(series=series, outcome=outcome, candidate=candidate, incumbent=GRU, **made)


@pytest.mark.parametrize(
    ("decisions", "sentence"),
    [
        ([decision("first"), decision("first", "ETHUSDT")], "2 coins have their first champion, har"),
        ([decision("first")], "BTCUSDT 1h has its first champion, har"),
        ([decision("kept"), decision("kept", timeframe="15m")], "2 series keep their champions, gru"),
        (
            [decision("refreshed"), decision("refreshed", "ETHUSDT", candidate=GRU)],
            "2 coins have newer champions, gru and har",
        ),
        ([decision("retired")], "BTCUSDT 1h has lost its champion"),
    ],
)
def test_decisions_of_one_outcome_are_a_sentence_with_the_architectures_that_serve(decisions, sentence):
    assert decided_sentence(decisions) == sentence
