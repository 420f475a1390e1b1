"""Two whole files of one kind in each other's place: whatever lists their digests tells, `cpb verify` names both."""

import pytest

from flows.forecast import run_forecast
from schemas.identity import SeriesId
from tasks.steps import publish
from tasks.tracking.champions import champions
from tasks.tracking.store import open_store
from tasks.verify.verification import verify_all
from tests.tools.stored_home import MARKET, SERIES, fleet_of, hour, member_of, train_again
from tests.tools.verifying import verify_published

OTHER = SeriesId(MARKET, "ETHUSDT", "1h")


def exchange(first, second):
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def of_both(tree, name):
    return lambda home: [next(series.folder(home, tree).glob(name)) for series in (SERIES, OTHER)]


def months(home):
    return [SERIES.folder(home, "klines") / f"2025-0{month}.parquet" for month in (3, 4)]


def of_members(name):
    """The files of both members of one fleet."""
    return lambda home: [next((fleet_of(home) / "members" / s.name).glob(name)) for s in (SERIES, OTHER)]


def of_fleets(name):
    return lambda home: [folder / name for folder in sorted((home / MARKET / "fleets").iterdir())]


def of_champions(name):
    return lambda home: [model.folder / name for model in champions(open_store(), market=MARKET)]


def published(name):
    return lambda home: [home / MARKET / "hub" / s.label / s.timeframe / name for s in (SERIES, OTHER)]


FILES = {
    "candles of two coins": of_both("klines", "2025-04.parquet"),
    "candles of two months": months,
    "features of two coins": of_both("features", "*.parquet"),
    "weights": of_members("model/model.safetensors"),
    "configs": of_members("model/config.json"),
    "scores of models": of_members("score-*.npz"),
    "metrics": of_members("model/metrics.json"),
    "references": of_members("model/reference.json"),
    "references of two fleets": of_fleets(f"members/{SERIES.name}/model/reference.json"),
    "pictures": of_members("model/forecast.png"),
    "pictures of two fleets": of_fleets(f"members/{SERIES.name}/model/loss.png"),
    "pictures of one model": lambda home: [
        member_of(home, f"model/{name}") for name in ("loss.png", "forecast.png")
    ],
    "weights of champions": of_champions("model.safetensors"),
    "forecasts": of_both("forecasts", "2025-05.parquet"),
    "scores": of_both("ledger", "2025-05.parquet"),
    "sums of scores": of_both("ledger", "daily.parquet"),
    "published weights": published("model.safetensors"),
    "published scores": published("metrics.json"),
    "published pictures": published("loss.png"),
}


@pytest.mark.parametrize("kind", FILES)
def test_both_files_are_named(stored, kind):
    pair = FILES[kind](stored)
    exchange(*pair)
    named = {damage.path for damage in verify_all(stored, (MARKET,)).damaged}
    assert {p.relative_to(stored).as_posix() if p.is_relative_to(stored) else str(p) for p in pair} <= named


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "candles of two coins",
        "candles of two months",
        "weights",
        "sums of scores",
        "scores of models",
        "references",
        "pictures",
    ],
)
def test_the_next_runs_mend_what_can_be_made_anew(stored, monkeypatch, kind):
    exchange(*FILES[kind](stored))
    # the first names damaged candles, and the second fetches them again
    for day in ("2025-05-22", "2025-05-23"):
        train_again()
        run_forecast(hour(day), lambda _: None)
    assert verify_all(stored, (MARKET,)).damaged == []
    assert train_again()[0].exit_code == 0


@pytest.mark.parametrize("name", ["README.md", "SHA256SUMS"])
def test_every_file_of_the_published_folder_is_checked_and_made_again(stored, name):
    publish(MARKET)
    path = stored / MARKET / "hub" / name
    path.write_text(path.read_text() + "x")
    (damage,) = verify_published(stored, MARKET)
    assert (damage.path, damage.command) == (
        path.relative_to(stored).as_posix(),
        f"cpb publish --dry-run --market {MARKET}",
    )
    publish(MARKET)
    assert list(verify_published(stored, MARKET)) == []
