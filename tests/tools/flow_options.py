"""A command of a specification, and a value other than the default for each field."""

import typer
from typer.testing import CliRunner

from flows.cli.options import Command, cli_options
from schemas.backtesting import BacktestSpec
from schemas.run import RunSpec
from schemas.scope import IngestSpec, ScopeSpec


def command_of(spec, **options):
    """Return what calls a command of `spec` with words, and gives the spec that arrives."""
    seen = []
    app = typer.Typer()
    app.command(cls=Command)(cli_options(spec, **options)(lambda spec: seen.append(spec)))

    def call(*words):
        done = CliRunner().invoke(app, list(words))
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return seen.pop()

    return call


SCOPE = {
    "coins": "exchange",
    "timeframes": "5m,4h",
    "source": "/",
    "market": "um",
    "since": "2023-01-02",
    "as_of": "2024-01-02T03:04:05",
    "tail": True,
}
RUN = SCOPE | {
    "architectures": "gru,lstm-universal",
    "preset": "mine.toml,smoke",
    "device": "cuda:1",
    "profile": "gpu-6gb",
    "dtype": "float64",
    "kernels": False,
    "seed": 7,
    "seeds": 2,
    "overrides": {"epochs": 5, "lr": 0.01},
    "train_timeout_s": 12.5,
    "engine": "local",
    "repo": "alice/models",
    "space": "alice/prices",
    "private": True,
    "force": "a wrong feed",
    "prune": True,
    "wandb": True,
    "serving": True,
    "preset_files": {
        "mine.toml": {"base": "smoke", "architectures": ["lstm-universal"], "options": {"hidden_dim": 8}},
    },
}
NO_BACKTEST = {"repo", "space", "private", "force", "prune", "wandb", "serving"}
BACKTEST = {name: value for name, value in RUN.items() if name not in NO_BACKTEST} | {
    "folds": 2,
    "baselines": "random-walk",
    "check_lookahead": True,
    "out": "out",
}
CASES = [
    (ScopeSpec, SCOPE, set()),
    (IngestSpec, SCOPE, set()),
    (RunSpec, RUN, set()),
    (BacktestSpec, BACKTEST, NO_BACKTEST | {"gate", "trials"}),
    # The gate needs a single timeframe.
    (
        BacktestSpec,
        BACKTEST | {"gate": True, "trials": 3, "timeframes": "4h"},
        NO_BACKTEST,
    ),
]
