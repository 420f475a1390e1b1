"""systemd units and cron lines for a deployment that restarts after a reboot."""

import os
import shlex
import sys

from flows.deploy.services import ROOT, state_folder
from flows.prefect_server import prefect_home

_FOLDER = "~/.config/systemd/user"


def units(port: int, workers: int) -> str:
    """Return the text of all units, each after its path, and of the cron lines."""
    parts = {
        "cpb-server.service": _service(
            "Prefect server of cpb", f"-m flows.deploy.server --port {port}", after="network.target"
        ),
        "cpb-worker.service": _service(
            "Prefect worker of cpb", f"-m flows.deploy.worker --port {port} --workers {workers}",
            after="cpb-server.service", wants="cpb-server.service", before_start="-m flows.cli deploy prepare",
        ),
        "cpb-status.service": (
            _unit("Check of cpb's deployment") + _run("-m flows.cli deploy status --notify", kind="oneshot")
        ),
        "cpb-status.timer": (
            "[Unit]\nDescription=Check of cpb's deployment, every 15 minutes\n\n"
            "[Timer]\nOnCalendar=*:0/15\nPersistent=true\n\n[Install]\nWantedBy=timers.target\n"
        ),
    }  # fmt: skip
    files = "\n".join(f"# {_FOLDER}/{name}\n{text}" for name, text in parts.items())
    return f"{_HEAD}\n{files}\n{_cron()}"


_HEAD = f"""\
# Units for this user. Write each part to the file named above it, then:
#   systemctl --user daemon-reload
#   systemctl --user enable --now cpb-server cpb-worker cpb-status.timer
#   loginctl enable-linger          # so that they run while nobody is logged in
# cpb-status tells the services of CPB_NOTIFY, or of the file `notify` in CPB_HOME, what is wrong: a dead scheduler
# cannot. See docs/notifications.md; to have the check in the journal alone, take --notify out of it.
# Secrets (CPB_NOTIFY, MLFLOW_TRACKING_URI with a password, HF_TOKEN) belong into ~/.config/cpb/env with mode 600, as
# NAME=VALUE.
# Stop with `systemctl --user stop cpb-worker cpb-server`, never with both systemd and `cpb deploy down`.
# ({_FOLDER} is searched by systemd; the lines for cron, at the end, do without it.)
"""


def _unit(description: str, after: str = "", wants: str = "") -> str:
    lines = [f"Description={description}", after and f"After={after}", wants and f"Wants={wants}"]
    return "[Unit]\n" + "".join(f"{line}\n" for line in lines if line) + "\n"


def _run(arguments: str, kind: str = "exec", before_start: str = "") -> str:
    python = _word(sys.executable)
    lines = [
        f"Type={kind}",
        "WorkingDirectory=" + str(ROOT).replace("%", "%%"),
        *(f"Environment={_word(f'{name}={value}')}" for name, value in _environment().items()),
        "EnvironmentFile=-%h/.config/cpb/env",
        *([f"ExecStartPre={python} {before_start}"] if before_start else []),
        f"ExecStart={python} {arguments}",
    ]
    return "[Service]\n" + "".join(f"{line}\n" for line in lines)


def _service(
    description: str, arguments: str, after: str = "", wants: str = "", before_start: str = ""
) -> str:
    # SIGINT asks Prefect's worker and the server to stop; systemd then ends their children.
    ending = "KillSignal=SIGINT\nKillMode=mixed\nTimeoutStartSec=300\nTimeoutStopSec=60\n"
    ending += "Restart=on-failure\nRestartSec=10\n"
    install = "\n[Install]\nWantedBy=default.target\n"
    return _unit(description, after, wants) + _run(arguments, before_start=before_start) + ending + install


def _environment() -> dict[str, str]:
    """Return the variables that hold paths; no variable that may hold a secret."""
    places = {"PREFECT_HOME": str(prefect_home()), "CPB_DEPLOY_STATE": str(state_folder())}
    for name in ("CPB_HOME", "XDG_DATA_HOME"):
        if folder := os.environ.get(name):
            places[name] = os.path.abspath(folder)  # noqa: PTH100 - resolves no links
    return places


def _word(text: str) -> str:
    """Quote a word for systemd."""
    escaped = text.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if any(c in escaped for c in " \t'\"\\") else escaped


def _cron() -> str:
    """Return lines for `crontab -e`; cron mails the output of the check, which prints only problems."""
    places = " ".join(shlex.quote(f"{name}={value}") for name, value in _environment().items())
    cpb = f"env {places} {shlex.quote(sys.executable)} -m flows.cli deploy"
    command = f"cd {shlex.quote(str(ROOT))} && {cpb}".replace("%", r"\%")
    return (
        "# cron, without systemd: `crontab -e`. It knows no CPB_NOTIFY: name the services in the file\n"
        "# `notify` in CPB_HOME with mode 600; to have the check mailed by cron alone, take --notify out of it.\n"
        f"# @reboot {command} up\n"
        f'# */15 * * * * out=$({command} status --notify 2>&1) || echo "$out"\n'
    )
