"""The image and compose.yaml: commands that exist, ports on loopback alone, passwords in files alone."""

import configparser
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer
import yaml
from mlflow.cli import cli as mlflow_cli
from mlflow.environment_variables import _EnvironmentVariable

from flows.cli.app import _app
from flows.deploy.services import PORT
from tasks.storage.wheel import light_wheel
from tests.tools.deployed import Deployed, wait_for
from tests.tools.doc_blocks import blocks
from tests.tools.dockerfile import last, settings, stages, words

ROOT = Path(__file__).resolve().parents[2]
BEFORE, BUILD, IMAGE = stages((ROOT / "Dockerfile").read_text())
ENV = settings(IMAGE, "ENV")
HOME = "/home/cpb"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "localhost/cpb-forecast"}
PUBLISHED = {"cpb": 8000, "prefect": PORT, "mlflow": 5000}


def check(command, arguments):
    """Let a command's own parser read the words of a line; options, values and commands that do not exist raise."""
    while hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(command.name, list(arguments))


def cpb_arguments(service):
    """The arguments that the image's program is started with."""
    assert "entrypoint" not in service
    return service.get("command", words(IMAGE, "CMD"))


def shell(service):
    """The script of a service that begins with a shell."""
    assert service["entrypoint"] == ["/bin/sh", "-euc"]
    (script,) = service["command"]
    return script.replace("$$", "$")


def mlflow_options():
    """The options of `mlflow server`, by name."""
    line = shlex.split(shell(OURS["mlflow"]).partition("exec ")[2])
    assert line[:2] == ["mlflow", "server"]
    check(mlflow_cli, line[1:])
    return dict(zip(line[2::2], line[3::2], strict=True))


def test_the_image_has_a_tested_python_and_the_newest_tested_torch():
    versions = settings(BEFORE, "ARG")["PYTHON"]
    assert versions in ("3.11", "3.12", "3.13")
    assert [last(stage, "FROM").split()[0] for stage in (BUILD, IMAGE)] == [
        "python:${PYTHON}-slim-bookworm"
    ] * 2
    given = settings(BUILD, "ARG")
    assert f"torch>=2.6,<={given['TORCH']}" in PROJECT["project"]["dependencies"]
    assert (given["TORCH_BUILD"], given["TORCH_INDEX"].rpartition("/")[2]) == ("cpu", "${TORCH_BUILD}")
    builds = re.findall(r"torch==([\d.]+)\+(cu\d+)", (ROOT / "docs/install.md").read_text())
    comment = (ROOT / "Dockerfile").read_text().partition("ARG")[0]
    assert (given["TORCH"], re.search(r"TORCH_BUILD=(\w+)", comment)[1]) in builds


def test_the_image_installs_what_the_project_has_and_starts_a_command_of_cpb():
    installed = " ".join(arguments for name, arguments in BUILD if name == "RUN")
    extra = re.search(r'"/clone\[(\w+)\]"', installed)[1]
    assert extra in PROJECT["project"]["optional-dependencies"]
    assert "-c /clone/constraints.txt" in installed
    assert words(IMAGE, "ENTRYPOINT") == ["cpb"]
    check(typer.main.get_command(_app()), words(IMAGE, "CMD"))


def test_what_an_installation_reads_is_what_the_build_is_given():
    given = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in given)
    packages = {name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    read = {name for line in (ROOT / "MANIFEST.in").read_text().splitlines()[1:] for name in line.split()[1:]}
    files = {"pyproject.toml", "setup.py", "MANIFEST.in", "constraints.txt", "LICENSE"}
    assert given == packages | files | {PROJECT["project"]["readme"]} | {n for n in read if "/" not in n}


def test_the_image_is_of_a_user_who_owns_the_folders_of_its_settings():
    user = last(IMAGE, "USER")
    assert user not in ("root", "0")
    made = next(arguments for name, arguments in IMAGE if name == "RUN")
    assert f"useradd --create-home --uid 1000 {user}" in made
    owned = made.partition(f"install -d -m 700 -o {user} -g {user} ")[2].split()
    volumes = words(IMAGE, "VOLUME")
    assert volumes == [
        ENV["CPB_HOME"],
        str(Path(ENV["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///")).parent),
    ]
    assert sorted(owned) == sorted([*volumes, ENV["PREFECT_HOME"], f"{HOME}/.mlflow"])
    assert Path(ENV["CPB_DEPLOY_STATE"]).parent == Path(ENV["PREFECT_HOME"])
    assert last(IMAGE, "WORKDIR") == HOME == f"/home/{user}"


@pytest.mark.parametrize("name", ["cpb", "prefect"])
def test_a_service_runs_a_command_that_exists_on_every_address_of_its_container(name):
    arguments = cpb_arguments(OURS[name])
    check(typer.main.get_command(_app()), arguments)
    assert arguments[arguments.index("--host") + 1] == "0.0.0.0"


def test_mlflow_is_started_with_options_and_settings_that_exist():
    service, options = OURS["mlflow"], mlflow_options()
    assert (options["--app-name"], options["--host"]) == ("basic-auth", "0.0.0.0")
    known = {
        one.name
        for one in vars(sys.modules["mlflow.environment_variables"]).values()
        if isinstance(one, _EnvironmentVariable)
    }
    of_options = {parameter.envvar for parameter in mlflow_cli.commands["server"].params}
    named = {*service["environment"], *re.findall(r"export (\w+)=", shell(service))}
    assert {name for name in named if name.startswith("MLFLOW")} <= known | of_options
    # Clients, health check and browser are all let in by the check of Host.
    allowed = options["--allowed-hosts"].split(",")
    assert urlsplit(COMPOSE["x-client"]["MLFLOW_TRACKING_URI"]).netloc in allowed
    assert {"127.0.0.1:5000", "localhost:5000"} <= {*allowed}


def test_nothing_is_published_but_on_loopback():
    published = {name: port for name, service in SERVICES.items() for port in service.get("ports", [])}
    assert published == {name: f"127.0.0.1:{port}:{port}" for name, port in PUBLISHED.items()}
    assert all(service.get("network_mode", "none") == "none" for service in SERVICES.values())
    assert not [
        name for name, service in SERVICES.items() if {"privileged", "user", "pid", "ipc"} & {*service}
    ]


def test_every_service_of_ours_has_an_init_and_no_rights():
    for service in OURS.values():
        assert (service["init"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["build"]["args"].keys() <= settings(BUILD, "ARG").keys()


def test_every_service_looks_at_its_own_health():
    looked = {"cpb": last(IMAGE, "HEALTHCHECK")}
    looked |= {
        n: " ".join(s["healthcheck"]["test"]) for n, s in OURS.items() if "test" in s.get("healthcheck", {})
    }
    paths = {"cpb": "healthz", "prefect": "api/health", "mlflow": "health"}
    assert looked.keys() == paths.keys()
    for name, path in paths.items():
        assert f"http://127.0.0.1:{PUBLISHED[name]}/{path}'" in looked[name]


def test_volumes_lie_where_the_settings_say_and_are_declared():
    mounts = {
        name: dict(volume.split(":")[:2] for volume in service.get("volumes", []))
        for name, service in SERVICES.items()
    }
    assert {volume for mounted in mounts.values() for volume in mounted} == {*COMPOSE["volumes"]}
    for name in ("cpb", "prefect"):
        assert mounts[name]["home"] == ENV["CPB_HOME"]
    assert mounts["prefect"]["prefect"] == ENV["PREFECT_HOME"]
    backend = re.search(r":-sqlite:///(.+)}", OURS["mlflow"]["environment"]["MLFLOW_BACKEND_STORE_URI"])[1]
    for place in (backend, mlflow_options()["--artifacts-destination"]):
        assert Path(place).parent == Path(mounts["mlflow"]["store"])
    # A folder that the image declares and a service does not use would be a nameless volume of each container.
    for name, service in OURS.items():
        assert {*mounts[name].values(), *service["tmpfs"]} >= {*words(IMAGE, "VOLUME")}
    for name, service in SERVICES.items():
        (one,) = [volume for volume in service["volumes"] if volume.startswith("passwords:")]
        assert one.endswith(":ro") == (name != "passwords")


def test_no_password_stands_in_a_setting_or_on_a_command_line():
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            secret = re.search("PASSWORD|SECRET|TOKEN|AUTH", name)
            assert not secret or name.endswith(("_FILE", "_PATH")), name
            assert not urlsplit(re.sub(r"\$\{\w+:-(.*)\}", r"\1", str(value))).password
    comment = (ROOT / "compose.yaml").read_text().partition("name:")[0]
    assert urlsplit(re.search(r"CPB_MLFLOW_BACKEND=(\S+)", comment)[1]).password is None


def made_passwords(folder):
    """Run the script of the service `passwords` in a home of its own; return its files."""
    (folder / ".mlflow").mkdir(exist_ok=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["/bin/sh", "-euc", shell(OURS["passwords"])], cwd=folder, env={"PATH": path}, check=True)
    return {file.name: file.read_text() for file in (folder / ".mlflow").iterdir()}


def ini(text):
    parser = configparser.ConfigParser()
    parser.read_string(text)
    return parser["mlflow"]


def test_passwords_are_made_once_in_files_of_their_owner_which_the_others_read(tmp_path):
    files = made_passwords(tmp_path)
    assert {oct(file.stat().st_mode)[-3:] for file in (tmp_path / ".mlflow").iterdir()} == {"600"}
    server, client = ini(files["auth.ini"]), ini(files["credentials"])
    assert server["admin_username"] == client["mlflow_tracking_username"]
    assert server["admin_password"] == client["mlflow_tracking_password"]
    assert server["database_uri"].startswith("sqlite:////store/")
    host, port, database, user, password = files["pgpass"].strip().split(":")
    given = SERVICES["postgres"]["environment"]
    assert (host, port, database, user) == ("postgres", "5432", given["POSTGRES_DB"], given["POSTGRES_USER"])
    assert password == files["postgres"].strip()
    assert len({password, files["form-key"].strip(), server["admin_password"]}) == 3
    assert min(len(password), len(server["admin_password"])) >= 32
    # Where the services look for them.
    (postgres,) = [v for v in SERVICES["postgres"]["volumes"] if v.startswith("passwords:")]
    assert given["POSTGRES_PASSWORD_FILE"] == f"{postgres.split(':')[1]}/postgres"
    settings_of = OURS["mlflow"]["environment"]
    for name in (settings_of["MLFLOW_AUTH_CONFIG_PATH"], settings_of["PGPASSFILE"]):
        assert Path(name).parent == Path(HOME, ".mlflow")
        assert Path(name).name in files
    assert made_passwords(tmp_path) == files


def test_what_was_begun_and_interrupted_is_made_again(tmp_path):
    files = made_passwords(tmp_path)
    (tmp_path / ".mlflow/credentials").unlink()
    again = made_passwords(tmp_path)
    assert again.keys() == files.keys()
    assert ini(again["auth.ini"])["admin_password"] == ini(again["credentials"])["mlflow_tracking_password"]


def test_the_commands_of_the_documents_name_services_and_profiles_that_exist():
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
    assert {*re.findall(r"COMPOSE_PROFILES=(\w+)", (ROOT / "compose.yaml").read_text())} <= profiles
    text = "\n".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    named = re.findall(r"docker compose (?:run|exec|logs|cp)(?: -\S+)* (\w+)", text)
    assert {"cpb", "prefect", "mlflow"} <= {*named} <= {*SERVICES}


def block_of(page, start):
    """The one fenced block of a page that begins with these words."""
    (found,) = [block.text for block in blocks() if block.page == page and block.text.startswith(start)]
    return found


def test_the_arguments_of_the_build_are_those_of_the_document():
    section = (ROOT / "docs/install.md").read_text().partition("## In a container")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (.+?) \|", section, re.MULTILINE))
    given = settings(BEFORE, "ARG") | settings(BUILD, "ARG")
    assert rows.keys() == given.keys()
    told = {name: value.strip("`") for name, value in rows.items() if value.startswith("`")}
    assert told == {name: given[name] for name in told}
    assert given.keys() - told.keys() == {"TORCH_INDEX"}


def test_freqtrades_image_gets_the_releases_that_are_tested_together():
    text = block_of("docs/freqtrade.md", "FROM freqtradeorg/")
    (_, stage) = stages(text)
    tested = re.search(r"freqtrade==([\d.]+)", (ROOT / "Makefile").read_text())[1]
    assert last(stage, "FROM") == f"freqtradeorg/freqtrade:{tested}"
    (copied, target) = last(stage, "COPY").split()
    assert copied == light_wheel().name
    torch, wheel = [arguments for name, arguments in stage if name == "RUN"]
    assert torch.endswith(f"/whl/cpu torch=={settings(BUILD, 'ARG')['TORCH']}")
    assert wheel.split()[-1] == f"{target}{copied}"
    # The image is of a user of its own, who may not write elsewhere.
    assert all(line.startswith("pip install --user ") for line in (torch, wheel))


@pytest.fixture
def deployed(tmp_path):
    deployed = Deployed(tmp_path)
    yield deployed
    assert deployed.close() == []


@pytest.mark.slow
@pytest.mark.timeout(600)
class TestForeground:
    def start(self, deployed):
        """Start `cpb deploy up` as a container does, once it says that it is up."""
        command = [sys.executable, "-m", "flows.cli", "deploy", "up", "--foreground", "--host", "0.0.0.0"]
        log = deployed.folder / "up.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--port", str(deployed.port)], cwd=deployed.cwd, env=deployed.env, stderr=output
            )
        wait_for(lambda: "up: " in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return process, log

    def test_it_stays_until_a_signal_and_leaves_nothing(self, deployed):
        process, log = self.start(deployed)
        assert deployed.ask("health", auth=False).status_code == 200
        assert deployed.ask("flows/filter", {}, auth=False).status_code == 401
        assert deployed.ask("flows/filter", {}).status_code == 200
        assert deployed.ask("flows/filter", {}, headers={"Host": "prefect.example"}).status_code == 403
        # on all addresses: 127.0.0.2 is another one than the commands use
        deployed.api = deployed.api.replace("127.0.0.1", "127.0.0.2")
        assert deployed.ask("flows/filter", {}).status_code == 200
        assert deployed.json("deploy", "up")["started"] == []  # it runs, wherever it listens
        other = deployed.json("deploy", "up", "--host", "127.0.0.1", code=1)
        assert (other["code"], other["field"]) == ("already-up", "host")
        process.terminate()
        assert process.wait(120) == 0
        assert "stopped server and worker" in log.read_text()
        wait_for(lambda: len(deployed.processes()) == 0)

    def test_it_ends_with_an_error_when_the_worker_dies_but_not_by_down(self, deployed):
        process, log = self.start(deployed)
        os.kill(deployed.pid("worker"), 9)
        assert process.wait(120) == 1
        assert "worker ended" in log.read_text()
        wait_for(lambda: len(deployed.processes()) == 0)
        process, log = self.start(deployed)
        assert deployed.json("deploy", "down")["stopped"] == ["worker", "server"]
        assert process.wait(120) == 0
