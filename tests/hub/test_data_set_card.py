"""The published folder as a data set: what its card says of the rows, and that `datasets` reads them so."""

import gzip
import json
import re
from datetime import datetime
from pathlib import Path

import polars as pl
import pytest
from huggingface_hub import DatasetCard

from schemas.forecast_rows import FORECAST_SCHEMA, LEDGER_SCHEMA
from tasks.hub.tree import build_tree
from tests.tools.fake_hub import metadata_faults
from tests.tools.hub_models import champion
from tests.tools.published_record import BTC, ETH, build, store

KINDS = {"forecasts": FORECAST_SCHEMA, "ledger": LEDGER_SCHEMA}
ARROW = {"string": pl.String, "int64": pl.Int64, "float64": pl.Float64}
ARROW |= {"timestamp[us, tz=UTC]": pl.Datetime("us", "UTC")}
DOCS = Path(__file__).parents[2] / "docs" / "publishing.md"


def card_of(tree):
    return DatasetCard((tree / "README.md").read_text()).data.to_dict()


def rows_of(tree, kind):
    return [
        json.loads(line)
        for file in sorted(tree.glob(f"{kind}/*/*/*.jsonl.gz"))
        for line in gzip.decompress(file.read_bytes()).splitlines()
    ]


def test_the_card_names_every_row_file_and_every_column_of_the_record(recorded):
    tree = recorded / "hub"
    card = card_of(tree)
    assert metadata_faults((tree / "README.md").read_text()) == []
    named = {c["config_name"]: {*tree.glob(c["data_files"])} for c in card["configs"]}
    assert named == {kind: {*(tree / kind).rglob("*.jsonl.gz")} for kind in KINDS}
    assert all(named.values())
    for about in card["dataset_info"]:
        kind = about["config_name"]
        types = {column["name"]: ARROW[column["dtype"]] for column in about["features"]}
        assert types == KINDS[kind]
        assert all(row.keys() <= types.keys() for row in rows_of(tree, kind))


def test_the_card_names_no_folder_that_is_not_there(tmp_path):
    store(tmp_path / "data", [30], BTC)  # nothing has been scored yet
    tree, _ = build(tmp_path / "data")
    card = card_of(tree)
    assert [c["config_name"] for c in card["configs"]] == ["forecasts"]
    assert [about["config_name"] for about in card["dataset_info"]] == ["forecasts"]
    assert (tree / "forecasts").is_dir()

    without = build_tree([champion(tmp_path / "alone")], tmp_path / "tree")
    assert "configs" not in card_of(without)
    assert "load_dataset" not in (without / "README.md").read_text()


def test_datasets_reads_the_copy_with_its_times_and_rows_of_before(recorded, tmp_path):
    datasets = pytest.importorskip("datasets")
    tree = recorded / "hub"
    (call,) = re.findall(
        r'load_dataset\(("copy", "forecasts", split="train")\)', (tree / "README.md").read_text()
    )
    assert f"load_dataset({call})" in DOCS.read_text()
    for kind in KINDS:
        table = datasets.load_dataset(str(tree), kind, split="train", cache_dir=str(tmp_path / "cache"))
        rows = rows_of(tree, kind)
        assert len(table) == len(rows)
        for name, kept in rows[0].items():
            read = table[0][name]
            micros = round(read.timestamp() * 1e6) if isinstance(read, datetime) else None
            assert kept == (read if micros is None else micros)
        assert isinstance(table[0]["issued_at"], datetime)
    assert {row["symbol"] for row in rows} == {BTC.symbol, ETH.symbol}
