"""The steps of the DAG, in the order in which data passes them:

ingest · features · plan · train · evaluate · promote · publish · forecast · score · watch

Each file here is one step, thin; the substance lies in the subpackages, which know no orchestrator: `storage`,
`market`, `signals`, `training`, `judging`, `forecasting`, `backtesting`, `tracking`, `hub`, `notices`.
"""

STEPS = (
    "ingest",
    "features",
    "plan",
    "train",
    "evaluate",
    "promote",
    "publish",
    "forecast",
    "score",
    "watch",
)
