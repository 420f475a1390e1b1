"""Progress bars while fleets train: epoch, loss, learning rate, windows/s, memory. None where stderr is no terminal."""

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
