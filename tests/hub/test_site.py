"""The site of a record: checked by its own verifier without cpb, written once, and never over something else."""

import ast
import gzip
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from browser import axe_findings, launch, needs_browser
from huggingface_hub import RepoCard
from live_record import made_forecasts, write_walk

from schemas.errors import CpbError, DamagedError
from schemas.forecasts import REFERENCE_COLUMNS
from schemas.identity import SeriesId
from tasks.forecasting.chain import append, chain_lock, quarantine
from tasks.forecasting.ledger import score_due
from tasks.forecasting.lines import chain_path, last_line
from tasks.forecasting.months import FORECASTS
from tasks.hub.site import write_site

BTC, ETH = (SeriesId("spot", f"{coin}USDT", "1h") for coin in ("BTC", "ETH"))
FIRST = datetime(2025, 1, 1, tzinfo=UTC)
ROWS = "forecasts/interval=1h/symbol={}USDT/2025-0{}.jsonl.gz"
BTC_ROWS, SCORES = ROWS.format("BTC", 1), "ledger/interval=1h/symbol=BTCUSDT/2025-01.jsonl.gz"


def store(home, hours, *coins, live=True):
    """Forecasts of these hours, a batch for each, the first without the reference."""
    for hour in hours:
        batch = {}
        for seed, coin in enumerate(coins):
            close = write_walk(home, coin, FIRST, 24 * 40, seed)
            rows = made_forecasts(coin, FIRST, close, np.atleast_1d(hour), reference=1.5, live=live)
            missing = [pl.lit(None, pl.Float64).alias(name) for name in REFERENCE_COLUMNS]
            batch[coin] = rows.with_columns(missing) if np.ndim(hour) == 0 and hour == 30 else rows
        done = append(home, coins[0].market, "forecasts", batch)
        assert all(isinstance(one, int) and one for one in done.values()), done


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A home: 35 days of live forecasts of two coins in four batches, and their scores; not to be changed."""
    home = tmp_path_factory.mktemp("recorded")
    store(home, [30, 31, np.arange(36, 24 * 20, 6), np.arange(24 * 20, 24 * 36, 6)], BTC, ETH)
    assert score_due(home, [BTC, ETH], FIRST + timedelta(days=39)).rows
    return home


@pytest.fixture(scope="module")
def written(recorded):
    """Its site; not to be changed."""
    return write_site(recorded, "spot", recorded.with_name("written"))


@pytest.fixture
def home(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "data")


@pytest.fixture
def site(written, tmp_path):
    return replace(written, folder=shutil.copytree(written.folder, tmp_path / "site"))


def verify(folder, *heads):
    """Run the verifier with Python alone, elsewhere; returns its exit code, what it printed and its error."""
    command = [sys.executable, "-I", "-S", str(folder / "verify.py"), *heads]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=60)
    return done.returncode, done.stdout, done.stderr


def rewrite(path, change):
    """Change the lines of a row file."""
    lines = change(gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True))
    path.write_bytes(gzip.compress("".join(lines).encode()))


def times_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_stranger_checks_the_record_without_cpb(site, home):
    bare = [sys.executable, "-I", "-S", "-c", "import tasks"]
    assert b"ModuleNotFoundError" in subprocess.run(bare, capture_output=True, check=False, cwd="/").stderr
    code, told, errors = verify(site.folder)
    assert (code, errors) == (0, "")
    found = f"{site.line} lines and {site.rows} rows fit, 0 files lost"
    assert told == f"{found}; the chain ends as on the page: {site.head}\n"
    assert (site.line, site.rows) == (5, 2 * 2 * 10 * (2 + 74 + 64))
    assert json.loads(last_line(chain_path(home, "spot")))["hash"] == site.head
    assert (site.folder / "chain.jsonl").read_bytes() == chain_path(home, "spot").read_bytes()
    listed = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=site.folder, capture_output=True, check=False
    )
    assert listed.returncode == 0


def test_the_verifier_is_forty_lines_of_the_standard_library_for_python_3_8(site):
    text = (site.folder / "verify.py").read_text()
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 120
    found = list(ast.walk(ast.parse(text, feature_version=(3, 8))))
    names = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in found if isinstance(node, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names


def test_rows_are_json_lines_of_the_stored_values(site, home):
    lines = gzip.decompress((site.folder / BTC_ROWS).read_bytes()).splitlines()
    stored = pl.read_parquet(home / BTC_ROWS.replace(".jsonl.gz", ".parquet"), hive_partitioning=False)
    assert len(lines) == len(stored)
    for line, row in zip(lines, stored.rows(named=True), strict=True):
        found = json.loads(line)
        assert list(found) == stored.columns
        for name, value in row.items():
            micros = isinstance(value, datetime) and round(value.timestamp() * 1e6)
            assert found[name] == (micros or value)
    assert json.loads(lines[0])["ref_q05"] is None


def swap_names(lines):
    return [lines[0].replace('"q05"', '"x"').replace('"q95"', '"q05"').replace('"x"', '"q95"'), *lines[1:]]


def move_text(lines):
    """The role in the place of q05, and every figure one column later: the same texts and figures in order."""
    row = json.loads(lines[0])
    names, values = list(row), list(row.values())
    first, role = names.index("q05"), names.index("role")
    values.insert(first, values.pop(role))
    return [json.dumps(dict(zip(names, values, strict=True))) + "\n", *lines[1:]]


def change_last_digit(lines):
    number = re.search(r'"q50":(\d+\.\d+)', lines[25])[1]
    other = repr(math.nextafter(float(number), math.inf))
    return [*lines[:25], lines[25].replace(f'"q50":{number}', f'"q50":{other}'), *lines[26:]]


@pytest.mark.parametrize(
    ("file", "change", "rows", "line"),
    [
        (BTC_ROWS, change_last_digit, "21 to 760", 3),
        (BTC_ROWS, lambda lines: [*lines[:3], *lines[4:]], "1 to 10", 1),
        (BTC_ROWS, lambda lines: [*lines[:12], lines[11], *lines[12:]], "11 to 20", 2),
        (BTC_ROWS, lambda lines: [lines[1], lines[0], *lines[2:]], "1 to 10", 1),
        (BTC_ROWS, swap_names, "1 to 10", 1),
        (BTC_ROWS, move_text, "1 to 10", 1),
        (BTC_ROWS, lambda lines: [lines[0].replace('"step":1,', '"step":true,'), *lines[1:]], "1 to 10", 1),
        (
            BTC_ROWS,
            lambda lines: [lines[0].replace('"step":1,', '"step":1,"step":1,'), *lines[1:]],
            "1 to 10",
            1,
        ),
        (SCORES, lambda lines: [lines[0].replace('_close":', '_close":1'), *lines[1:]], "1 to 1200", 5),
        (BTC_ROWS, lambda lines: lines[:-1], "761 to 1200", 4),
    ],
)
def test_a_changed_row_is_named(site, file, change, rows, line):
    rewrite(site.folder / file, change)
    expected = f"{file}, rows {rows}: not those of line {line}\n"
    assert verify(site.folder) == (1, "", expected)


def swap(folder):
    one, other = (folder / ROWS.format(coin, 1) for coin in ("BTC", "ETH"))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def change_chain(change):
    def changed(folder):
        path = folder / "chain.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (swap, f"{BTC_ROWS}, rows 1 to 10: not those of line 1"),
        (lambda folder: (folder / SCORES).unlink(), f"{SCORES}, row 1: "),
        (lambda folder: (folder / SCORES).write_bytes(b"x"), f"{SCORES}, row 1: Not a gzipped file"),
        (lambda folder: rewrite(folder / SCORES, lambda lines: ["{\n"]), f"{SCORES}, row 1: Expecting property"),
        (lambda folder: rewrite(folder / SCORES, lambda lines: [*lines, lines[0]]), "no line of the chain describes"),
        (lambda folder: shutil.copy(folder / SCORES, folder / "x.jsonl.gz"), "x.jsonl.gz, row 1: no line of the chain"),
        (change_chain(lambda lines: [lines[0], *lines[2:]]), "line 2 of chain.jsonl does not fit"),
        (change_chain(lambda lines: [lines[1], lines[0], *lines[2:]]), "line 1 of chain.jsonl does not fit"),
        (change_chain(lambda lines: [lines[0], lines[1].replace(b'"rows":10', b'"rows":20'), *lines[2:]]), "line 2 of"),
        (change_chain(lambda lines: lines[:-1]), "the chain ends with "),
        (change_chain(lambda lines: [*lines[:-1], lines[-1][:-1]]), "line 5 of chain.jsonl does not fit"),
    ],
)  # fmt: skip
def test_whatever_else_does_not_fit_is_named(site, change, said):
    change(site.folder)
    code, told, error = verify(site.folder)
    assert (code, told) == (1, "")
    assert said in error
    assert "Traceback" not in error


def test_another_head_on_the_page_is_found(site):
    page = site.folder / "index.html"
    page.write_text(page.read_text().replace(site.head, "0" * 64))
    assert verify(site.folder)[0] == 1
    page.write_text("none")
    code, _, error = verify(site.folder)
    assert code == 1
    assert f"the chain ends with {site.head}; the page shows []" in error


@pytest.mark.parametrize("name", ["chain.jsonl", "index.html", "SHA256SUMS"])
def test_a_file_that_is_missing_is_a_sentence(site, name):
    (site.folder / name).unlink()
    code, told, error = verify(site.folder)
    assert (code, told, error.count("\n")) == (1, "", 1)
    assert error.startswith("this folder: ")
    assert "No such file" in error
    assert str(site.folder / name) in error


def test_the_verifier_says_how_it_is_called(site):
    for option in ("-h", "--help"):
        code, told, error = verify(site.folder, option)
        assert (code, error) == (0, "")
        assert told.startswith("Checks the record in this folder: `python verify.py [HASH ...]`")


def test_a_figure_of_the_page_that_was_changed_afterwards_is_found_by_the_list(site):
    page = site.folder / "index.html"
    page.write_text(page.read_text().replace("Live forecasts", "Life forecasts", 1))
    assert verify(site.folder) == (1, "", "index.html is not the page that SHA256SUMS lists\n")


def test_a_head_that_was_noted_is_still_there_unless_the_chain_was_made_anew(site, home):
    store(home, [24 * 37], BTC)
    again = write_site(home, "spot", site.folder)
    assert again.head != site.head
    assert verify(site.folder, site.head)[0] == 0

    forged = home.with_name("forged")
    store(forged, [30, 31], BTC)
    other = write_site(forged, "spot", home.with_name("other"))
    assert verify(other.folder)[0] == 0
    code, _, error = verify(other.folder, site.head)
    assert code == 1
    assert site.head in error


def test_twice_is_once_and_only_what_grew_is_written(site, home):
    (site.folder / "CNAME").write_text("mine")
    before = times_of(site.folder)
    assert write_site(home, "spot", site.folder).written == ()
    assert times_of(site.folder) == before

    store(home, [24 * 37], BTC)
    again = write_site(home, "spot", site.folder)
    changed = {ROWS.format("BTC", 2), "chain.jsonl", "index.html", "SHA256SUMS"}
    assert set(again.written) == changed
    after = times_of(site.folder)
    assert {p.relative_to(site.folder).as_posix() for p in after if after[p] != before.get(p)} == changed
    assert verify(site.folder)[0] == 0
    assert sorted(p.name for p in site.folder.iterdir()) == [
        "CNAME", "README.md", "SHA256SUMS", "chain.jsonl", "forecasts", "index.html", "ledger", "verify.py",
    ]  # fmt: skip


def test_a_call_that_is_killed_anywhere_is_mended_by_the_next(home, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    rename, folder = Path.replace, tmp_path / "site"
    for renames in (0, 1, 3, 4):
        left = [renames]

        def dies(path, target, left=left):
            if ".cpb-draft" in path.parts and not path.name.startswith("."):
                if not left[0]:
                    raise Killed
                left[0] -= 1
            return rename(path, target)

        store(home, [24 * 37 + renames], BTC, ETH)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", dies)
            with pytest.raises(Killed):
                write_site(home, "spot", folder)
        assert write_site(home, "spot", folder).written
        assert verify(folder)[0] == 0


def test_a_file_of_the_site_that_was_damaged_is_written_again(site, home):
    rewrite(site.folder / BTC_ROWS, lambda lines: lines[:5])
    assert write_site(home, "spot", site.folder).written == (BTC_ROWS,)
    assert verify(site.folder)[0] == 0


def test_rows_that_were_lost_leave_the_site_and_nothing_else_does(site, home):
    other, mine = site.folder / ROWS.format("ETH", 2), site.folder / "mine.jsonl.gz"
    outside = site.folder.with_name("outside.jsonl.gz")
    with (site.folder / "SHA256SUMS").open("a") as sums:
        for path, name in ((mine, mine.name), (outside, "../outside.jsonl.gz")):
            path.write_bytes(b"mine")
            sums.write(f"{sha256(b'mine').hexdigest()}  {name}\n")
    (site.folder / SCORES.replace("BTC", "ETH")).write_bytes(b"edited, so not what cpb wrote")
    with chain_lock(home, "spot"):
        quarantine(home, "spot", [(ETH, FORECASTS, "2025-01"), (ETH, FORECASTS, "2025-02")], "test")
    again = write_site(home, "spot", site.folder)
    assert again.rows < site.rows
    assert not other.exists()
    assert mine.read_bytes() == outside.read_bytes() == b"mine"
    assert (site.folder / SCORES.replace("BTC", "ETH")).exists()
    for path in (mine, site.folder / SCORES.replace("BTC", "ETH")):
        path.unlink()
    assert verify(site.folder, site.head)[0] == 0


@pytest.mark.parametrize("kind", ["file", "folder", "list", "site without list"])
def test_a_folder_of_others_is_refused(kind, home, tmp_path, site):
    folder = tmp_path / "other"
    if kind == "file":
        folder.write_text("mine")
    elif kind == "site without list":
        shutil.copytree(site.folder, folder)
        (folder / "SHA256SUMS").unlink()
    else:
        folder.mkdir()
        (folder / ("SHA256SUMS" if kind == "list" else "notes.txt")).write_text("0" * 64 + "  index.html\n")
    before = times_of(tmp_path)
    with pytest.raises(CpbError, match="other is not empty and no site of cpb") as error:
        write_site(home, "spot", folder)
    assert error.value.code == "foreign-folder"
    assert times_of(tmp_path) == before


def test_the_site_of_another_record_is_refused(site, home):
    forged = home.with_name("forged")
    store(forged, [30, 31], BTC)
    before = times_of(site.folder)
    with pytest.raises(
        CpbError, match=r"site holds the record of another chain.*, or name a new folder"
    ) as error:
        write_site(forged, "spot", site.folder)
    assert error.value.code == "other-record"
    assert times_of(site.folder) == before


def test_a_damaged_record_is_not_published(site, home):
    path = home / ROWS.format("ETH", 1).replace(".jsonl.gz", ".parquet")
    path.write_bytes(path.read_bytes()[:-3])
    store(home, [24 * 37], BTC)
    (site.folder / ROWS.format("ETH", 1)).unlink()
    before = times_of(site.folder)
    with pytest.raises(DamagedError, match=r"2025-01\.parquet is damaged"):
        write_site(home, "spot", site.folder)
    assert times_of(site.folder) == before

    with pytest.raises(DamagedError, match="is damaged"):
        write_site(home, "spot", home.with_name("new"))
    assert not times_of(home.with_name("new"))
    chain_path(home, "spot").write_bytes(b"x" + chain_path(home, "spot").read_bytes())
    with pytest.raises(DamagedError, match=r"line 1 does not fit.*cpb verify"):
        write_site(home, "spot", home.with_name("new"))


def test_a_month_that_was_damaged_after_it_was_written_is_found_although_the_chain_has_not_changed(
    site, home
):
    path = home / ROWS.format("ETH", 1).replace(".jsonl.gz", ".parquet")
    intact, before = path.read_bytes(), times_of(site.folder)
    path.write_bytes(intact[:1000] + b"x" + intact[1001:])
    with pytest.raises(DamagedError, match=r"2025-01\.parquet is damaged"):
        write_site(home, "spot", site.folder)
    assert times_of(site.folder) == before
    path.write_bytes(intact)
    rewrite(site.folder / BTC_ROWS, change_last_digit)
    assert write_site(home, "spot", site.folder).written == (BTC_ROWS,)
    assert verify(site.folder)[0] == 0


def test_simulated_forecasts_have_a_site_of_their_own_that_says_so(tmp_path):
    sim = SeriesId("sim", "BTCUSDT", "1h")
    store(tmp_path / "data", [30], sim)
    with pytest.raises(CpbError, match="no forecast of market spot is stored") as error:
        write_site(tmp_path / "data", "spot", tmp_path / "site")
    assert (error.value.code, (tmp_path / "site").exists()) == ("no-ledger", False)
    site = write_site(tmp_path / "data", "sim", tmp_path / "site")
    page = (site.folder / "index.html").read_text()
    assert "The candles are simulated" in page
    assert "No live forecast has been scored yet." in page
    assert verify(site.folder)[0] == 0


def test_rows_that_no_line_saw_being_stored_are_said_to_be_earlier(home, tmp_path):
    chain_path(home, "spot").unlink()
    site = write_site(home, "spot", tmp_path / "site")
    assert (
        f"{site.rows:,} rows, of which {site.rows:,} were there before the chain."
        in (site.folder / "index.html").read_text()
    )
    assert (site.line, verify(site.folder)[0]) == (1, 0)


def test_the_readme_makes_a_space_of_type_static(site):
    assert RepoCard.load(site.folder / "README.md").data.to_dict() == {
        "title": "Live record of forecasts",
        "sdk": "static",
    }


def test_the_page_shows_the_record_as_the_command_does(site, home, tmp_path):
    from tasks.forecasting.summary import ledger_rows

    page = (site.folder / "index.html").read_text()
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page)
    assert "gzip" not in page.split("<main>")[0]
    for row in ledger_rows(home, "spot"):
        if row["kind"] == "series":
            assert row["live"]
            assert row["crps_ratio_low"]
            cells = [
                f"{row['symbol']} 1h",
                *(f"{row[f'crps_ratio{end}']:.4f}" for end in ("", "_low", "_high")),
            ]
            assert all(f">{cell}</td>" in page for cell in cells)
    assert set(re.findall(r'href="([^"#]+)"', page)) == {
        path.relative_to(site.folder).as_posix() for path in times_of(site.folder)
    } - {"index.html", "README.md"}

    store(tmp_path / "replayed", [np.arange(36, 24 * 36, 12)], BTC, live=False)
    score_due(tmp_path / "replayed", [BTC], FIRST + timedelta(days=39))
    folder = write_site(tmp_path / "replayed", "spot", tmp_path / "replays").folder
    page = (folder / "index.html").read_text()
    assert "Replays: forecasts made after the fact" in page
    assert "No live forecast has been scored yet." in page


def test_the_ratio_is_that_of_the_published_rows_as_the_page_of_docs_computes_it(site):
    text = (Path(__file__).parents[2] / "docs" / "publishing.md").read_text()
    (code,) = re.findall(r"```python\n(import gzip.+?)```", text, flags=re.S)
    code = code.replace('"record"', '"site"')
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=site.folder.parent
    )
    row = re.search(r">BTCUSDT 1h</td>.*?</tr>", (site.folder / "index.html").read_text())[0]
    assert f">{done.stdout.strip()}</td>" in row, (done, row)


def test_the_stored_rows_are_read_as_the_page_of_docs_reads_them(recorded):
    """`daily.parquet` beside the scores' months has other columns, so a glob over all files fails."""
    text = (Path(__file__).parents[2] / "docs" / "publishing.md").read_text()
    (code,) = re.findall(r"```python\n(import polars as pl\nrows = .+?)```", text, flags=re.S)
    *lines, last = code.strip().replace('"data/', f'"{recorded}/').splitlines()
    code = "\n".join([*lines, f"print(len({last}), 'realised_close' in {last}.columns)"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert list(recorded.rglob("daily.parquet"))
    assert done.stdout == "280 True\n", done


@pytest.mark.slow
@needs_browser
def test_the_page_is_whole_from_a_file_without_any_request(site):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        for width in (390, 1440):
            for scheme in ("light", "dark"):
                page = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=scheme
                ).new_page()
                asked, wrong = [], []
                page.on("request", lambda request, asked=asked: asked.append(request.url))
                page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
                page.goto((site.folder / "index.html").as_uri())
                page.wait_for_function("document.documentElement.dataset.drawn")
                assert (asked, wrong) == ([(site.folder / "index.html").as_uri()], [])
                assert site.head in page.inner_text("main")
                assert page.locator("tbody tr").count() == 3
                assert page.evaluate("document.documentElement.scrollWidth") == width
                assert page.evaluate("document.documentElement.dataset.theme") == scheme
                assert axe_findings(page) == []
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        browser.close()


@pytest.fixture
def publish(monkeypatch, capfd, home):
    """Return a function that runs `cpb publish` and returns its exit code and what it printed."""
    monkeypatch.setenv("CPB_HOME", str(home))

    def go(*words):
        from flows.cli import main

        monkeypatch.setattr("sys.argv", ["cpb", "publish", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capfd.readouterr()

    return go


def test_the_command_writes_the_site_and_says_what_it_wrote(publish, tmp_path):
    folder = tmp_path / "record"
    code, told = publish("--site", str(folder))
    assert code in (0, None)
    assert (
        f"record: {folder}/index.html (5,600 rows; 13 of 13 files written); head of the chain: " in told.err
    )
    assert verify(folder)[0] == 0
    code, told = publish("--site", str(folder), "--json")
    answer = json.loads(told.out)
    assert answer["head"] in (folder / "index.html").read_text()
    assert (answer["written"], answer["rows"], answer["line"], answer["exit"]) == ([], 5600, 5, 0)
    assert "nothing had changed" in publish("--site", str(folder))[1].err


def test_the_command_takes_no_repository_beside_the_site_and_explains_an_empty_home(
    publish, tmp_path, monkeypatch
):
    code, told = publish("--site", str(tmp_path / "record"), "--repo", "alice/models")
    assert code == 2
    assert "--site writes the record to a folder: leave --repo and --dry-run out" in told.err
    assert publish("--site", str(tmp_path / "record"), "--dry-run")[0] == 2
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("CPB_HOME", str(tmp_path / "empty"))
    code, told = publish("--site", str(tmp_path / "record"))
    assert code == 1
    assert "no forecast of market spot is stored" in told.err
    assert not (tmp_path / "record").exists()
