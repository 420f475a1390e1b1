"""Binance's own files in a folder are found by their names, zipped or not, wherever they lie."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import UsageError
from schemas.scope import IngestSpec
from tasks.market.client import SourceFault
from tasks.market.folder import FolderIndex
from tasks.market.ingest import update_store
from tasks.market.klines import read_klines
from tasks.market.layout import source_file
from tests.tools.market_tools import csv_of, key, put, scope, zip_of

JANUARY, FEBRUARY = (source_file(key(), month) for month in ("2024-01", "2024-02"))
NAMES = [file.key.rsplit("/", 1)[-1] for file in (JANUARY, FEBRUARY)]


def lay(folder, file, *, zipped=True):
    name = file.key.rsplit("/", 1)[-1]
    folder.mkdir(parents=True, exist_ok=True)
    if zipped:
        (folder / name).write_bytes(zip_of(file))
    else:
        (folder / name.replace(".zip", ".csv")).write_bytes(csv_of(file))


@pytest.mark.parametrize(
    ("folders", "zipped"),
    [
        (("", ""), (True, True)),
        (("", ""), (False, False)),
        (("2024/a b/c", "deep/er"), (True, False)),
        (("BTCUSDT/1h", "BTCUSDT/1h"), (True, True)),
        (("data/spot/monthly/klines/BTCUSDT/1h", ""), (False, True)),
    ],
)
def test_files_are_found_wherever_they_lie(tmp_path, folders, zipped):
    root = tmp_path / "mirror"
    for file, folder, is_zip in zip((JANUARY, FEBRUARY), folders, zipped, strict=True):
        lay(root / folder, file, zipped=is_zip)
    wanted = tmp_path / "wanted"
    for file in (JANUARY, FEBRUARY):
        put(wanted, file)
    reports = [
        update_store(scope(tmp_path / name, source, coins="BTC", as_of="2024-03-01"))
        for name, source in (("a", root), ("b", wanted))
    ]
    assert [report.exit for report in reports] == [0, 0]
    assert read_klines(tmp_path / "a", key()).equals(read_klines(tmp_path / "b", key()))
    again = update_store(scope(tmp_path / "a", root, coins="BTC", as_of="2024-03-01"))
    assert again.exit == 0


def failure(tmp_path, root, **options):
    report = update_store(scope(tmp_path / "home", root, coins="BTC,ETH", as_of="2024-03-01", **options))
    return {entry.series.symbol: entry.reason for entry in report.series}, report.exit


def test_two_files_of_one_month_are_refused_by_name_and_other_series_go_on(tmp_path):
    root = tmp_path / "mirror"
    lay(root / "a", JANUARY)
    lay(root / "b", JANUARY, zipped=False)
    lay(root, source_file(key("ETHUSDT"), "2024-01"))
    reasons, code = failure(tmp_path, root)
    assert code == 3
    assert all(
        word in reasons["BTCUSDT"]
        for word in (
            f"a/{NAMES[0]} and ",
            f"b/{NAMES[0].replace('.zip', '.csv')} are both BTCUSDT 1h 2024-01: keep one of the two",
        )
    )
    assert not reasons["ETHUSDT"]


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (("spot", "futures"), "are both BTCUSDT 1h 2024-01"),
        (("", "futures/um/monthly/klines/BTCUSDT/1h"), "the market of the first is not certain"),
        (
            ("futures",),
            "lies in a folder 'futures', and BTCUSDT 1h is of the market spot: add --market um or cm",
        ),
    ],
)
def test_spot_beside_futures_is_refused(tmp_path, folders, words):
    root = tmp_path / "mirror"
    for folder in folders:
        lay(root / folder, JANUARY)
    assert words in failure(tmp_path, root)[0]["BTCUSDT"]


def test_the_layout_tells_the_market(tmp_path):
    root = tmp_path / "mirror"
    for folder in ("spot", "futures/um"):
        lay(root / folder / "monthly/klines/BTCUSDT/1h", JANUARY)
    lay(root / "futures/um/monthly/markPriceKlines/BTCUSDT/1h", JANUARY)
    for market, place in (("spot", "spot"), ("um", "futures/um")):
        index = FolderIndex(root)
        assert index.files(key(market=market), "monthly") == {
            "2024-01": root / place / "monthly/klines/BTCUSDT/1h" / NAMES[0]
        }
        assert index.symbols(market) == {"BTCUSDT"}
    assert FolderIndex(root).files(key(market="cm"), "monthly") == {}


def test_links_are_followed_once_and_never_out_of_the_folder(tmp_path):
    root, outside = tmp_path / "mirror", tmp_path / "outside"
    lay(root / "real", JANUARY)
    lay(outside, FEBRUARY)
    (root / "again").symlink_to(root / "real")
    (root / "real/loop").symlink_to(root)
    (root / "real/copy").mkdir()
    (root / "real/copy" / NAMES[0]).symlink_to(root / "real" / NAMES[0])
    (root / "out").symlink_to(outside)
    index = FolderIndex(root)
    assert {period: path.resolve() for period, path in index.files(key(), "monthly").items()} == {
        "2024-01": root / "real" / NAMES[0]
    }
    assert index.notes == [
        f"{root / 'out'} is a link that leads out of the mirror folder, and is not followed"
    ]


@pytest.mark.parametrize("name", ["BTCUSDT-1h.tsv", "deep/er/notes.txt", "BTCUSDT-1h-2024.zip"])
def test_a_folder_of_other_files_is_one_sentence_about_the_source(tmp_path, name):
    (tmp_path / "mirror" / name).parent.mkdir(parents=True)
    (tmp_path / "mirror" / name).touch()
    with pytest.raises(UsageError, match="holds none of Binance's files") as caught:
        failure(tmp_path, tmp_path / "mirror")
    assert (caught.value.code, repr(name.split("/")[0]) in str(caught.value)) == ("source", True)


def test_a_named_pipe_is_found_and_its_reader_names_it(tmp_path):
    """A month must not seem to be unpublished; see `test_market_hostile`."""
    lay(tmp_path, JANUARY)
    os.mkfifo(tmp_path / NAMES[1])
    assert list(FolderIndex(tmp_path).files(key(), "monthly")) == ["2024-01", "2024-02"]


def test_tables_beside_binances_files_are_refused_by_name(tmp_path):
    lay(tmp_path, JANUARY, zipped=False)
    (tmp_path / "ETHUSDT-1h.csv").write_text("date,open,high,low,close\n2024-01-01,1.5,1.5,1.5,1.5\n")
    with pytest.raises(
        UsageError, match=r"holds the table ETHUSDT-1h.csv beside Binance's own BTCUSDT-1h-2024-01.csv"
    ):
        IngestSpec(source=str(tmp_path))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["", "a", "a/b", "x/y/z"]), min_size=1, max_size=4), st.booleans())
def test_the_index_does_not_depend_on_the_place(tmp_path_factory, folders, zipped):
    root = tmp_path_factory.mktemp("mirror")
    months = [source_file(key(), f"2024-{month:02d}") for month in range(1, len(folders) + 1)]
    for file, folder in zip(months, folders, strict=True):
        name = file.key.rsplit("/", 1)[-1]
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / (name if zipped else name.replace(".zip", ".csv"))).touch()
    assert sorted(FolderIndex(root).files(key(), "monthly")) == [file.period for file in months]


def test_the_folder_that_is_named_for_one_of_two_files_can_be_read(tmp_path):
    root = tmp_path / "mirror"
    lay(root / "spot/x", JANUARY)
    lay(root / "um", JANUARY)
    with pytest.raises(SourceFault, match=rf"as {root}/spot$"):
        FolderIndex(root).files(key(), "monthly")
    assert FolderIndex(root / "spot").files(key(), "monthly")["2024-01"].is_file()
    lay(root / "um", JANUARY, zipped=False)
    with pytest.raises(SourceFault, match=r"keep one of the two$"):
        FolderIndex(root / "um").files(key(market="um"), "monthly")


def test_tables_below_the_folder_are_found_by_the_sentence(tmp_path):
    (tmp_path / "mirror/a/b").mkdir(parents=True)
    (tmp_path / "mirror/a/b/BTCUSDT-1h.csv").write_text("x")
    with pytest.raises(
        UsageError, match=r"for BTCUSDT-1h.csv, which lies below, give .*mirror/a/b as the source"
    ):
        FolderIndex(tmp_path / "mirror").files(key(), "monthly")
