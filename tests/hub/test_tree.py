import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from schemas.coins import COINS
from schemas.errors import CpbError, DamagedError
from tasks.hub.card import model_card, verdict
from tasks.hub.packaged import package
from tasks.hub.publish import publish_tree
from tasks.hub.tree import build_tree
from tasks.storage.model_folder import file_digests
from tasks.storage.wheel import Wheel, light_wheel
from tests.tools.fake_hub import metadata_faults
from tests.tools.hub_models import candles, champion

WHEEL = Wheel("cpbmodels-9.9-py3-none-any.whl", b"the library")


def test_tree_holds_model_folders_and_the_card_only(tmp_path):
    tree = build_tree(
        [champion(tmp_path / "a"), champion(tmp_path / "b", "ETHUSDT", "15m")], tmp_path / "tree"
    )

    assert sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file()) == [
        "BTCUSDT/1h/config.json",
        "BTCUSDT/1h/forecast.png",
        "BTCUSDT/1h/model.safetensors",
        "ETHUSDT/15m/config.json",
        "ETHUSDT/15m/forecast.png",
        "ETHUSDT/15m/model.safetensors",
        "README.md",
        "SHA256SUMS",
        light_wheel().name,
        "results.json",
    ]
    assert (tree / light_wheel().name).read_bytes() == light_wheel().data


@pytest.mark.parametrize(
    ("market", "ends"),
    [
        ("um", "as in `cpb train-all --market um`, or publish those of `--market spot`"),
        ("spot", "as in `cpb train-all`"),
    ],
)
def test_no_champion_is_an_error_that_names_the_markets_with_some(tmp_path, monkeypatch, market, ends):
    kept = [champion(tmp_path / "a")] if market == "um" else []
    monkeypatch.setattr("tasks.hub.packaged.open_store", lambda **_: None)
    monkeypatch.setattr("tasks.hub.packaged.not_registered", lambda *_: [])
    monkeypatch.setattr("tasks.hub.packaged.champions", lambda _, market=None: [] if market else kept)
    with pytest.raises(CpbError) as caught:
        package(tmp_path, market)
    assert caught.value.code == "no-champion"
    assert str(caught.value).endswith(ends)


def test_the_card_states_results_licence_limits_and_metadata(tmp_path):
    models = [champion(tmp_path / "a", ratio=0.9731), champion(tmp_path / "b", "ETHUSDT", ratio=1.02)]

    card = ModelCard(model_card(models, "alice/cpb", WHEEL))

    assert (card.data.license, card.data.library_name) == ("mit", "cpbmodels")
    assert "| BTCUSDT | 1h | har | 0.9731 | better | – | – |" in card.text
    assert f"https://huggingface.co/alice/cpb/resolve/main/{WHEEL.name}#sha256={WHEEL.sha256}" in card.text
    assert 'from_hub("alice/cpb", symbol, timeframe, market="spot")' in card.text
    assert "Not financial advice" in card.text
    assert "simulated" not in card.text
    assert "verify.py" not in card.text


def test_the_card_tells_two_presets_of_an_architecture_apart(tmp_path):
    models = [champion(tmp_path / name, f"{name}USDT") for name in ("BTC", "ETH")]
    tags = {"recipe": "seed-gru+0a1b2c3d", "preset": "seed-gru"}
    other = replace(models[1], tags=models[1].tags | tags)
    card = model_card([models[0], other], "alice/cpb", WHEEL)
    assert f"| BTCUSDT | 1h | har/{models[0].preset or 'unknown'} |" in card
    assert "| ETHUSDT | 1h | har/seed-gru+0a1b2c3d |" in card
    assert "| ETHUSDT | 1h | har |" in model_card([other], "alice/cpb", WHEEL)


RATIOS = {"test_mae_ratio": 0.9999999, "test_touch_brier_ratio": 0.95, "test_mase": 2.5} | {
    "test_first_brier_ratio": 0.97,
    "test_above_brier_ratio": 0.98,
}


def test_the_metadata_hold_each_champions_scores_as_the_hub_reads_them(tmp_path):
    """By huggingface_hub's own classes, and back; a score that is not known is left out."""
    models = [
        champion(tmp_path / "a", ratio=0.9731, **RATIOS),
        champion(tmp_path / "b", "ETHUSDT", "15m", ratio=math.nan, test_mae_ratio=1.01),
        champion(tmp_path / "c", "XRPUSDT", ratio=math.nan),
    ]
    text = model_card(models, "alice/cpb", WHEEL)
    data = ModelCard(text).data

    assert data.pipeline_tag == "time-series-forecasting"
    assert data.library_name == WHEEL.name.split("-")[0] == "cpbmodels"
    assert data.license == "mit"
    assert "datasets" not in data.to_dict()  # none of the Hub's
    found = [(r.dataset_name, r.dataset_config, r.metric_type, r.metric_value) for r in data.eval_results]
    assert found == [
        ("BTCUSDT 1h", "BTCUSDT-1h", "crps_ratio", 0.9731),
        ("BTCUSDT 1h", "BTCUSDT-1h", "mae_ratio", 1.0),
        ("BTCUSDT 1h", "BTCUSDT-1h", "touch_brier_ratio", 0.95),
        ("BTCUSDT 1h", "BTCUSDT-1h", "first_brier_ratio", 0.97),
        ("BTCUSDT 1h", "BTCUSDT-1h", "above_brier_ratio", 0.98),
        ("ETHUSDT 15m", "ETHUSDT-15m", "mae_ratio", 1.01),
    ]
    assert {(r.task_type, r.dataset_type, r.dataset_split) for r in data.eval_results} == {
        ("time-series-forecasting", "binance-spot-klines", "test")
    }
    index = data.to_dict()["model-index"]
    assert len(index[0]["results"]) == 2  # one per data set
    assert model_index_to_eval_results(index) == ("cpb", data.eval_results)
    assert eval_results_to_model_index("cpb", data.eval_results) == index
    assert metadata_faults(text) == []


def test_a_card_without_scores_has_no_index(tmp_path):
    text = model_card([champion(tmp_path / "a", ratio=math.nan)], "alice/cpb", WHEEL)
    assert "model-index" not in text
    assert metadata_faults(text) == []


def test_a_commit_sends_the_card_through_the_hubs_check(hub, tmp_path):
    """As huggingface_hub asks the Hub: before a commit, and by `ModelCard.validate`."""
    tree = build_tree([champion(tmp_path / "a", **RATIOS)], tmp_path / "tree", "alice/cpb")
    publish_tree(tree, "alice/cpb")
    assert hub.count("POST", "/api/validate-yaml") == 1

    text = hub.content("alice/cpb", "README.md").decode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        ModelCard(text).validate()
        with pytest.raises(ValueError, match="time-series-forecast"):
            ModelCard(
                text.replace("pipeline_tag: time-series-forecasting", "pipeline_tag: time-series-forecast")
            ).validate()
    assert hub.count("POST", "/api/validate-yaml") == 3


def test_the_card_shows_the_picture_that_lies_in_the_tree(tmp_path):
    """BTC's of the longest candles, else another that is there."""
    models = [
        champion(tmp_path / "a", "ADAUSDT", "4h"),
        champion(tmp_path / "b", "BTCUSDT", "15m"),
        champion(tmp_path / "c", "BTCUSDT", "1h"),
    ]
    for shown in ("BTCUSDT/1h", "BTCUSDT/15m", "ADAUSDT/4h"):
        tree = build_tree(models, tmp_path / "tree")
        (path,) = re.findall(r"!\[A forecast of .*\]\((.*)\)", (tree / "README.md").read_text())
        assert path == f"{shown}/forecast.png"
        assert (tree / path).is_file()
        gone = next(m for m in models if f"{m.series.symbol}/{m.series.timeframe}" == shown)
        (gone.folder / "forecast.png").unlink()
    assert "![" not in (build_tree(models, tmp_path / "tree") / "README.md").read_text()


BINANCE = "(https://data.binance.vision/?prefix=data/{}/), under Binance's terms"
MARKETS = {
    "spot": "[Public klines of Binance's spot market]" + BINANCE.format("spot"),
    "um": "Binance's USDT-margined futures market]" + BINANCE.format("futures/um"),
    "cm": "Binance's coin-margined futures market]" + BINANCE.format("futures/cm"),
    "sim": "\nSimulated klines. Not included here",
    "own": "\nThe publisher's own candles. Not included here",
}


@pytest.mark.parametrize("market", MARKETS)
def test_the_card_names_the_data_of_each_market(tmp_path, market):
    text = model_card([champion(tmp_path / "a", market=market)], "alice/cpb", WHEEL)
    assert MARKETS[market] in text
    names = {"sim": "simulated-klines", "own": "own-klines"}
    (result,) = ModelCard(text).data.eval_results
    assert result.dataset_type == names.get(market, f"binance-{market}-klines")


def test_the_card_of_forty_champions_has_a_line_for_each(tmp_path):
    coins = [f"{coin}USDT" for coin in COINS]
    models = [
        champion(tmp_path / f"{coin}{timeframe}", coin, timeframe, ratio=0.98, **RATIOS)
        for timeframe in ("15m", "1h")
        for coin in coins
    ]
    card = ModelCard(model_card(models, "alice/cpb", WHEEL))
    assert len(re.findall(r"^\| \w+USDT \|", card.text, re.MULTILINE)) == 40
    assert len(card.data.to_dict()["model-index"][0]["results"]) == 40
    assert len(card.text.splitlines()) < 150
    assert metadata_faults(card.content) == []


def test_the_verdict_counts_what_the_tables_findings_say(tmp_path):
    ends = {"test_crps_ratio_low": 0.95, "test_crps_ratio_high": 0.99}
    models = [champion(tmp_path / str(ratio), ratio=ratio, **ends) for ratio in (0.97, 0.99, 1.05)]
    verdicts = ("better than X", "no different from X (…, p=0.06)", "worse than X")
    models = [replace(m, tags=m.tags | {"verdict": v}) for m, v in zip(models, verdicts, strict=True)]

    text = verdict(models)

    assert "2 of 3 models have a lower CRPS" in text
    assert "1 of them significantly; 1 are significantly worse" in text
    assert "1.0 % lower than the random walk's" in text
    card = model_card(
        [replace(m, tags=m.tags | {"cpb.selected_on": "x"}) for m in models], "alice/cpb", WHEEL
    )
    assert "| 0.9700 [0.9500, 0.9900] | better, selected on this span |" in card
    assert "| no different, selected on this span |" in card


def test_models_of_the_simulator_are_called_a_demonstration(tmp_path):
    card = model_card([champion(tmp_path / "a", market="sim")], "alice/cpb", WHEEL)
    assert "of the next closes of a **simulated market** (a demonstration" in card
    assert "## Data\n\nSimulated klines. Not included here." in card
    assert "type: simulated-klines" in card


def test_the_card_of_own_candles_reads_a_table_and_names_no_exchange(tmp_path, monkeypatch, capsys):
    card = model_card([champion(tmp_path / "a", market="own")], "alice/cpb", WHEEL)
    assert "binance" not in card.lower()
    assert "of the next closes of the publisher's own candles" in card

    (code,) = re.findall(r"```python\n(.*?)\n```", card, re.DOTALL)
    asked = []
    model = SimpleNamespace(forecast=lambda series: SimpleNamespace(to_frame=lambda stop: len(series)))
    monkeypatch.setattr(
        "cpbmodels.from_hub", lambda *series, **market: asked.append((series, market)) or model
    )
    monkeypatch.chdir(tmp_path)
    for time in (pl.col("open_time"), pl.from_epoch("open_time").dt.strftime("%Y-%m-%dT%H:%M:%SZ")):
        candles(60).with_columns(open_time=time).write_csv("candles.csv")
        exec(code, {})
        assert capsys.readouterr().out == "60\n"
    assert asked[0] == (("alice/cpb", "BTCUSDT", "1h"), {"market": "own"})


def test_the_card_shows_the_spans(tmp_path):
    model = champion(tmp_path / "a", "ETHUSDT")
    spans = {
        "training_span": ["2024-01-01T05:00:00.000000Z", "2024-12-01T10:00:00.000000Z"],
        "bounds": {"timeframe": "1h", "test": ["2025-01-01T00:00:00Z", "2025-06-01T00:00:00Z"]},
    }
    (model.folder / "config.json").write_text(json.dumps({"architecture": "har"} | spans))

    trained, tested = "2024-01-01 05:00 to 2024-12-01 10:00", "2025-01-01 00:00 to 2025-06-01 00:00"
    assert f" | {tested} | {trained} |" in model_card([model], "alice/cpb", WHEEL)


def test_the_card_of_another_hub_installs_from_there_without_its_password(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://me:pw@hub.example.org/")

    card = model_card([champion(tmp_path / "a", market="um")], "alice/cpb", WHEEL)

    assert f"@ https://hub.example.org/alice/cpb/resolve/main/{WHEEL.name}#" in card
    assert 'timeframe, market="um")' in card
    assert "https://fapi.binance.com/fapi/v1/klines?" in card


def test_a_damaged_model_is_not_published_and_the_older_tree_stays(tmp_path):
    tree = build_tree([champion(tmp_path / "a")], tmp_path / "tree")
    before = sorted(p.relative_to(tree) for p in tree.rglob("*"))
    damaged = champion(tmp_path / "b", "ETHUSDT", damage="model.safetensors is cut short")

    with pytest.raises(DamagedError, match=r"`cpb train-all .*` trains it again") as caught:
        build_tree([champion(tmp_path / "a"), damaged], tree)

    assert caught.value.code == "damaged"
    assert sorted(p.relative_to(tree) for p in tree.rglob("*")) == before


@pytest.mark.parametrize(
    "place",
    ["notes.txt", "BTCUSDT/1h/notes.txt", "photos/2024/a.png", "BTCUSDT/README.md", "x/y/model.safetensors"],
)
def test_a_folder_with_a_file_of_the_users_is_not_replaced(tmp_path, place):
    tree = build_tree([champion(tmp_path / "a")], tmp_path / "tree")
    mine = tree / place
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")

    with pytest.raises(CpbError) as caught:
        build_tree([champion(tmp_path / "a")], tree)

    assert (caught.value.code, caught.value.field) == ("foreign-folder", str(tree))
    assert str(mine) in str(caught.value)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["README.md", "SHA256SUMS", "BTCUSDT/1h/config.json", "results.json"])
def test_a_damaged_tree_is_made_again(tmp_path, name):
    models = [champion(tmp_path / "a", market="spot")]
    tree = build_tree(models, tmp_path / "tree")
    whole = (tree / name).read_bytes()
    (tree / name).write_bytes(b"\x00\xff" * 50)

    assert (build_tree(models, tree) / name).read_bytes() == whole


@pytest.mark.parametrize("there", ["tree", "notes", "file", "nothing"])
def test_a_link_stays_and_only_a_tree_behind_it_is_replaced(tmp_path, there):
    target = tmp_path / "disk" / "target"
    target.parent.mkdir()
    if there == "tree":
        build_tree([champion(tmp_path / "a")], target)
    elif there == "notes":
        target.mkdir()
        (target / "notes").touch()
    elif there == "file":
        target.touch()
    (tmp_path / "hub").symlink_to(target)

    if there == "tree":
        build_tree([champion(tmp_path / "a"), champion(tmp_path / "b", "ETHUSDT")], tmp_path / "hub")
        assert (target / "ETHUSDT").is_dir()
    else:
        with pytest.raises(CpbError) as caught:
            build_tree([champion(tmp_path / "a")], tmp_path / "hub")
        assert caught.value.code == "foreign-folder"
    assert (tmp_path / "hub").is_symlink()


def test_the_reference_of_a_model_is_published_unless_it_is_damaged(tmp_path, caplog):
    model = champion(tmp_path / "a")
    (model.folder / "reference.json").write_bytes(b"a table")
    with_digests = replace(model, tags=model.tags | {"files": json.dumps(file_digests(model.folder))})
    published = build_tree([with_digests], tmp_path / "tree") / "BTCUSDT/1h/reference.json"
    assert published.read_bytes() == b"a table"

    (model.folder / "reference.json").write_bytes(b"another")
    build_tree([with_digests], tmp_path / "tree")
    assert not published.exists()
    assert "reference.json" in caplog.text
