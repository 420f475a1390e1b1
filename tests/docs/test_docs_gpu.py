"""What `gpu.md`, `install.md`, `log.md` and `zh.md` promise about GPUs, Windows and the notes' settings."""

import re
import shlex

import pytest
import typer

import cpbmodels
from tasks.training.cost import device_figures
from tasks.training.fleet_progress import EPOCHS_PER_LINE
from tests.tools.doc_blocks import ROOT, blocks, script

GPU = (ROOT / "docs/gpu.md").read_text()
INSTALL = (ROOT / "docs/install.md").read_text()
CHINESE = (ROOT / "docs/zh.md").read_text()
RESULTS = (ROOT / "benchmarks/RESULTS.md").read_text()


def flowing(text: str) -> str:
    return " ".join(text.split())


NOTES = {
    "batch 4, accumulation 8, hidden 512, 6 layers": {
        "part": 4,
        "accumulate": 8,
        "hidden_dim": 512,
        "n_layers": 6,
    },
    "batch 16, accumulation 2, hidden 256, 3 layers": {
        "part": 16,
        "accumulate": 2,
        "hidden_dim": 256,
        "n_layers": 3,
    },
    "a small GPU: batch 8, hidden 128, 2 layers": {"part": 8, "hidden_dim": 128, "n_layers": 2},
    "a large GPU: batch 32, hidden 512, 6 layers": {"part": 32, "hidden_dim": 512, "n_layers": 6},
    "out of memory: batch 8, sequence 15": {"part": 8, "context": 15},
    "gradient checkpointing": {"checkpoint_gradients": True},
    "mixed precision off": {"mixed_precision": "off"},
    "learning-rate schedule": {"schedule": "constant"},
}
"""The notes' words -> what they mean: `part` is the notes' batch, the windows of one part of a step."""


def rows_of_the_notes() -> dict[str, list[str]]:
    table = GPU.partition("| the notes | here |")[2].partition("\n\n")[0]
    cells = [
        line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ") and "---" not in line
    ]
    return {notes.strip(): re.findall(r"`(--[^`]+)`", here) for notes, here in cells}


def specification(words: list[str], monkeypatch):
    """The specification that a line of `cpb train-all` gives."""
    from flows.cli import main, train

    asked = []

    def train_nothing(spec, *_names, **_options):
        asked.append(spec)
        raise typer.Exit

    monkeypatch.setattr(train, "_train_all", train_nothing)
    monkeypatch.setattr("sys.argv", ["cpb", "train-all", *words])
    with pytest.raises(SystemExit):
        main()
    return asked[0]


def test_the_notes_settings_have_all_their_rows_on_the_page():
    assert set(rows_of_the_notes()) == set(NOTES)


@pytest.mark.parametrize("row", NOTES)
def test_the_options_beside_the_notes_settings_give_what_the_notes_had(row, monkeypatch):
    options = rows_of_the_notes()[row]
    assert options
    for given in options:
        spec = specification(["--preset", "seed-lstm", *shlex.split(given)], monkeypatch)
    (fleet,) = spec.fleets
    resolved = cpbmodels.preset(fleet.preset, "lstm", **fleet.overrides).as_dict()
    resolved["part"] = resolved["batch_size"] // resolved["accumulate"]
    assert {name: resolved[name] for name in NOTES[row]} == NOTES[row]


def test_the_notes_other_names_are_understood(monkeypatch):
    sentence = flowing(GPU.partition("The notes' other names are understood, too:")[2].partition(";")[0])
    names = re.findall(r"`(--[a-z-]+)`", sentence)
    values = {
        "--batch": "64",
        "--accumulation-steps": "4",
        "--num-layers": "3",
        "--sequence-length": "20",
        "--learning-rate": "0.002",
        "--use-wandb": None,
    }
    assert names == [*values]
    given = [word for name, value in values.items() for word in (name, value) if word]
    spec = specification(["--preset", "seed-gru", *given], monkeypatch)
    assert spec.wandb
    asked = {"batch_size": 64, "accumulate": 4, "n_layers": 3, "context": 20, "lr": 0.002}
    assert {
        name: cpbmodels.preset("seed-gru", "gru", **spec.overrides).as_dict()[name] for name in asked
    } == asked


NVIDIA_SMI = {
    "": {"-l", "-q", "-d", "--query-gpu", "--format"},
    "dmon": {"-s"},
    "pmon": {"-c"},
}
"""The subcommands of nvidia-smi on the page, with the options that its manual gives each."""


def test_the_lines_beside_a_training_are_nvidia_smis():
    lines = [
        line
        for block in blocks()
        if block.page == "docs/gpu.md" and block.kind == "sh"
        for line in script(block).splitlines()
        if "nvidia-smi" in line
    ]
    plain = [" ".join(shlex.split(line, comments=True)) for line in lines]
    assert {"nvidia-smi -l 1", "watch -n 1 nvidia-smi", "nvidia-smi dmon -s pum", "nvidia-smi pmon -c 1"} <= {
        *plain
    }
    assert any(line.startswith("nvidia-smi -q") for line in plain)
    for line in plain:
        _, *words = line.removeprefix("watch -n 1 ").split()
        command = words[0] if words and not words[0].startswith("-") else ""
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= NVIDIA_SMI[command]


def test_no_option_takes_the_key_of_weights_and_biases():
    from flows.cli.app import _app

    page = flowing(GPU.partition("**Weights & Biases.**")[2].partition("\n\n")[0])
    assert all(part in page for part in ("`wandb login`", "`WANDB_API_KEY`", "WANDB_MODE=offline"))
    commands = typer.main.get_command(_app()).commands
    options = {name for command in commands.values() for option in command.params for name in option.opts}
    assert "--wandb" in options
    assert not [name for name in options if re.search("key|token|wandb-", name)]


def of_one_h100() -> dict[str, dict[str, float]]:
    """RESULTS' figures of the three seed jobs: seconds of a job, epochs, seconds of the usual loop, GB, an epoch."""
    found: dict[str, dict[str, float]] = {}
    jobs, epochs = RESULTS.partition("The three seed jobs")[2].split("| | launches by rule", 1)
    for name in ("transformer", "gru", "lstm"):
        cells = [
            cell.strip()
            for cell in re.search(rf"^\| {name}, \d+ epochs .*", jobs, re.MULTILINE)[0].split("|")
        ]
        step = [cell.strip() for cell in re.search(rf"^\| {name} .*", epochs, re.MULTILINE)[0].split("|")]
        found[name] = {
            "epochs": int(re.search(r"(\d+) epochs", cells[1])[1]),
            "job": float(cells[2].split()[0]),
            "loop": float(cells[3].split(" / ")[0].replace(",", "")),
            "gb": float(cells[9].split(" / ")[0]),
            "epoch": float(step[6].removesuffix(" s")),
        }
    return found


def test_the_sentence_on_the_fastest_and_smallest_is_that_of_the_measurement():
    figures = of_one_h100()
    sentence = flowing(GPU.partition("**Fastest, smallest.**")[2].partition("\n\n")[0])
    by_time, by_memory = (sorted(figures, key=lambda name: figures[name][of]) for of in ("job", "gb"))
    assert by_time == by_memory == ["transformer", "gru", "lstm"]
    places = [sentence.index(name) for name in by_time]
    assert places == sorted(places)
    told = [tuple(map(float, pair)) for pair in re.findall(r"\(([\d.]+) s, ([\d.]+) GB\)", sentence)]
    assert told == [(figures[name]["job"], figures[name]["gb"]) for name in by_time]


def test_the_sentence_on_an_epoch_is_that_of_the_measurement():
    figures = of_one_h100().values()
    sentence = flowing(GPU.partition("- **An epoch**")[2].partition("\n\n")[0])
    fleet, loop = sentence.split("usual loop")
    assert [float(text) for text in re.findall(r"([\d.]+) s \(", fleet)] == [row["epoch"] for row in figures]
    told = [float(text) for text in re.findall(r"[\d.]+", loop.partition(" s.")[0])]
    assert told == [round(row["loop"] / 40 / row["epochs"], 1) for row in figures]


def powershell(page: str) -> list[str]:
    (block,) = [block for block in blocks() if block.page == page and block.kind == "powershell"]
    return block.text.splitlines()


def test_windows_begins_with_two_lines_and_ends_in_the_demo():
    assert powershell("docs/install.md") == ["wsl --install -d Ubuntu", "wsl -d Ubuntu"]
    assert powershell("docs/zh.md") == powershell("docs/install.md")
    windows = INSTALL.partition("## Windows")[2].partition("\n## ")[0]
    (ubuntu,) = re.findall(r"```sh\n(.*?)```", windows, re.DOTALL)
    lines = ubuntu.splitlines()
    installed = {*lines[0].partition("install -y ")[2].split()}
    assert installed == {"git", "make", "python3-venv"}  # Ubuntu's own Python has no venv without the last
    assert lines[-2:] == ["make install", "make demo"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE) for line in lines[-2:])
    assert "$(PYTHON) -m venv" in makefile
    for text in (INSTALL.partition("## Extras")[0], CHINESE):
        assert all(package in text for package in installed)


def test_the_chinese_page_answers_what_the_notes_asked():
    assert len(re.findall(r"^\| [^|]+？ \| [^|]+ \|", CHINESE, re.MULTILINE)) >= 4
    (example,) = [block for block in blocks() if block.page == "docs/zh.md" and block.kind == "python"]
    assert ".forecast(series)" in example.text  # run by test_docs_run


def test_the_reason_for_no_assertion_in_each_batch_names_a_test_that_is_there():
    (row,) = re.findall(r"^\| 11 \| .*", (ROOT / "docs/notes.md").read_text(), re.MULTILINE)
    (test,) = re.findall(r"`(tests/\S+\.py)`", row)
    assert 'torch.device("meta")' in (ROOT / test).read_text()


def test_the_lines_of_a_run_are_as_the_page_shows_them():
    """Of a GPU with a stand-in for what the monitor measures there."""
    shown = (
        GPU.partition("## What a run prints")[2].partition("```text")[2].partition("```")[0].split("\n")[1:3]
    )
    on_gpu = {
        "gpu_mem_allocated_mb": 2231.6,
        "gpu_mem_reserved_mb": 3709.8,
        "gpu_mem_allocated_peak_mb": 4014.9,
        "gpu_util": 94.0,
    }
    on_cpu = {"rss_mb": 1204.0, "rss_peak_mb": 1310.0, "cpu_util": 95.0}
    assert [line.partition(" s  ")[2] for line in shown] == [
        device_figures(on_gpu, 2),
        device_figures(on_cpu, 2),
    ]
    for line in shown:
        assert re.match(r"gru  epoch \d+/100  train 0\.\d{4}  val 0\.\d{4}  lr \d\.\de-03  \d\.\d s  ", line)
    assert EPOCHS_PER_LINE == 20
