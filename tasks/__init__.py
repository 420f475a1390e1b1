"""The steps of both DAGs, in the order in which data passes them:

train-all: ingest · features · plan · train · evaluate · promote · publish · forecast
forecast:  ingest · forecast · score · watch

Each file here is a thin step; the implementation is in the subpackages, which do not import an orchestrator: `storage`,
`running`, `market`, `signals`, `training`, `judging`, `forecasting`, `backtesting`, `tuning`, `tracking`, `promotion`,
`hub`, `notices`. `verify` is not a step: it checks the files stored by all of them.
"""

TRAIN_ALL = ("ingest", "features", "plan", "train", "evaluate", "promote", "publish", "forecast")
FORECAST = ("ingest", "forecast", "score", "watch")
STEPS = tuple(dict.fromkeys(TRAIN_ALL + FORECAST))
