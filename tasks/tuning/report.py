"""Outputs of a search: a summary sentence, a report with its pictures, and figures for MLflow."""

import json
from pathlib import Path
from typing import Any

from schemas.errors import count, p_value
from schemas.tuning import TuneSpec
from tasks.storage.files import write_bytes, write_json


def write_report(folder: Path, spec: TuneSpec, answer: dict[str, Any]) -> None:
    """Write `report.md` and `report.json` to the search's folder."""
    test = "\n".join(f"- {timeframe}: {one['verdict']}" for timeframe, one in answer["test"].items())
    pictures = "\n".join(f"![{Path(path).stem}](figures/{Path(path).name})" for path in answer["figures"])
    text = f"""# cpb tune: {spec.names[0]}, {count(answer["trials"], "trial")}

{sentence(answer)}

## Winner: trial {answer["winner"]["trial"]}

```json
{json.dumps(answer["winner"]["options"], indent=2)}
```

Preset: `{answer["preset"]}`

## Test span (no trial has seen it; scored {count(answer["test_times_scored"], "time")})

{test}

## Trials

{answer["completed"]} completed, {answer["pruned"]} pruned, {answer["failed"]} diverged. The ratio of a trial is the
mean over coins and folds of its CRPS to that of the random walk with EWMA volatility. Luck: the lowest ratio among as
many trials that are not better than that walk, median over resamples of {answer["blocks"]} blocks of time (White's
reality check).

{pictures}
"""
    write_bytes(folder / "report.md", text.encode())
    write_json(folder / "report.json", answer)


def metrics(answer: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a search that are logged in MLflow."""
    luck = answer["luck"]
    found = {
        "trials": answer["trials"], "pruned": answer["pruned"], "failed": answer["failed"],
        "validation_crps_ratio": answer["winner"]["validation_crps_ratio"],
        "luck_best_of_null": luck["best_of_null"], "luck_p": luck["p"],
    }  # fmt: skip
    return found | {f"test_crps_ratio_{t}": one["test_crps_ratio"] for t, one in answer["test"].items()}


def sentence(answer: dict[str, Any]) -> str:
    """Return a summary: the winner compared with luck, and its ratio on the test span."""
    luck, winner = answer["luck"], answer["winner"]
    tested = ", ".join(f"{one['test_crps_ratio']:.4f} at {t}" for t, one in answer["test"].items())
    return (
        f"{count(answer['trials'], 'trial')} ({answer['pruned']} pruned): the best has ratio "
        f"{winner['validation_crps_ratio']:.4f} on the validation folds; the best of as many trials without "
        f"skill would have had {luck['best_of_null']:.4f} (p {p_value(luck['p'])}). On the test span: {tested}."
    )
