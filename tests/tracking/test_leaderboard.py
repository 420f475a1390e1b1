import pytest

from schemas.chances import OUTCOMES, SCORED
from schemas.errors import CpbError
from tasks.tracking.leaderboard import COLUMNS, read_board
from tasks.tracking.runs import finish, log_members, log_metrics, start_fleet, start_parent
from tests.tools.tracked_members import flow, member


def test_best_first_with_each_coin_weighing_the_same(store):
    flow("a", {"gru": [1.02, 1.0], "har": [0.97, 0.99]})

    rows = read_board()

    assert [r["architecture"] for r in rows] == ["har", "gru"]
    assert rows[0]["crps_ratio"] == pytest.approx(0.98)
    assert rows[0]["better_share"] == 1.0
    assert rows[1]["better_share"] == 0.0
    assert (rows[0]["members"], rows[0]["windows_per_s"], rows[0]["rss_peak_mb"]) == (2, 15.0, 101.0)
    assert rows[0]["train_seconds"] == 3.0
    assert list(rows[0]) == list(COLUMNS)


def test_a_run_of_fewer_coins_is_a_row_of_its_own(store):
    old = flow("old", {"har": [0.9, 0.8, 0.7], "gru": [1.1, 1.1]})
    one_coin = flow("one", {"har": [0.6]}, name="train")
    flow("running", {"lstm": [1.0], "gru": [2.0]}, finished=False)

    part, whole, gru = read_board()

    assert (whole, gru) == (board(old)["har"], board(old)["gru"])
    assert part == board(one_coin)["har"]
    assert [(r["coins"], r["flow_run"]) for r in (whole, part)] == [("C0, C1, C2", old), ("C0", one_coin)]

    again = flow("again", {"har": [0.95, 0.95, 0.95]})
    assert [(r["architecture"], r["coins"], r["flow_run"]) for r in read_board()] == [
        ("har", "C0", one_coin),
        ("har", "C0, C1, C2", again),
        ("gru", "C0, C1", old),
    ]


@pytest.mark.parametrize("asked", [{}, {"coins": "all", "preset": "default"}])
def test_a_run_on_older_candles_does_not_replace_newer_ones(store, asked):
    def trained(key, as_of):
        parent = start_parent(key, asked, {"as_of": as_of})
        fleet = start_fleet(parent.run_id, "gru", f"{key}/gru")
        log_members(fleet.run_id, [member(key=key)])
        finish(parent.run_id)

    trained("june", "2025-06-06T00:00:00+00:00")
    trained("past", "2024-01-01T00:00:00+00:00")
    assert [row["as_of"][:4] for row in read_board()] == ["2025"]
    trained("newest", "newest")
    assert [row["as_of"] > "2025-06-07" for row in read_board()] == [True]


def board(run):
    return {row["architecture"]: row for row in read_board(run)}


def test_an_interval_is_shown_only_where_its_fleet_is_whole(store):
    def pooled(key, symbols):
        parent = start_parent(key, {})
        fleet = start_fleet(parent.run_id, "har", f"{key}/har")
        log_members(fleet.run_id, [member(key=f"{key}/{s}", symbol=s, architecture="har") for s in symbols])
        values = {"": 0.9, "_low": 0.8, "_high": 0.95}
        log_metrics(
            fleet.run_id,
            {f"pooled_crps_ratio_1h{end}": v for end, v in values.items()} | {"pooled_p_1h": 0.01},
        )
        finish(parent.run_id)

    pooled("old", ["BTCUSDT", "ETHUSDT"])
    assert read_board(symbols=["BTCUSDT", "ETHUSDT"])[0]["crps_ratio_low"] == 0.8
    (part,) = read_board(symbols=["ETHUSDT"])
    assert (part["members"], part["crps_ratio_low"], part["verdict"]) == (1, None, None)
    pooled("new", ["BTCUSDT"])
    assert [(r["coins"], r["crps_ratio_low"], r["verdict"]) for r in read_board()] == [
        ("BTC, ETH", 0.8, "better"),
        ("BTC", 0.8, "better"),
    ]
    (part,) = read_board(symbols=["BTCUSDT"])
    assert (part["coins"], part["crps_ratio_low"]) == ("BTC", 0.8)


def test_the_scores_of_chances_are_means_over_coins_with_the_fleets_interval(store):
    parent = start_parent("flow", {})
    fleet = start_fleet(parent.run_id, "har", "flow/har")
    scores = {"touch": 0.95, "first": 0.97, OUTCOMES: 0.96, "above": 0.98}
    log_members(
        fleet.run_id,
        [
            member(
                key=f"flow/{symbol}",
                symbol=symbol,
                architecture="har",
                metrics={"test_crps_ratio": 0.9}
                | {f"test_{name}_brier_ratio": ratio + more for name, ratio in scores.items()},
            )
            for symbol, more in (("BTCUSDT", -0.01), ("ETHUSDT", 0.01))
        ],
    )
    log_metrics(
        fleet.run_id,
        {
            f"pooled_{name}_brier_ratio_1h_{end}": scores[name] + more
            for name in SCORED
            for end, more in (("low", -0.02), ("high", 0.02))
        },
    )
    finish(parent.run_id)
    (row,) = read_board()
    for name, ratio in scores.items():
        assert row[f"{name}_brier_ratio"] == pytest.approx(ratio)
    for name in SCORED:
        ends = [row[f"{name}_brier_ratio_{end}"] for end in ("low", "high")]
        assert ends == pytest.approx([scores[name] - 0.02, scores[name] + 0.02])
    (part,) = read_board(symbols=["ETHUSDT"])
    assert (part["first_brier_ratio"], part["first_brier_ratio_low"]) == (pytest.approx(0.98), None)


def mostly_failed(key, ratios):
    """A run of har whose members have these ratios on 1h; None: it failed."""
    parent = start_parent(key, {"market": "spot"})
    fleet = start_fleet(parent.run_id, "har", f"{key}/har")
    records = [
        member(
            key=f"{key}/{i}",
            symbol=f"C{i}USDT",
            architecture="har",
            **({"reason": "diverged", "metrics": {}} if v is None else {"metrics": {"test_crps_ratio": v}}),
        )
        for i, v in enumerate(ratios)
    ]
    log_members(fleet.run_id, records)
    finish(fleet.run_id, "partial")
    finish(parent.run_id, "partial")
    return parent.run_id


def test_models_that_failed_replace_no_row_of_models_with_a_score(store):
    old = flow("old", {"har": [0.9, 0.9, 0.9]})
    new = mostly_failed("new", [1.3, None, None])
    mostly_failed("again", [None, None, None])
    rows = [(r["flow_run"], r["coins"], r["members"], r["failed"]) for r in read_board()]
    assert rows == [(old, "C0, C1, C2", 3, 0), (new, "C0", 1, 2)]

    whole = flow("whole", {"har": [1.0, 1.0, 1.0]})
    assert [r["flow_run"] for r in read_board()] == [whole, new]


def test_a_run_without_a_score_has_no_board(store):
    failed = mostly_failed("new", [None, None])
    for run in (failed, None, "nosuch", "x' or 1=1"):
        with pytest.raises(CpbError) as caught:
            read_board(run)
        assert caught.value.code == "no-run"


def test_coins_and_timeframes_filter(store):
    flow("a", {"har": [0.9, 0.7]})

    (row,) = read_board(symbols=["C1USDT"], timeframes=["1h"])
    assert (row["members"], row["crps_ratio"]) == (1, 0.7)
    for nothing in ({"symbols": ["XRPUSDT"]}, {"timeframes": ["15m"]}):
        with pytest.raises(CpbError) as caught:
            read_board(**nothing)
        assert caught.value.code == "no-run"


@pytest.mark.parametrize(
    ("runs", "shown"),
    [
        ([("spot", "train-all"), ("sim", "train-all")], {"spot"}),
        ([("um", "train-all"), ("sim", "train-all"), ("sim", "train")], {"um"}),
        ([("um", "train-all"), ("sim", "train-all"), ("spot", "train")], {"spot", "um"}),
        ([("sim", "train-all"), ("sim", "train")], {"sim"}),
    ],
)
def test_real_and_simulated_are_never_on_one_board(store, runs, shown):
    for number, (market, name) in enumerate(runs):
        flow(f"{number}", {"har": [0.9]}, market=market, name=name)

    rows = read_board()
    assert {r["market"] for r in rows} == shown
    assert len(rows) == len(shown)


def test_of_two_fleets_of_an_architecture_in_a_run_the_newer_counts(store):
    """A run that was begun on a CPU, and continued on a GPU: with shards of another size it is another fleet."""
    parent = start_parent("k", {})
    for key, ratio in (("cpu", 0.9), ("gpu", 0.8)):
        fleet = start_fleet(parent.run_id, "gru", key)
        log_members(fleet.run_id, [member(key=key, metrics={"test_crps_ratio": ratio})])
    finish(parent.run_id)

    (row,) = read_board()

    assert (row["members"], row["crps_ratio"], row["run_id"]) == (1, 0.8, fleet.run_id)


def test_two_presets_of_an_architecture_in_a_run_are_two_rows(store):
    parent = start_parent("k", {"preset": "smoke,seed-gru"})
    for preset, ratio in (("smoke", 0.9), ("seed-gru", 0.8), ("seed-gru+0123abcd", 0.7)):
        fleet = start_fleet(
            parent.run_id, "gru", preset, {"recipe": preset}, {"preset": preset.split("+")[0]}
        )
        log_members(fleet.run_id, [member(key=preset, metrics={"test_crps_ratio": ratio})])
        finish(fleet.run_id)
    finish(parent.run_id)

    for rows in (read_board(), read_board(parent.run_id)):
        assert [(row["preset"], row["crps_ratio"]) for row in rows] == [
            ("seed-gru+0123abcd", 0.7),
            ("seed-gru", 0.8),
            ("smoke", 0.9),
        ]


def test_a_run_is_named_by_the_start_of_its_id(store):
    first, second = flow("a", {"har": [0.97]}), flow("b", {"har": [0.9], "gru": [1.0]})
    start = next(n for n in range(1, 33) if first[:n] != second[:n])

    assert read_board(second[: max(start, 4)]) == read_board(second)
    fleet = read_board(first)[0]["run_id"]
    assert read_board(fleet) == read_board(first)  # a fleet's id, as the table has it, means its flow


def test_a_prefix_of_several_runs_names_them(store):
    # two of them begin with the same hexadecimal digit
    runs = [flow(f"{i}", {"har": [0.9]}) for i in range(17)]
    start, several = next(
        (d, same) for d in "0123456789abcdef" if len(same := sorted(r for r in runs if r[0] == d)) > 1
    )
    with pytest.raises(CpbError) as caught:
        read_board(start)
    assert caught.value.code == "ambiguous-run"
    assert ", ".join(several) in str(caught.value)
