"""Options of the commands. Each option is declared once, here: the command line, the flow parameters and Prefect's run
form are derived from these classes (`flows/runner.py`) and report the same message for an invalid value.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, field_validator, model_validator

from schemas.errors import UsageError
from schemas.identity import EXCHANGE, INTERVAL_SECONDS, OWN, SIM, Market, parse_coins, parse_timeframes
from schemas.presets import PRESET_ARCHITECTURES, PRESET_COPIES, with_preset_file, with_profile_sizes
from schemas.scope import Scope, Spec, implied_market, parse_instant
from schemas.tables import tables_of

UNIVERSAL_SUFFIX = "-universal"
"""Suffix of an architecture that learns all series of a timeframe in a single model, as in `har-universal`."""

LOCAL, RAY = "local", "ray"
"""Engines: this machine, or a Ray cluster."""

BASELINES = ("random-walk", "robust-har", "garch-t", "lightgbm")
"""Baselines that a backtest can compare the models with; the last two need the extra `judging`."""

ZERO_SHOT = ("chronos:MODEL_OR_FOLDER", "timesfm:MODEL_OR_FOLDER", "kronos:CLONE:MODEL:TOKENIZER")
"""Baselines that other projects have trained, by their form; they need the extra `zeroshot`."""

_ZERO_SHOT = re.compile(r"(chronos|timesfm):.+|kronos(:[^:]+){3}")

FILTERS = ("min_days_listed", "min_quote_volume", "number_assets")
"""Fields that filter the pairs of `exchange`; named as in freqtrade's AgeFilter and VolumePairList."""


class ScopeSpec(Spec):
    """The options that all commands share: the market and the part of it to work on."""

    months_allowed: ClassVar[bool] = False

    coins: str = Field(
        "all",
        description="BTC,ETH, all (the default universe) or exchange (every listed USDT pair); a coin without a quote "
        "means USDT",
    )
    timeframes: str = Field("15m,1h", description="Binance intervals, as in 15m,1h")
    source: str | None = Field(
        None, description="URL, folder, table of candles or sim; default: Binance Vision itself"
    )
    market: Market = Field("spot", description="spot, um, cm, or sim and own (which a source implies)")
    since: str | None = Field(
        None, description="first candle, as in 2024-01 or 2024-01-31 (UTC); default: the oldest available"
    )
    as_of: str | None = Field(
        None, description="no candle that closes after it is seen, as in 2025-06-06T12:00 (UTC); default: now"
    )
    tail: bool = Field(False, description="add the newest candles from the REST API")
    offline: bool = Field(False, description="use only the stored candles: no source is read")
    min_days_listed: int = Field(
        0, ge=0, description="with coins exchange: leave out pairs whose first candle is younger"
    )
    min_quote_volume: float = Field(
        0,
        ge=0,
        allow_inf_nan=False,
        description="with coins exchange: minimum turnover in USDT of the last whole month before as_of",
    )
    number_assets: int | None = Field(
        None,
        ge=1,
        description="with coins exchange: at most this many pairs, those with the largest turnover in that month",
    )

    _pairs: tuple[str, ...] | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _source_is_a_market(cls, values: Any) -> Any:
        """The simulator and custom tables are markets: a source implies its market, and the market sim its source."""
        if not isinstance(values, dict):
            return values
        source, market = values.get("source"), values.get("market")
        implied = implied_market(source)
        if market == SIM and source not in (None, SIM):
            raise UsageError(
                "market 'sim' has no other source than sim: leave source out", code="market", field="market"
            )
        if implied and market not in (None, "spot", implied):
            what = "simulated" if implied == SIM else "read from a table"
            raise UsageError(
                f"market {market!r} cannot be {what}: leave market out with source {source}",
                code="market", field="market",
            )  # fmt: skip
        if OWN in (implied, market) and str(values.get("coins", "")).strip().lower() == EXCHANGE:
            raise UsageError(
                f"coins {EXCHANGE} reads an exchange's listing, and your own table has none: use all",
                code="coins", field="coins",
            )  # fmt: skip
        if implied == OWN:
            return values | {"market": OWN} | cls._of_tables(values)
        return values | {"source": SIM, "market": SIM} if SIM in (implied, market) else values

    @classmethod
    def _of_tables(cls, values: dict[str, Any]) -> dict[str, str]:
        """`all` coins and the default timeframes mean all coins and timeframes in the tables."""
        held, fields = tables_of(values["source"]), cls.model_fields
        timeframes = values.get("timeframes", fields["timeframes"].default)
        if timeframes == fields["timeframes"].default:
            timeframes = ",".join(held.timeframes)
        elif missing := [one for one in parse_timeframes(timeframes, True) if one not in held.timeframes]:
            raise UsageError(
                f"timeframes {timeframes!r}: {held.path} holds {', '.join(held.timeframes)} and no "
                f"{', '.join(missing)}; name one of these",
                code="timeframes", field="timeframes",
            )  # fmt: skip
        coins = values.get("coins", fields["coins"].default)
        return {"coins": held.coins("all" if coins == CHAMPIONS else coins), "timeframes": timeframes}

    @property
    def whole_exchange(self) -> bool:
        """Whether the coins are the pairs of the source's listing that pass the filters."""
        return self.coins.strip().lower() == EXCHANGE

    @property
    def looks_up_symbols(self) -> bool:
        """Whether the symbols come from the source's listing; `scope.symbols` is empty until the listing is read."""
        return self.whole_exchange

    @property
    def intervals(self) -> list[str]:
        """The timeframes without duplicates."""
        return parse_timeframes(self.timeframes, self.months_allowed)

    @property
    def pairs(self) -> tuple[str, ...] | None:
        """The symbols from the source's listing for `exchange`; None if the listing was not read."""
        return self._pairs

    def with_pairs(self, symbols: Iterable[str]) -> Self:
        """Return a copy of the specification with the symbols from the source's listing."""
        found = self.model_copy()
        found._pairs = tuple(symbols)
        found.__dict__.pop("scope", None)  # resolved again on next use
        return found

    @model_validator(mode="after")
    def _filters_of_the_exchange(self) -> Self:
        given = [name for name in FILTERS if getattr(self, name)]
        if given and not self.whole_exchange:
            raise UsageError(
                f"{given[0]} chooses among the pairs of a listing: use it with coins {EXCHANGE}, or leave it out",
                code="filter", field=given[0],
            )  # fmt: skip
        return self

    @model_validator(mode="after")
    def _mirror(self) -> Self:
        """A source that contains :// must be a valid URL; messages omit the URL, which may hold a password."""
        if not self.source or "://" not in self.source:
            return self
        problem = ""
        try:
            url = urlsplit(self.source)
            if url.scheme not in ("http", "https"):
                problem = "only URLs of http and https can be read"
            elif not url.hostname:
                problem = "the URL names no host"
            elif url.port == 0:
                problem = "no server has port 0"
        except ValueError:  # its text can show the password if that is parsed as the port
            problem = "the URL's host or port cannot be read"
        if problem:
            raise UsageError(
                f"source: {problem}; correct the URL, give a folder or sim, or leave it out",
                code="source", field="source",
            )  # fmt: skip
        if {"?", "#"} & set(self.source):
            raise UsageError(
                "source: a URL with a query or fragment is not a mirror's folder; leave out everything from ? or # on",
                code="source", field="source",
            )  # fmt: skip
        return self

    @model_validator(mode="after")
    def _coins_and_time_range(self) -> Self:
        if not self.looks_up_symbols:
            parse_coins(self.coins, quoted=self.market == OWN)
        _ = self.intervals
        start = parse_instant(self.since, "since") if self.since else None
        end = parse_instant(self.as_of, "as_of") if self.as_of else None
        if start and end and end - start < timedelta(days=1):
            raise UsageError(f"as_of {self.as_of} must lie at least a day after since {self.since}",
                             code="range", field="as_of")  # fmt: skip
        now = datetime.now(UTC)
        for name, instant in (("as_of", end), ("since", start)):
            # a tolerance of a day: as_of may be the end of today, or the clock may be slow
            if instant and instant - now > timedelta(days=1):
                raise UsageError(
                    f"{name} {getattr(self, name)} is later than this machine's clock ({now:%Y-%m-%dT%H:%M} UTC); "
                    "give an earlier time, or leave it out",
                    code="future", field=name,
                )  # fmt: skip
        return self

    @cached_property
    def scope(self) -> Scope:
        """The resolved options: symbols, instants, the home of this machine."""
        made = Scope.of(
            "all" if self.looks_up_symbols else self.coins,
            ",".join(self.intervals),
            self.source, self.market, self.since, self.as_of, months=self.months_allowed,
        )  # fmt: skip
        update: dict[str, Any] = {"offline": self.offline}
        return made.model_copy(
            update=update | ({"symbols": self._pairs or ()} if self.looks_up_symbols else {})
        )


CHAMPIONS = "champions"
"""Value of `coins` and `timeframes` of a forecast that selects all series with a champion."""


class ForecastSpec(ScopeSpec):
    """Options of `cpb forecast`."""

    coins: str = Field(
        CHAMPIONS,
        description="BTC,ETH, all (the default universe), exchange (every listed USDT pair) or champions (every coin "
        "with a champion)",
    )
    timeframes: str = Field(
        CHAMPIONS, description="Binance intervals, as in 15m,1h, or champions (each with a champion)"
    )
    fallback: Literal["on", "off"] = Field(
        "off", description="on: if a champion has drifted, robust-har forecasts as well and is shown"
    )

    @property
    def every_champion(self) -> bool:
        """Whether the coins come from the registry."""
        return self.coins.strip().lower() == CHAMPIONS

    @property
    def looks_up_symbols(self) -> bool:
        """Whether the symbols come from listing or registry; `scope.symbols` is empty until that is read."""
        return self.whole_exchange or self.every_champion

    @property
    def intervals(self) -> list[str]:
        """The timeframes without duplicates; for `champions`, every timeframe that a model can have."""
        asked = self.timeframes.strip().lower()
        return list(INTERVAL_SECONDS) if asked == CHAMPIONS else super().intervals


class IngestSpec(ScopeSpec):
    """Options of `cpb ingest`, which also stores candles of a calendar month; no model learns from those candles."""

    months_allowed: ClassVar[bool] = True

    coins: str = Field(
        "all",
        description="BTC,ETH, all, exchange (every traded USDT pair) or all-usdt (leveraged tokens, stablecoins and "
        "delisted pairs too)",
    )

    @property
    def looks_up_symbols(self) -> bool:
        """Whether the symbols come from the source's listing: for `exchange` and `all-usdt`."""
        return self.whole_exchange or self.coins.strip().lower() == "all-usdt"


class RunSpec(ScopeSpec):
    """Options of a training run, from candles to forecasts.

    `overrides`: fields of the model preset, such as `batch_size`. `seeds`: number of averaged copies of each member,
    with seeds from `seed` on.
    """

    architectures: str | None = Field(
        None, description="as in gru,har,har-universal; default: the preset's own"
    )
    preset: str = Field("default", description=f"{', '.join(PRESET_ARCHITECTURES)}, or your own file (NAME.toml)",
                        json_schema_extra={"enum": list(PRESET_ARCHITECTURES)})  # fmt: skip
    device: str = Field("auto", description="auto, cpu or cuda")
    profile: Literal["auto", "cpu", "gpu-6gb", "gpu-16gb", "gpu-80gb"] = Field(
        "auto",
        description="auto, cpu, gpu-6gb (with a seed preset: batch 16, context 20 too), gpu-16gb or gpu-80gb",
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="float32 or float64, of the weights")
    kernels: bool = Field(
        True, description="use cpb's own GPU kernels if GPU and options allow it; off: torch's only"
    )
    seed: int = Field(1, ge=0, description="every member's own seed derives from it")
    seeds: int | None = Field(
        None, ge=1, le=64, description="copies of each model that are averaged; default: the preset's"
    )
    warm_start: Literal["champion"] | None = Field(
        None, description="champion: continue from the registered models; default: train from scratch"
    )
    weekly_challengers: bool = Field(
        False,
        description="train an architecture without a champion or challenger in a timeframe there once a week only",
    )
    overrides: dict[str, Any] = Field(
        default_factory=dict, description='fields of the model preset, as in {"epochs": 5}'
    )
    engine: Literal["local", "ray"] | None = Field(
        None, description="local or ray, a cluster; default: ray if RAY_ADDRESS is set, else local"
    )
    train_timeout_s: float = Field(
        6 * 3600, gt=0, description="time limit of one shard's training and judging, in seconds"
    )
    repo: str | None = Field(
        None, pattern=r"^[\w.-]+/[\w.-]+$", description="Hub repository USER/NAME; without it: a dry run"
    )
    force: str | None = Field(
        None, description="REASON: let an older as_of replace newer champions; it is kept with the decision"
    )
    prune: bool = Field(False, description="at the end, delete what is old, as `cpb prune --yes` does")
    wandb: bool = Field(
        False, description="copy params and metrics to Weights & Biases too; offline with WANDB_MODE=offline"
    )

    @model_validator(mode="before")
    @classmethod
    def _preset_file(cls, values: Any) -> Any:
        """Replace a custom preset by its built-in base and overrides; add the profile's sizes to the overrides."""
        return with_profile_sizes(with_preset_file(values)) if isinstance(values, dict) else values

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
            raise UsageError(
                f"device {name!r} is unknown: choose auto, cpu or cuda", code="device", field="device"
            )
        return name

    @field_validator("force")
    @classmethod
    def _a_reason(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise UsageError(
                'force needs a reason, as in --force "the feed was wrong from May on"',
                code="reason",
                field="force",
            )
        return text

    @model_validator(mode="after")
    def _known_models(self) -> Self:
        if self.preset not in PRESET_ARCHITECTURES:
            raise UsageError(f"preset {self.preset!r} is unknown: choose from {', '.join(PRESET_ARCHITECTURES)}, "
                             "or give a file that ends in .toml",
                             code="preset", field="preset")  # fmt: skip
        import cpbmodels  # for its registry of architectures; takes a second if torch is not imported yet

        known = cpbmodels.architectures()
        unknown = [name for name in self.names if base_of(name) not in known]
        if unknown or not self.names:
            raise UsageError(
                f"architectures {self.architectures!r}: unknown {', '.join(unknown) or '(empty)'}; choose from "
                f"{', '.join(known)} (add {UNIVERSAL_SUFFIX} for one model of all coins)",
                code="architectures", field="architectures",
            )  # fmt: skip
        ignored: list[list[str]] = []
        for name in self.names:
            try:
                options = cpbmodels.preset(self.preset, base_of(name), **self.overrides)
            except cpbmodels.ModelError as error:
                raise UsageError(
                    str(error), code="preset", field="overrides" if self.overrides else "preset"
                ) from None
            ignored.append(cpbmodels.without_effect(options, base_of(name), self.overrides))
        if all(ignored):  # an option has an effect if any of the architectures reads it
            raise UsageError(ignored[0][0], code="without-effect", field="overrides")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The architectures to train, without duplicates."""
        if self.architectures is None:
            return PRESET_ARCHITECTURES[self.preset]
        return _listed(self.architectures)

    def copies(self, architecture: str) -> int:
        """Return how many copies of a member are averaged; 1 for a closed form, whose result has no randomness."""
        import cpbmodels

        if cpbmodels.architecture(base_of(architecture)).closed_form:
            return 1
        return self.seeds or PRESET_COPIES.get(self.preset, 1)


_NOT_IN_BACKTESTS = {
    "warm_start": "champions have seen the test spans of a backtest",
    "repo": "a backtest publishes nothing",
    "force": "a backtest promotes nothing",
    "wandb": "a backtest leaves no runs behind",
    "prune": "a backtest leaves no runs behind",
    "weekly_challengers": "a backtest judges all architectures alike",
}
"""Options of a run that a backtest rejects, and the reasons."""


class BacktestSpec(RunSpec):
    """Options of `cpb backtest` in addition to those of a run."""

    timeframes: str = Field("1h", description="Binance intervals, as in 15m,1h")
    folds: int = Field(4, ge=1, le=24, description="test periods, the newest last")
    refit: bool = Field(True, description="train again for every fold")
    expanding: bool = Field(True, description="train on all the past, or on a span of fixed length")
    baselines: str = Field("random-walk,robust-har", description=f"any of {', '.join(BASELINES + ZERO_SHOT)}")
    check_lookahead: bool = Field(False, description="recompute everything without the future")
    out: str | None = Field(
        None, description="folder for tables, verdicts, forecast rows and the report; default: none"
    )
    report: str | None = Field(None, description="folder for report.html; default: none")
    gate: bool = Field(
        False,
        description="submit the recipes to the gate: the best that passes replaces the champions' at the next training",
    )
    trials: int = Field(
        1, ge=1, description="with --gate: the search trials on these candles that each recipe is the best of"
    )

    @field_validator("baselines")
    @classmethod
    def _known_baselines(cls, text: str) -> str:
        named = [name for name in _listed(text) if not _ZERO_SHOT.fullmatch(name)]
        if unknown := [name for name in named if name not in BASELINES]:
            raise UsageError(
                f"baselines {text!r}: unknown {', '.join(unknown)}; choose from {', '.join(BASELINES + ZERO_SHOT)}",
                code="baselines", field="baselines",
            )  # fmt: skip
        return text

    @model_validator(mode="after")
    def _only_what_folds_can_judge(self) -> Self:
        import cpbmodels

        if classifiers := [n for n in self.names if cpbmodels.architecture(base_of(n)).classifier]:
            raise UsageError(
                f"architectures: a backtest judges forecasts of prices; leave {', '.join(classifiers)} out",
                code="classifier", field="architectures",
            )  # fmt: skip
        for name, reason in _NOT_IN_BACKTESTS.items():
            if getattr(self, name):
                raise UsageError(
                    f"{name}: {reason}; leave {name} out", code=name.replace("_", "-"), field=name
                )
        return self

    @model_validator(mode="after")
    def _only_what_the_gate_can_judge(self) -> Self:
        if self.gate and not self.refit:
            raise UsageError(
                "gate: recipes are judged with refits; leave --no-refit out", code="gate", field="refit"
            )
        if self.gate and len(self.intervals) != 1:
            raise UsageError("gate: it decides on one timeframe; name one", code="gate", field="timeframes")
        if self.trials > 1 and not self.gate:
            raise UsageError("trials: only the gate counts them; add --gate", code="gate", field="trials")
        return self

    @property
    def baseline_names(self) -> tuple[str, ...]:
        """The baselines to judge, without duplicates."""
        return _listed(self.baselines)


class BoardSpec(Spec):
    """Options of `cpb leaderboard`: the rows of a single run, or the newest of each model, by market and series."""

    run: str | None = Field(None, description="id of a flow's run; default: the newest of each model")
    market: Market | None = Field(
        None, description="spot, um, cm, own or sim; default: all real markets, sim if there are none"
    )
    coins: str | None = Field(None, description="BTC,ETH or all; default: every coin that was trained")
    timeframes: str | None = Field(None, description="as in 15m,1h; default: all")

    @model_validator(mode="after")
    def _one_run_or_filters(self) -> Self:
        filters = {"market": self.market, "coins": self.coins, "timeframes": self.timeframes}
        given = [name for name, value in filters.items() if value is not None]
        if self.run is not None and given:
            raise UsageError(
                f"run shows everything that one run has trained: leave {', '.join(given)} out",
                code="run", field=given[0],
            )  # fmt: skip
        _ = self.symbols, self.intervals
        return self

    @property
    def symbols(self) -> set[str] | None:
        """The coins' symbols; None for all."""
        return set(parse_coins(self.coins, quoted=self.market == OWN)) if self.coins is not None else None

    @property
    def intervals(self) -> list[str] | None:
        """The timeframes; None for all."""
        return parse_timeframes(self.timeframes) if self.timeframes is not None else None


def _listed(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text, without duplicates, in order."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def base_of(architecture: str) -> str:
    """Return the architecture's name in `cpbmodels`, without `-universal`."""
    return architecture.removesuffix(UNIVERSAL_SUFFIX)
