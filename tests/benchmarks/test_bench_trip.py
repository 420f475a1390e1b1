"""The count of files on a made-up clone, and on cpb itself."""

import json
import sys

import pytest

from benchmarks import trip

CLONE = {
    "flows/__init__.py": "",
    "flows/main.py": """
import subprocess, sys, threading, time
from pathlib import Path
import tasks.imported, schemas.described
from tasks import called, threaded

def main():
    called.work()
    thread = threading.Thread(target=threaded.work)
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-m", "tasks.child"], check=True)
    Path("kept").mkdir()
    Path("kept/model.safetensors").write_text("weights")
    time.sleep(0.05)
    from tasks import late
    late.work()

main()
""",
    "tasks/__init__.py": "",
    "tasks/called.py": "def work(): pass\n",
    "tasks/threaded.py": "def work(): pass\n",
    "tasks/child.py": "from tasks import helper\nhelper.Helper().work()\n",
    "tasks/helper.py": "class Helper:\n    def work(self): return [x for x in 'ab']\n",
    "tasks/late.py": "def work(): pass\n",
    # Run by imports alone:
    "tasks/imported.py": "from tasks import at_import\nNAMES = [x for x in 'ab']\nat_import.make()\n",
    "tasks/at_import.py": "def make(): pass\n",
    "schemas/__init__.py": "",
    "schemas/described.py": "class Described:\n    field = 1\n",
    # No part of the product:
    "benchmarks/__init__.py": "def work(): pass\n",
}


def made(folder, **more):
    for path, text in (CLONE | more).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def follow(tmp_path, **more):
    (tmp_path / "place").mkdir()
    command = [sys.executable, "-m", "flows.main"]
    return trip.follow(command, tmp_path / "place", made(tmp_path / "clone", **more))


def test_files_count_in_which_a_function_ran_in_any_thread_and_process(tmp_path):
    found = follow(tmp_path)
    assert found.to_the_weights == [
        "flows/main.py",
        "tasks/called.py",
        "tasks/threaded.py",
        "tasks/helper.py",
    ]
    assert found.in_all == [*found.to_the_weights, "tasks/late.py"]


@pytest.mark.slow
def test_the_trip_of_train_all(capsys):
    trip.main(["--json"])
    found = json.loads(capsys.readouterr().out)
    weights, everything = found["to_the_weights"], found["in_all"]
    assert everything[: len(weights)] == weights
    assert weights[0].startswith("flows/cli")
    assert {"tasks/ingest.py", "tasks/training/trainer.py", "cpbmodels/fleet/member.py"} <= set(weights)
    assert {"tasks/promote.py"} <= set(everything) - set(weights)
    assert len(everything) == len(set(everything))
