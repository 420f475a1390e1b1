"""Shared by the benchmarks: seconds, one table, one command line."""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one run; pass `time.process_time` for CPU seconds."""
    start = clock()
    run()
    return clock() - start


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
