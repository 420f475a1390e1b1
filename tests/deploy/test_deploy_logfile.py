import subprocess
import sys
import time

from flows.deploy import services


def test_a_long_log_is_moved_aside_and_its_writers_go_on(tmp_path):
    log = tmp_path / "worker.log"
    with log.open("ab") as output:  # a child that inherited the open file, as flow runs do
        child = subprocess.Popen(
            [sys.executable, "-uc", "for line in iter(input, 'end'): print(line)"],
            stdin=subprocess.PIPE,
            stdout=output,
            text=True,
        )
    child.stdin.write("one\n")
    child.stdin.flush()
    deadline = time.monotonic() + 30
    while not log.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not services.rotate(log, 100)
    assert services.rotate(log, 3)
    child.communicate("two\nend\n", timeout=30)
    assert (log.read_text(), (tmp_path / "worker.log.1").read_text()) == ("two\n", "one\n")


def test_a_few_old_logs_are_kept(tmp_path):
    log = tmp_path / "server.log"
    for number in range(6):
        log.write_text(f"{number}\n" * 10)
        assert services.rotate(log, 5)
    kept = {path.name: path.read_text()[:1] for path in tmp_path.iterdir()}
    assert kept == {"server.log": "", "server.log.1": "5", "server.log.2": "4", "server.log.3": "3"}


def test_a_process_caps_its_own_log(tmp_path, monkeypatch):
    monkeypatch.setattr(services, "CHECK_EVERY_S", 0.01)
    log = tmp_path / "server.log"
    log.write_bytes(b"x" * (services.MAX_BYTES + 1))
    services.cap_log(log)
    deadline = time.monotonic() + 30
    while log.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (log.stat().st_size, (tmp_path / "server.log.1").stat().st_size) == (0, services.MAX_BYTES + 1)


def test_the_last_lines_name_the_reason(tmp_path):
    log = tmp_path / "server.log"
    assert services.last_lines(log) == "it wrote nothing"
    log.write_text("\n".join(["noise"] * 9999 + ["a", "b", "OSError: no"]) + "\n\n")
    assert services.last_lines(log) == "a / b / OSError: no"
