"""Progress on the terminal, and none where stderr is no terminal: bars of fleets in training, and a counter.

A fleet's bar tells epoch, loss, learning rate, windows/s and memory.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[dict[str, Any]], None]


@contextmanager
def training_bars() -> Iterator[Progress | None]:
    """Yield a callback that draws a bar per fleet from the trainer's epoch records; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description:>16}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        rows: dict[str, Any] = {}

        def show(record: dict[str, Any]) -> None:
            name = record["architecture"]
            if name not in rows:
                rows[name] = bars.add_task(name, total=record["epochs"], note="")
            bars.update(rows[name], completed=record["epoch"], note=_note(record))

        yield show


@contextmanager
def counter(what: str) -> Iterator[Callable[[], None]]:
    """Yield a function that counts one more, as in `1,234 files checked`."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.status import Status

    done = 0
    with Status(what, console=Console(stderr=True)) as status:

        def step() -> None:
            nonlocal done
            done += 1
            status.update(f"{done:,} {what}")

        yield step


def _note(record: dict[str, Any]) -> str:
    members = record["members"]
    train, val = (_mean(members, key) for key in ("train_loss", "val_loss"))
    memory = record["memory"].get("gpu_mem_allocated_peak_mb") or record["memory"].get("rss_peak_mb") or 0
    return (
        f"loss {train:.4f} / {val:.4f}  lr {record['lr']:.1e}  {record['windows_per_s']:,.0f} windows/s  "
        f"{memory:,.0f} MB"
    )


def _mean(members: list[dict[str, Any]], key: str) -> float:
    values = [m[key] for m in members if m.get(key) is not None]
    return sum(values) / len(values) if values else float("nan")
