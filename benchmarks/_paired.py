"""Shared by the benchmarks: paired measurements, medians, one table, one command line.

Two ways are run alternately, A B B A, and the ratio is taken within each pair: whatever else the machine is
doing slows both. The reported figure is the median of those ratios.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Paired:
    """Seconds of the slow way and the fast way, run by run."""

    slow: list[float] = field(default_factory=list)
    fast: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """How many times faster, pair by pair."""
        return [a / b for a, b in zip(self.slow, self.fast, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the paired ratios."""
        return statistics.median(self.ratios)

    def as_dict(self) -> dict[str, float]:
        """ratio with its range, and the median seconds of both ways."""
        return {
            "ratio": self.ratio,
            "ratio_min": min(self.ratios),
            "ratio_max": max(self.ratios),
            "slow_s": statistics.median(self.slow),
            "fast_s": statistics.median(self.fast),
        }


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one run; pass `time.process_time` for CPU seconds."""
    start = clock()
    run()
    return clock() - start


def paired(
    slow: Callable[[], object],
    fast: Callable[[], object],
    *,
    repeats: int = 5,
    warm_up: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> Paired:
    """Run both ways alternately `repeats` times; the order turns round at every pair."""
    if warm_up:
        slow()
        fast()
    out = Paired()
    for turn in range(repeats):
        for way in (("slow", "fast"), ("fast", "slow"))[turn % 2]:
            if way == "slow":
                out.slow.append(seconds(slow, clock))
            else:
                out.fast.append(seconds(fast, clock))
    return out


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table: a row for each key, a column for each field of the inner mappings."""
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    head = ["", *columns]
    body = [[name, *(cell(row.get(c)) for c in columns)] for name, row in rows.items()]
    text = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in text)


def cell(value: Any) -> str:
    """A figure with four significant digits; a dash for what was not measured."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


Part = Callable[[argparse.Namespace], Mapping[str, Any]]


def main(
    name: str,
    parts: Mapping[str, Part],
    argv: Sequence[str] | None = None,
    options: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> dict[str, Any]:
    """Run the parts asked for (`--only PART`), print Markdown tables or, with `--json`, one JSON object.

    A part returns {"row": {"column": figure}} or {"figure": number}; a part that cannot run here returns
    {"skipped": "why and what to install"}.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--only", choices=list(parts), action="append", help="a part; default: all of them")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options(parser)
    args = parser.parse_args(argv)
    results: dict[str, Any] = {}
    for part in args.only or parts:
        results[part] = parts[part](args)
        if not args.json:
            print(f"\n## {name}: {part}\n\n{show(results[part])}", flush=True)
    if args.json:
        print(json.dumps(results))
    return results


def show(result: Mapping[str, Any]) -> str:
    """A part's result as Markdown."""
    if result and all(isinstance(row, Mapping) for row in result.values()):
        return table(result)
    return table({name: {"value": value} for name, value in result.items()})
