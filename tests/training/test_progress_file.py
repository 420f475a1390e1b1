"""A fleet's progress.json: what the terminal and the page read while it trains."""

import json
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cpbmodels
from cpbmodels.device import monitor
from schemas.handover import DeviceWork, ShardProgress, ShardResult
from tasks.running.progress import reports_to
from tasks.storage.records import write_record
from tasks.training.cost import busy_share, device_figures
from tasks.training.epochs import EpochFile, read_epochs
from tasks.training.fleet_progress import FleetProgress
from tasks.training.plan import job_key
from tasks.training.progress import ProgressFile
from tasks.training.shard import EPOCHS, RESULT, prepare
from tests.tools.planned import fleet, universe

PLAN = fleet()
(JOB,) = PLAN.shards


def step(epoch, done, members=(0, 1), of_members=4, **stage):
    return cpbmodels.StepRecord(
        epoch=epoch,
        epochs=10,
        step=done,
        steps=5,
        members=list(members),
        of_members=of_members,
        device="cpu",
        data=(5136, 4),
        data_dtype="float32",
        data_mb=0.082,
        **stage,
    )


MEMORY = {"rss_mb": 90.0, "rss_peak_mb": 100.0, "cpu_util": 50.0}


def epoch(number, stopped="", members=(0, 1), epochs=10, memory=MEMORY, stopped_before=(), **stage):
    of = [
        {"index": i, "train_loss": 1.0 + i, "val_loss": 2.0, "lr": 0.1, "stopped": stopped} for i in members
    ]
    last = {i: (1.0 + i, 2.0) for i in (*members, *stopped_before)}
    about = {"architecture": "gru", "of_members": 2, "last": last} | stage
    return cpbmodels.EpochRecord(number, epochs, 0.1, of, 500.0, 2.0, memory, **about)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A progress file that is written at every report, and what a listener hears of it."""
    monkeypatch.setattr("tasks.training.progress._EVERY_S", 0.0)
    heard = []
    listener = SimpleNamespace(progress=heard.append, line=heard.append)
    file, fleet_progress = ProgressFile(tmp_path, JOB.architecture), FleetProgress(PLAN)

    def read():
        heard.clear()
        state = json.loads((tmp_path / "progress.json").read_text())
        with reports_to(listener):
            fleet_progress.update(JOB, state)
        return state, list(heard)

    return file, read


def test_the_device_and_the_data_are_named_once_before_the_first_step(told):
    file, read = told
    file.on_step(step(1, 0))
    state, heard = read()
    assert (state["epoch"], state["epochs"], state["share"], state["eta_s"]) == (0, 10, 0.0, None)
    assert heard[0].startswith("training gru on cpu (")
    assert heard[0].endswith("): 5,136 candles of 4 columns, 0.08 MB as float32")
    assert len(read()[1]) == 1


def test_the_share_counts_every_member_and_those_that_stopped_as_done(told):
    file, read = told
    file.on_step(step(1, 0))
    file.on_step(step(3, 5))
    assert read()[0]["share"] == pytest.approx(0.15)
    file.on_epoch(epoch(3, stopped="early_stop"))
    state, heard = read()
    assert state["share"] == pytest.approx(0.5)
    assert (state["train_loss"], state["val_loss"], state["windows_per_s"]) == (1.5, 2.0, 500.0)
    assert state["eta_s"] > 0
    assert (heard[-1].done, heard[-1].total, heard[-1].facts[0]) == (5.0, 10, "loss 1.5000 / 2.0000")
    assert heard[-1].facts[-2:] == ("100 MB", "lr 1.0e-01")
    file.on_epoch(epoch(10, stopped="early_stop", members=(0, 1, 2, 3)))
    last = read()[1][-1]
    assert 10 - 1e-4 < last.done < last.total == 10  # all epochs are done, and the work has not ended
    spoilt = epoch(4)
    spoilt.members[0]["train_loss"] = float("nan")  # left out of the mean
    file.on_epoch(spoilt)
    assert read()[0]["train_loss"] == 2.0


def heard_of(told):
    """What a listener hears of what is told in a call: sentences, and reports."""
    heard = []
    with reports_to(SimpleNamespace(progress=heard.append, line=heard.append)):
        told()
    lines = [report for report in heard if isinstance(report, str)]
    return lines, [report for report in heard if not isinstance(report, str)]


def ended(reports):
    return {report.step for report in reports if report.done == report.total > 0}


def test_a_fleet_that_waits_says_for_what_and_then_what_it_does(told):
    file, read = told

    def wait():
        progress = FleetProgress(PLAN)
        progress.waiting("waiting for a free core")
        progress.waiting("starting its trainer")
        progress.ended(JOB)

    _, reports = heard_of(wait)
    assert [report.facts[:1] for report in reports[:2]] == [
        ("waiting for a free core",),
        ("starting its trainer",),
    ]
    assert ended(reports) == {"train gru"}
    file.on_step(step(1, 0))
    file.forecasting(0, 8)
    assert read()[1][-1].facts == ("forecasts the spans to be judged: 0/8 models",)


def test_shards_of_a_fleet_are_told_as_one(told):
    file, read = told
    plan = fleet(universe(), preset="seed-gru")
    assert len(plan.shards) == 20
    whole = FleetProgress(plan)
    names = [whole.name_of(shard) for shard in plan.shards]
    assert all(name.startswith("gru 1") and name.endswith(" of 20") for name in names)
    assert len({*names}) == 20
    file.on_step(step(5, 5, members=(0, 1, 2, 3)))
    state = read()[0]

    def train(shard):
        whole.update(shard, state)
        whole.ended(shard)

    lines, (report, end) = heard_of(lambda: train(plan.shards[0]))
    data = "in 20 parts, the first with 5,136 candles of 4 columns, 0.08 MB as float32"
    assert lines == [f"training gru on {state['device']}: {data}"]
    assert (report.step, report.done, report.unit) == ("train gru", state["share"], "parts")
    assert (report.total, end.done, end.total) == (20, 1, 20)
    lines, reports = heard_of(lambda: [train(shard) for shard in plan.shards[1:-1]])
    assert (lines, reports[-1].done, ended(reports)) == ([], 19, set())
    assert ended(heard_of(lambda: train(plan.shards[-1]))[1]) == {"train gru"}


COST = {
    "epoch": 1,
    "members_training": 2,
    "lr": 0.1,
    "epoch_seconds": 2.0,
    "epoch_windows_per_s": 500.0,
    **MEMORY,
    "train_loss": 1.5,
    "val_loss": 2.0,
}


def test_each_epoch_has_a_cost_also_of_a_training_that_was_killed_while_it_wrote(tmp_path):
    path = tmp_path / "epochs.jsonl"
    EpochFile(path).add(epoch(1))
    (first,) = read_epochs(path)
    assert first.metrics == COST
    assert (first.epoch, first.epochs, first.models, first.begun, first.ended) == (1.0, 10, 2, 2, False)
    for unfinished in ('{"metrics": {"epo\n', '{"metrics": {"epo'):
        with path.open("a") as file:
            file.write(unfinished)
        EpochFile(path).add(epoch(2))
    assert [read.metrics["epoch"] for read in read_epochs(path)] == [1, 2, 2]


def test_an_epoch_says_where_its_shard_stands_though_models_train_apart(tmp_path):
    """Of three models two train together, and of these one stops before the other; the third has not begun."""
    path = tmp_path / "epochs.jsonl"
    file = EpochFile(path)
    file.add(epoch(6, members=(0, 1), of_members=3))
    file.add(epoch(7, stopped="early_stop", members=(1,), stopped_before=(0,), of_members=3))
    file.add(epoch(1, members=(2,), of_members=3))
    file.add(epoch(2, stopped="nan", members=(2,), of_members=3))
    read = read_epochs(path)
    assert [(e.epoch, e.begun, e.ended) for e in read] == [
        (4, 2, False),
        (pytest.approx(14 / 3), 2, False),
        (5, 3, False),
        (pytest.approx(16 / 3), 3, True),
    ]
    assert [e.train_loss for e in read] == [1.5, 1.5, 2.0, 2.0]
    assert [e.metrics["train_loss"] for e in read] == [1.5, 2.0, 3.0, 3.0]


class Training:
    """A fleet whose shards' trainers write their epochs; `heard` are the lines that are told meanwhile."""

    def __init__(self, root, plan=PLAN):
        self.plan, self.root, self.heard = plan, root, []
        self.progress = FleetProgress(plan)
        self.files = {}

    def listening(self, do, *given):
        self.heard += heard_of(lambda: do(*given))[0]

    def begin(self, shard):
        folder = prepare(self.root, shard)
        self.listening(self.progress.begin, shard, folder)
        self.files[job_key(shard)] = EpochFile(folder / EPOCHS), folder

    def write(self, shard, *records):
        for record in records:
            self.files[job_key(shard)][0].add(record)

    def look(self, shard):
        self.listening(self.progress.read_written, shard)

    def end(self, shard):
        """The trainer's last acts: the result, which contains the epochs, in place of their file."""
        folder = self.files[job_key(shard)][1]
        reported = read_epochs(folder / EPOCHS)
        result = ShardResult(
            key=job_key(shard),
            architecture="gru",
            epochs=tuple(epoch.metrics for epoch in reported),
            progress=tuple(ShardProgress(**epoch.model_dump(exclude={"metrics"})) for epoch in reported),
        )
        write_record(folder / RESULT, result)
        (folder / EPOCHS).unlink(missing_ok=True)
        self.listening(self.progress.trained, shard, result)
        self.listening(self.progress.ended, shard)


def epochs_to(last, epochs=100, first=1, **about):
    return [
        epoch(number, stopped="early_stop" if number == last else "", epochs=epochs, **about)
        for number in range(first, last + 1)
    ]


def line(at, begun=""):
    return (
        f"gru  epoch {at}  train 1.5000  val 2.0000  lr 1.0e-01  2.0 s  "
        f"CPU 90 MB, 100 peak, 1.0 of 2 cores{begun}"
    )


@pytest.fixture(autouse=True, scope="module")
def two_cores():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.training.progress.usable_cores", lambda: 2)
        yield


@pytest.mark.parametrize("polls", ["every epoch", "once", "never"])
def test_a_line_is_told_every_20_epochs_and_at_the_end_however_rarely_one_looks(polls, tmp_path):
    """A shard of 0.3 s may be over before the first look: its epochs are then read from the result alone."""
    training = Training(tmp_path)
    training.begin(JOB)
    training.look(JOB)
    assert training.heard == []
    for record in epochs_to(45):
        training.write(JOB, record)
        if polls == "every epoch":
            training.look(JOB)
    if polls == "once":
        training.look(JOB)
    training.end(JOB)
    assert training.heard == [line("20/100"), line("40/100"), line("45/100")]


@pytest.mark.parametrize(("last", "told"), [(3, ["3/3"]), (20, ["20/20"]), (40, ["20/40", "40/40"])])
def test_a_short_fleet_has_a_line_too_and_a_last_epoch_no_second_one(last, told, tmp_path):
    training = Training(tmp_path)
    training.begin(JOB)
    training.write(JOB, *epochs_to(last, epochs=last))
    training.end(JOB)
    assert training.heard == [line(at) for at in told]


@given(last=st.integers(1, 61), cuts=st.lists(st.integers(0, 40_000), max_size=6))
@settings(max_examples=30, deadline=None)
def test_epochs_are_read_once_wherever_a_look_cuts_the_file(last, cuts):
    """A look may come in the middle of a line; what it leaves is read by a later one, or from the result."""
    with tempfile.TemporaryDirectory() as place:
        training = Training(Path(place))
        training.begin(JOB)
        training.write(JOB, *epochs_to(last))
        path = training.files[job_key(JOB)][1] / EPOCHS
        whole = path.read_bytes()
        for cut in sorted(cuts):
            path.write_bytes(whole[:cut])
            training.look(JOB)
        path.write_bytes(whole)
        training.end(JOB)
    marks = [*range(20, last, 20), last]
    assert training.heard == [line(f"{mark}/100") for mark in marks]


def test_a_fleet_in_20_shards_has_the_lines_of_one_and_says_how_many_models_have_begun(tmp_path):
    plan = fleet(universe(), preset="seed-gru")
    assert len(plan.shards) == 20
    training = Training(tmp_path, plan)
    for place, shard in enumerate(plan.shards):
        training.begin(shard)
        training.write(shard, *epochs_to(100, members=(0, 1, 2, 3), of_members=4))
        if place % 2:
            training.look(shard)
        training.end(shard)
    begun = (16, 32, 48, 64, 80)
    assert [text.partition("  CPU")[0] for text in training.heard] == [
        f"gru  epoch {at}/100  train 2.5000  val 2.0000  lr 1.0e-01  2.0 s" for at in (20, 40, 60, 80, 100)
    ]
    assert [text.partition("cores")[2] for text in training.heard] == [
        f"  {number} of 80 models begun" if number < 80 else "" for number in begun
    ]


def test_what_an_earlier_run_has_trained_is_not_told_again(tmp_path):
    first = Training(tmp_path)
    first.begin(JOB)
    first.write(JOB, *epochs_to(30)[:-1])
    first.look(JOB)
    assert first.heard == [line("20/100")]
    resumed = Training(tmp_path)
    resumed.begin(JOB)
    resumed.begin(JOB)  # as after a trainer that died
    resumed.write(JOB, *epochs_to(41, first=29))  # from the last checkpoint on
    resumed.end(JOB)
    assert resumed.heard == [line("40/100"), line("41/100")]
    again = Training(tmp_path)
    again.begin(JOB)
    again.end(JOB)
    assert again.heard == []


def test_a_trainer_that_dies_leaves_no_gap_between_its_lines_and_the_next_ones(tmp_path):
    training = Training(tmp_path)
    training.begin(JOB)
    training.write(JOB, *epochs_to(21)[:-1])  # written after the last look
    training.begin(JOB)
    training.write(JOB, *epochs_to(22, first=21))
    training.end(JOB)
    assert training.heard == [line("20/100"), line("22/100")]


def test_a_fleet_of_which_a_shard_fails_has_its_last_line(tmp_path):
    plan = fleet(universe(coins=4), preset="seed-gru")
    good, bad = plan.shards
    training = Training(tmp_path, plan)
    training.begin(bad)
    training.write(bad, *epochs_to(5, members=(0, 1, 2, 3), of_members=4)[:-1])
    training.look(bad)
    training.listening(training.progress.ended, bad)
    training.begin(good)
    training.write(good, *epochs_to(10, members=(0, 1, 2, 3), of_members=4))
    training.end(good)
    (told,) = training.heard
    assert told.startswith("gru  epoch 7/100  train 2.5000")


def test_what_is_fitted_without_epochs_says_so_and_the_second_stage_that_it_is_one(tmp_path, told):
    plan = fleet(architecture="average", preset="default")
    training = Training(tmp_path, plan)
    (shard,) = plan.shards
    training.begin(shard)
    har, walk = (
        {"stage": i + 1, "stages": 2, "architecture": name} for i, name in enumerate(("har", "walk"))
    )
    training.write(shard, *epochs_to(5, epochs=12, **har), epoch(1, stopped="closed_form", epochs=1, **walk))
    training.end(shard)
    assert [text.partition("  val")[0] for text in training.heard] == [
        "average  stage 1 of 2: har  epoch 5/12  train 1.5000",
        "average  stage 2 of 2: walk  fitted without epochs  train 1.5000",
    ]
    file, read = told
    shares = []
    for record in (step(10, 5, (0, 1, 2, 3), **har), step(1, 0, (0, 1, 2, 3), **walk)):
        file.on_step(record)
        state, heard = read()
        shares.append(state["share"])
    assert shares == [0.5, 0.5]  # the second stage does not begin at 0 again
    assert (heard[-1].done, heard[-1].total, heard[-1].unit) == (1, 2, "stages")
    assert heard[-1].facts[0] == "stage 2 of 2: walk"


@pytest.fixture
def on_gpu(monkeypatch):
    """What the monitor gives for a GPU; no GPU is at hand where this runs, so torch and the driver are stood in for."""
    sizes = {"memory_allocated": 2.34e9, "memory_reserved": 3.89e9, "max_memory_allocated": 4.21e9}
    for name, size in (sizes | {"max_memory_reserved": 5e9}).items():
        monkeypatch.setattr(torch.cuda, name, lambda _device, size=size: int(size))

    def measured(*utilisations):
        device = monitor.Monitor("cuda")
        device._states += [monitor.GpuState(utilisation, 70.0) for utilisation in utilisations]
        return device.latest()

    return measured


def test_on_a_gpu_its_memory_and_use_are_told(tmp_path, on_gpu):
    training = Training(tmp_path)
    training.begin(JOB)
    training.write(JOB, *epochs_to(2, memory=on_gpu(90.0, 98.0)))
    training.end(JOB)
    assert training.heard[0].endswith("2.0 s  GPU 2.34 GB allocated, 3.89 reserved, 4.21 peak, 94 %")


def test_what_is_not_measured_is_not_made_up(on_gpu):
    assert device_figures(on_gpu(), 2).endswith("4.21 peak, use not measured")
    nothing = {"rss_mb": 0.0, "rss_peak_mb": 0.0, "cpu_util": 100.0}
    assert device_figures(nothing, 1) == "CPU memory not measured, 1.0 of 1 core"


def test_devices_are_busy_while_a_kernel_runs_or_their_processes_compute():
    def work(device, begin, end, busy_s):
        return DeviceWork(device=device, begin=begin, end=end, busy_s=busy_s, cpu_s=3.0)

    gpus = [work("GPU-a", 0.0, 8.0, 6.0), work("GPU-b", 1.0, 10.0, 4.0)]
    assert busy_share(gpus, 4) == {"device_busy_share": 0.5}
    assert busy_share([*gpus, work("GPU-a", 8.0, 10.0, None)], 4) == {}
    assert busy_share([work("", 0.0, 10.0, None)], 2) == {"device_busy_share": 0.15}


NOTEBOOK = Path(__file__).resolve().parents[2] / "docs/colab.ipynb"
ARCHITECTURE = re.compile(rf"(?<![\w-])({'|'.join(cpbmodels.architectures())})(-universal)?(?![\w-])")


def kind(text):
    """A report without what differs from run to run: architectures, numbers, and whether there is one or several."""
    return re.sub(r"(?<!\w)-?\d[\d.,:]*(e-?\d+)?", "N", ARCHITECTURE.sub("A", text)).replace("cores", "core")


def test_the_notebook_shows_only_lines_of_progress_that_a_run_has(tmp_path, told):
    stored = json.loads(NOTEBOOK.read_text())
    outputs = [output for cell in stored["cells"] for output in cell.get("outputs", ())]
    shown = "".join("".join(output.get("text", "")) for output in outputs).splitlines()
    of_epochs = [text for text in shown if re.match(r"\S+  (stage|epoch|fitted) ", text)]
    of_progress = [text for text in shown if re.match(r"train \S+: .*\d", text)]
    assert len(of_epochs) >= 4  # each fleet has one, however short
    assert of_progress
    for place, name in (
        (i, judged[1]) for i, text in enumerate(shown) if (judged := re.match(r"judge (\S+):", text))
    ):
        assert any(
            text.startswith(f"{name}  ") for text in shown[:place]
        )  # nothing is judged before it is trained

    training, averaged = Training(tmp_path / "one"), Training(tmp_path / "two", fleet(architecture="average"))
    stages = [{"stage": i + 1, "stages": 2, "architecture": name} for i, name in enumerate(("har", "walk"))]
    last = epoch(1, stopped="closed_form", epochs=1, **stages[1])
    for each, records in ((training, epochs_to(3)), (averaged, [*epochs_to(3, **stages[0]), last])):
        each.begin(each.plan.shards[0])
        each.write(each.plan.shards[0], *records)
        each.end(each.plan.shards[0])
    alone = Training(tmp_path / "three")
    alone.begin(JOB)
    alone.write(JOB, epoch(1, stopped="closed_form", epochs=1))
    alone.end(JOB)
    assert {*map(kind, of_epochs)} <= {*map(kind, (*training.heard, *averaged.heard, *alone.heard))}

    file, read = told
    facts = {"waiting for a free core", "starting its trainer"}
    for write in (
        lambda: file.on_step(step(1, 0)),
        lambda: file.on_epoch(epoch(1)),
        lambda: file.on_step(step(2, 1, **stages[0])),
        lambda: file.forecasting(0, 8),
    ):
        write()
        facts |= {fact for report in read()[1] if not isinstance(report, str) for fact in report.facts}
    for text in of_progress:
        report = re.fullmatch(r"train \S+: (?:\d+(?:/\d+)? \w+, )?\d+:\d\d:\d\d(?: left)?(?:, (.+))?", text)
        assert report, text
        assert {*map(kind, (report[1] or "").split("  "))} <= {"", *map(kind, facts)}, text
