"""The steps of both DAGs, in the order in which data passes them:

train-all: ingest · features · plan · train · evaluate · promote · publish · forecast
forecast:  ingest · forecast · score · watch · trial

Each file here is one step, thin; the substance lies in the subpackages, which know no orchestrator: `storage`,
`running`, `market`, `signals`, `training`, `judging`, `forecasting`, `backtesting`, `tuning`, `tracking`, `promotion`,
`hub`, `notices`. `verify` is no step: it checks what all of them have stored.
"""

TRAIN_ALL = ("ingest", "features", "plan", "train", "evaluate", "promote", "publish", "forecast")
FORECAST = ("ingest", "forecast", "score", "watch", "trial")
STEPS = tuple(dict.fromkeys(TRAIN_ALL + FORECAST))
