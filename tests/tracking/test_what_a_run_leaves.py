"""What a run leaves in MLflow: params and metrics, the filters of docs/mlflow.md, and the views of `cpb ui`."""

import getpass
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.train_all import run_train_all
from schemas.run import RunSpec
from tasks.tracking import metrics
from tasks.tracking.calls import search
from tasks.tracking.store import open_store
from tasks.tracking.views import views
from tasks.training import shard_training
from tests.tools.browser import launch, needs_browser
from tests.tools.in_process import train_by
from tests.tools.mlflow_interface import interface
from tests.tools.ports import free_port

PAGE = (Path(__file__).resolve().parents[2] / "docs/mlflow.md").read_text()
SPEC = RunSpec(
    coins="BTC,ETH",
    timeframes="1h",
    architectures="linear,robust-har,average,gru,classifier-gru",
    preset="smoke",
    source="sim",
    since="2024-09",
    as_of="2025-01-01",
    overrides={"epochs": 2, "max_train_rows": 1000},
)
FIRST, SECOND = "linear", "robust-har"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with a run of five architectures and a later one of a single architecture that the first lacks."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CPB_HOME", str(place / "data"))
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/mlruns/mlflow.db")
        patch.chdir(place)
        train_by(patch, shard_training.train_job)
        run_train_all(SPEC, lambda line: None)
        alone = SPEC.model_dump() | {"architectures": "har", "overrides": {"epochs": 1}}
        run_train_all(RunSpec(**alone), lambda line: None)
        yield place


@pytest.fixture
def store(made, monkeypatch):
    monkeypatch.setenv("CPB_HOME", str(made / "data"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{made}/mlruns/mlflow.db")
    monkeypatch.chdir(made)
    return open_store()


def runs(store, kind, **tags):
    named = "".join(f" and tags.{name} = '{value}'" for name, value in tags.items())
    return list(search(store, f"tags.`cpb.kind` = '{kind}'{named}"))


COMPARED = {"lr", "batch_size", "epochs", "hidden_dim", "n_layers", "location_share", "mixed_precision"}
ALWAYS = {"architecture", "preset", "context", "features", "dtype"}


@pytest.mark.parametrize(
    ("architecture", "read"),
    [
        ("gru", COMPARED - {"location_share"}),
        ("classifier-gru", COMPARED - {"location_share"}),
        ("linear", COMPARED - {"hidden_dim", "n_layers", "location_share"}),
        ("average", COMPARED - {"n_layers"}),  # of har and walk
        ("robust-har", set()),  # a closed form
        ("har", COMPARED - {"n_layers", "location_share"}),
    ],
)
def test_a_member_itself_says_what_identifies_and_compares_it(store, architecture, read):
    (fleet,) = runs(store, "fleet", architecture=architecture)
    for run in runs(store, "member", architecture=architecture):
        own = run.data.params
        assert own.keys() & (COMPARED | ALWAYS) == read | ALWAYS
        assert (own["architecture"], own["preset"]) == (architecture, "smoke")
        assert run.data.tags["recipe"] == fleet.data.params["recipe"]
        assert run.data.tags["recipe"].startswith("smoke+")  # overrides
        assert own["compute_dtype"] == (
            "float64" if own["dtype"] == "float64" else "float32"
        )  # what auto came to
        assert own.get("epochs") in (None, "1" if architecture == "har" else "2")
        if architecture != "average":  # whose parts have options of their own
            assert own.items() & fleet.data.params.items() >= {(n, own[n]) for n in read | ALWAYS}
        assert {
            "gpu_mem_allocated_peak_mb",
            "gpu_mem_reserved_peak_mb",
            "gpu_util_mean",
            "gpu_power_mean_w",
        } <= set(run.data.metrics)


def test_an_average_says_what_the_architectures_that_it_averages_read(store):
    (har, *_), (average, *_) = (runs(store, "member", architecture=name) for name in ("har", "average"))
    for name in ("lr", "hidden_dim", "batch_size"):
        assert average.data.params[name] == har.data.params[name]


def test_a_flow_has_the_skill_of_the_fleet_that_is_best_in_validation(store):
    alone, several = sorted(runs(store, "flow"), key=lambda run: len(run.data.metrics))
    priced = [f for f in runs(store, "fleet") if f.data.tags["mlflow.parentRunId"] == several.info.run_id]
    skills = {f.data.tags["architecture"]: f.data.metrics.get("crps_skill_percent_1h") for f in priced}
    validation = {}
    for fleet in priced:
        members = list(search(store, f"tags.`mlflow.parentRunId` = '{fleet.info.run_id}'"))
        ratios = [member.data.metrics.get("validation_crps_ratio") for member in members]
        if None not in ratios:
            validation[fleet.data.tags["architecture"]] = sum(ratios) / len(ratios)
    best = min(validation, key=validation.get)
    assert several.data.tags["best_1h"].split("/")[0] == best
    assert several.data.metrics["crps_skill_percent_1h"] == skills[best]
    assert several.data.metrics["rps_skill_percent_1h"] == next(
        f.data.metrics["rps_skill_percent_1h"]
        for f in priced
        if f.data.tags["architecture"] == "classifier-gru"
    )
    assert several.data.tags["best_classifier_1h"].startswith("classifier-gru/smoke")
    assert alone.data.tags["best_1h"].startswith("har/smoke")
    assert alone.data.metrics["crps_skill_percent_1h"] == next(
        f.data.metrics["crps_skill_percent_1h"] for f in runs(store, "fleet", architecture="har")
    )


def rows(heading):
    """The metric of each row of the table under a heading of the page, with its meaning."""
    (text,) = re.findall(rf"^\*\*{re.escape(heading)}\*\*.*?(?=^\*\*|^#)", PAGE, re.M | re.S)
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", text, re.M))


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        ("Of a flow's run", metrics.OF_FLOWS),
        ("Of a fleet's run", metrics.OF_FLEETS),
        ("Per epoch, of a fleet's run", metrics.OF_EPOCHS),
        ("Of a member's run", metrics.OF_MEMBERS),
        ("Per epoch, of a member's run", metrics.OF_MEMBER_EPOCHS),
        ("Of a classifier's run besides", metrics.OF_CLASSIFIERS),
        ("Of a trial's run", metrics.OF_TRIALS),
    ],
)
def test_the_page_has_the_metrics_of_the_code(heading, table):
    assert rows(heading) == table


SYSTEM = {
    name: f"`{ours}`" + (", in megabytes of 10⁶ bytes" if factor != 1 else "")
    for ours, (name, factor) in metrics.SYSTEM.items()
}


def test_the_page_has_the_system_metrics_of_the_code():
    assert rows("System metrics, of a fleet's run") == SYSTEM


def test_a_fleet_has_the_figures_of_its_device_under_mlflows_names(store):
    for run in runs(store, "fleet"):
        found = run.data.metrics
        if "cpu_util" not in found:  # a closed form has no epoch
            continue
        assert found["system/cpu_utilization_percentage"] == found["cpu_util"]
        assert found["system/system_memory_usage_megabytes"] == pytest.approx(found["rss_mb"] * 1.048576)
    assert any("system/cpu_utilization_percentage" in run.data.metrics for run in runs(store, "fleet"))
    gru, *_ = runs(store, "fleet", architecture="gru")
    history = store.client.get_metric_history(gru.info.run_id, "system/cpu_utilization_percentage")
    times = [entry.timestamp for entry in sorted(history, key=lambda entry: entry.step)]
    # MLflow's page draws them over time: at the end of each epoch, before the run was logged
    assert len(times) == 2
    assert times == sorted({*times})
    assert times[-1] < gru.info.end_time
    on_gpu = metrics.with_system({"gpu_util": 91.0, "gpu_mem_reserved_mb": 1000.0, "gpu_power_w": 70.0}, 1)
    assert {name: value for name, value in on_gpu.items() if "/" in name} == {
        "system/gpu_1_utilization_percentage": 91.0,
        "system/gpu_1_memory_usage_megabytes": 1048.576,
        "system/gpu_1_power_usage_watts": 70.0,
    }


def test_the_system_metrics_are_called_as_mlflow_calls_its_own(monkeypatch):
    """By MLflow's own monitors, with a driver that says something."""
    from mlflow.system_metrics.metrics import gpu_monitor
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor

    driver = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=1, total=2),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=3),
        nvmlDeviceGetPowerUsage=lambda handle: 4,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 5,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(gpu_monitor, "pynvml", driver, raising=False)
    theirs = set()
    for monitor in (CPUMonitor(), gpu_monitor.GPUMonitor()):
        monitor.collect_metrics()
        theirs |= {f"system/{name}" for name in monitor.metrics}
    assert {name.format(gpu=1) for name, _ in metrics.SYSTEM.values()} <= theirs


@pytest.mark.parametrize("kind", ["flow", "fleet", "member"])
def test_a_run_fills_mlflows_columns_user_source_and_version(store, kind):
    for run in runs(store, kind):
        tags = run.data.tags
        assert tags["mlflow.user"] == run.info.user_id == getpass.getuser()
        assert (tags["mlflow.source.name"], tags["mlflow.source.type"]) == ("cpb train-all", "LOCAL")
        assert tags["mlflow.source.git.commit"] == tags["git_commit"].removesuffix("-dirty")
        assert re.fullmatch("[0-9a-f]{40}", tags["mlflow.source.git.commit"])
        assert "mlflow.source.git.repoURL" not in tags  # an address may hold a password


def known(*tables):
    """A pattern of the names in these tables, each also as a classifier's."""
    names = [name for table in tables for name in table]
    names += [name.replace("crps", "rps") for name in names]
    return re.compile("|".join(re.sub(r"\\\{\w+\\\}", "[a-z0-9]+", re.escape(name)) for name in names))


def test_a_run_has_no_metric_that_the_tables_lack(store):
    kinds = {
        "flow": known(metrics.OF_FLOWS),
        "fleet": known(metrics.OF_FLEETS, metrics.OF_EPOCHS, SYSTEM),
        "member": known(metrics.OF_MEMBERS, metrics.OF_MEMBER_EPOCHS, metrics.OF_CLASSIFIERS),
    }
    for kind, names in kinds.items():
        for run in runs(store, kind):
            assert not [name for name in run.data.metrics if not names.fullmatch(name)], run.info.run_name


def test_the_tables_have_no_metric_that_no_run_has(store):
    """Apart from those of a GPU, and of the run of `cpb tune`."""
    logged = {
        name for kind in ("flow", "fleet", "member") for run in runs(store, kind) for name in run.data.metrics
    }
    tables = (
        metrics.OF_FLOWS,
        metrics.OF_FLEETS,
        metrics.OF_EPOCHS,
        SYSTEM,
        metrics.OF_MEMBERS,
        metrics.OF_MEMBER_EPOCHS,
        metrics.OF_CLASSIFIERS,
    )
    absent = [name for table in tables for name in table if not any(map(known({name: ""}).fullmatch, logged))]
    assert {name for name in absent if not re.match("(system/)?gpu_", name)} == set()


def filters():
    """The filters of the page, with what each is for."""
    table = PAGE.split("## Filters to type")[1].split("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| `` (.+?) `` \|$", table, re.M)
    assert len(found) == table.count("\n| ") - 2  # all but the table's head
    return found


def test_every_filter_of_the_page_finds_runs(store):
    flow = views(store)[0].filter.split("'")[1]
    assert len(filters()) > 5
    for about, condition in filters():
        condition = (
            condition.replace("RUN", flow)
            .replace("'20 coins'", "'BTC, ETH'")
            .replace("'real'", "'simulated'")
        )
        if "a GPU trained" in about:  # the other value that its row names: the store is of a CPU
            assert not list(search(store, condition))
            condition = condition.replace("> 0", "= 0")
        assert list(search(store, condition)) or "failed" in about, about


def test_the_views_show_the_newest_run_with_several_fleets(store):
    architectures, alike = views(store)
    assert (
        architectures.about
        == f"the architectures of {runs(store, 'flow', command='train-all')[-1].info.run_name}"
    )
    order = [f"metrics.`{architectures.sort_by}` DESC"]
    found = list(search(store, architectures.filter, order))
    assert {run.data.tags["architecture"] for run in found} == {fleet.architecture for fleet in SPEC.fleets}
    skills = [run.data.metrics.get("crps_skill_percent_1h", -999) for run in found]
    assert skills == sorted(skills, reverse=True)
    # the later run's har is not of these architectures
    assert {run.info.run_id for run in search(store, alike.filter)} == {run.info.run_id for run in found}
    assert alike.about.endswith(" on BTC, ETH")


def test_the_views_of_a_single_architecture_are_its_runs(store):
    """Of a store in which no run has several."""
    for fleet in runs(store, "fleet"):
        if fleet.data.tags["architecture"] not in ("har", "linear"):
            store.client.delete_run(fleet.info.run_id)
    try:
        architectures, alike = views(store)
        assert [run.data.tags["architecture"] for run in search(store, architectures.filter)] == ["har"]
        assert alike.about == "all runs of har on BTC, ETH"
        assert [run.data.tags["architecture"] for run in search(store, alike.filter)] == ["har"]
    finally:
        for run in search(store, "tags.`cpb.kind` = 'fleet'", deleted=True):
            if run.info.lifecycle_stage == "deleted":
                store.client.restore_run(run.info.run_id)


@pytest.mark.slow
@needs_browser
def test_both_links_open_as_charts_of_these_runs_after_the_login(store, made):
    from playwright.sync_api import sync_playwright

    port, names = free_port(), [run.info.run_name for run in search(store, views(store)[0].filter)]
    with interface(made, port) as (_, password), sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(http_credentials={"username": "cpb", "password": password})
        for view in views(store):
            link = view.link(f"http://127.0.0.1:{port}", store)
            assert password not in link
            page.goto(link, timeout=120_000)
            for name in names:
                page.get_by_text(name).first.wait_for(timeout=120_000)
            page.get_by_text(f"{len(names)} matching runs").wait_for(timeout=120_000)
            page.get_by_text("Model metrics").first.wait_for(timeout=120_000)  # the chart view
            page.get_by_text(f"Sort: {view.sort_by}").first.wait_for(timeout=120_000)
            page.goto("about:blank")
        # the first address: the fleets themselves, not their flow with all below it folded up
        page.goto(views(store)[-1].link(f"http://127.0.0.1:{port}", store, chart=False), timeout=120_000)
        for name in names:
            page.get_by_text(name).first.wait_for(timeout=120_000)
        page.get_by_text(f"Sort: {views(store)[-1].sort_by}").first.wait_for(timeout=120_000)
        assert page.get_by_text("train-all · ").count() == page.get_by_text("Model metrics").count() == 0
        browser.close()
