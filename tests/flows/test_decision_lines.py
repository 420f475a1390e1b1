"""What a run says of the gate's decisions: sentences, without internals."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from flows.sentences import decision_lines
from schemas.decision import Decision, ModelRef
from schemas.identity import SeriesId

VERDICTS = {
    "b": "better than the random walk with EWMA volatility (CRPS ratio 0.9783, n=9)",
    "s": "no different from the random walk with EWMA volatility (CRPS ratio 1.0001, n=9)",
    "w": "worse than the random walk with EWMA volatility (CRPS ratio 1.1, n=9)",
    "u": "",
}
FIRST = "it had no champion; {}/smoke/e63780cf27db is the best of 5 recipes"


def decision(
    run_id, outcome="first", symbol="BTCUSDT", timeframe="1h", architecture="har", rule="", reason=""
):
    model = ModelRef(run_id=run_id, recipe=f"{architecture}/smoke/e63780cf27db")
    return Decision(
        series=SeriesId("spot", symbol, timeframe),
        outcome=outcome,
        rule=rule or outcome,
        version_number="1",
        candidate=model,
        incumbent=model,
        reason=reason or FIRST.format(architecture),
        decided_at=datetime(2025, 6, 5, tzinfo=UTC),
    )


def said(*decisions, verdicts=VERDICTS):
    judgements = [SimpleNamespace(run_id=run_id, verdict=verdict) for run_id, verdict in verdicts.items()]
    return decision_lines(decisions, [SimpleNamespace(judgements=judgements)])


@pytest.mark.parametrize(
    ("runs", "finding"),
    [
        ("bbbb", "better than a random walk's"),
        ("ssss", "no different from a random walk's"),
        ("wwww", "worse than a random walk's"),
        ("uuuu", "not judged"),
        ("bbsb", "better than a random walk's for 3, no different for 1"),
        ("sbsw", "no different from a random walk's for 2, better for 1, worse for 1"),
        ("uubu", "not judged for 3, better for 1"),
        ("bbbu", "better than a random walk's for 3, not judged for 1"),
    ],
)
def test_the_finding_about_the_models_that_serve_is_told_with_them(runs, finding):
    coins = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "XRPUSDT")
    lines = said(*(decision(run, symbol=coin) for run, coin in zip(runs, coins, strict=True)))
    assert lines == [
        f"4 coins have their first champion, har: on the test span its bands were {finding}",
        "BTCUSDT 1h and 3 more: it had no champion; har of preset smoke is the best of 5 recipes",
    ]


def test_architectures_and_outcomes_have_a_sentence_each():
    lines = said(
        decision("b"),
        decision("s", timeframe="15m"),
        decision("w", symbol="ETHUSDT", architecture="gru"),
        decision(
            "x", "kept", "SOLUSDT", reason="gru/default/3f9a12c0d4e5 is worse than the champion", rule="worse"
        ),
        decision(
            "b", "refreshed", "XRPUSDT", reason="har/default/3f9a12c0d4e5 is not worse than the champion"
        ),
        decision("b", "retired", "LUNAUSDT", reason="LUNAUSDT 1h has not been traded since 2022-05-13"),
    )
    assert lines == [
        "2 series have their first champion, har: on the test span its bands were better than a random walk's for 1, "
        "no different for 1",
        "BTCUSDT 1h and 1 more: it had no champion; har of preset smoke is the best of 5 recipes",
        "ETHUSDT 1h has its first champion, gru: on the test span its bands were worse than a random walk's",
        "ETHUSDT 1h: it had no champion; gru of preset smoke is the best of 5 recipes",
        # of a model that this run has not judged, nothing is said here
        "SOLUSDT 1h keeps its champion, har",
        "SOLUSDT 1h: gru of preset default is worse than the champion",
        "XRPUSDT 1h has a newer champion, har: on the test span its bands were better than a random walk's",
        "XRPUSDT 1h: har of preset default is not worse than the champion",
        "LUNAUSDT 1h has lost its champion",
        "LUNAUSDT 1h: LUNAUSDT 1h has not been traded since 2022-05-13",
    ]
