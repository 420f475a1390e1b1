"""Options of training runs, backtests and the leaderboard, and the presets that they name.

Each option is declared once, here or in `scope.py`: command line, flow parameters and Prefect's run form are derived
from these classes (`flows/cli/options.py`, `flows/runner.py`) and report the same message for an invalid value.

A preset of one's own is a TOML file that changes a built-in preset (docs/tuning.md has the format).
A `RunSpec` built with such a file holds its content, so that a flow run on another machine does not need the file. What
the file changes passes the same checks as options on the command line: both become the overrides of a `FleetSpec`.
"""

import json
import shlex
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from cpbmodels.arch.options import HOW_IT_RUNS, PROFILE_SIZES, by_field
from cpbmodels.errors import ModelError
from cpbmodels.files import read_regular
from schemas.errors import UsageError
from schemas.identity import OWN, Market, parse_coins, parse_timeframes
from schemas.record import Record
from schemas.scope import ScopeSpec, Spec, home_folder

PRESET_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "smoke": ("transformer", "gru", "lstm", "linear", "har"),
    "default": ("robust-har", "har", "har-universal", "average-universal"),
    "seed-transformer": ("transformer",),
    "seed-gru": ("gru",),
    "seed-lstm": ("lstm",),
    "seed-transformer-tuned": ("transformer",),
    "seed-gru-tuned": ("gru",),
    "seed-lstm-tuned": ("lstm",),
}
"""The architectures that a preset trains unless `architectures` is set."""

PRESET_COPIES = {"default": 3}
"""Number of averaged copies of each member, if not 1: several copies cost little for such small models."""

PRESET_ABOUT = {
    "smoke": "tiny models and three short epochs: shows in seconds that everything works",
    "default": "the best known: robust HAR, HAR with a Student-t head per coin and for all coins, and the latter "
    "averaged with a walk from the line on all columns",
    "seed-transformer": "the transformer as specified in the original notes: four inputs, AdamW at 1e-3, no schedule",
    "seed-gru": "the GRU as specified in the original notes: four inputs, Adam at 1e-3",
    "seed-lstm": "the LSTM as specified in the original notes: four inputs, Adam at 1e-3, no schedule",
    "seed-transformer-tuned": "seed-transformer with log_sigma as fifth input, 5e-4 and a cosine schedule",
    "seed-gru-tuned": "seed-gru with log_sigma as fifth input",
    "seed-lstm-tuned": "seed-lstm with log_sigma as fifth input and a step schedule",
}
"""A short description of each preset."""

SUFFIX = ".toml"
SEED = "seed-"
"""Begins the names of the presets of the original notes, whose sizes a hardware profile changes."""

_MAX_PRESET = 1 << 20  # bytes
UNIVERSAL_SUFFIX = "-universal"
"""Suffix of an architecture that learns all series of a timeframe in a single model, as in `har-universal`."""

LOCAL, RAY = "local", "ray"
"""Engines: this machine, or a Ray cluster."""

BASELINES = ("random-walk", "robust-har")
"""Baselines that a backtest can compare the models with."""


class PresetFile(Spec):
    """Content of a preset file. Options not named are taken from `base`."""

    about: str = Field("", description="one line that describes it")
    base: str = Field("default", description="the built-in preset that it changes")
    architectures: tuple[str, ...] = Field((), description="what it trains; default: that of the base")
    seeds: int | None = Field(None, ge=1, le=64, description="copies of each model that are averaged")
    options: dict[str, Any] = Field(default_factory=dict, description="fields of the model preset")

    @field_validator("options")
    @classmethod
    def _by_field(cls, options: dict[str, Any]) -> dict[str, Any]:
        return _resolved(options)


def own_presets_folder() -> Path:
    """Return the folder of custom presets: listed, and searched for a bare `NAME.toml` after the current folder."""
    return home_folder() / "presets"


def is_file(preset: object) -> bool:
    """Whether a preset is given as a file instead of a built-in name."""
    return isinstance(preset, str) and preset.endswith(SUFFIX)


def with_preset_files(values: dict[str, Any]) -> dict[str, Any]:
    """Return a run's options with the content of each preset file in `preset` that `preset_files` lacks.

    Raises:
        UsageError: a file does not exist or is not a preset.
    """
    known = values.get("preset_files") or {}
    if not isinstance(values.get("preset"), str) or not isinstance(known, dict):
        return values  # validation of the specification reports the wrong type
    wanted = [name for name in _listed(values["preset"]) if is_file(name) and name not in known]
    read = {name: read_preset(name).model_dump(mode="json") for name in wanted}
    return values | {"preset_files": known | read} if read else values


def read_preset(name: str) -> PresetFile:
    """Return the content of a preset file, given as a path; a bare name is also searched in `HOME/presets`.

    Raises:
        UsageError: the file does not exist, is not TOML, or is not a valid preset.
    """
    places = [Path(name), *([own_presets_folder() / name] if Path(name).name == name else [])]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        looked = " or ".join(str(place) for place in places)
        raise _wrong(f"preset {name!r}: no file {looked}; `cpb presets` lists the presets")
    try:
        content = tomllib.loads(read_regular(path, _MAX_PRESET).decode())
    except OSError as error:
        raise _wrong(f"preset {path} cannot be read ({error.strerror}); name another file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(f"preset {path} is not TOML ({error}); correct it") from None
    try:
        return PresetFile(**content)
    except UsageError as error:
        raise _wrong(f"preset {path}: {error}") from None


def _wrong(sentence: str) -> UsageError:
    return UsageError(sentence, code="preset")


class FleetSpec(Record):
    """A fleet that a run trains, before its series are known: all that makes its models, but for the candles.

    `preset`: a built-in preset; `overrides`: what differs from it. `seeds`: how many copies of each model are averaged.
    """

    architecture: str
    preset: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    seeds: int = 1
    dtype: str = "float32"

    @property
    def options(self) -> str:
        """The options of `cpb train-all` that train it: `--architectures gru --preset seed-gru --set epochs=2`."""
        words = ["--architectures", self.architecture, "--preset", self.preset]
        for name, value in self.overrides.items():
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        if self.dtype != "float32":
            words += ["--set", f"dtype={self.dtype}"]
        if self.seeds != standard_copies(self.architecture, self.preset):
            words += ["--seeds", str(self.seeds)]
        return shlex.join(words)


def standard_copies(architecture: str, preset: str) -> int:
    """Return how many copies of a preset's model are averaged; 1 for a closed form, which has no randomness."""
    import cpbmodels

    is_closed = cpbmodels.architecture(base_of(architecture)).closed_form
    return 1 if is_closed else PRESET_COPIES.get(preset, 1)


class RunSpec(ScopeSpec):
    """Options of a training run, from candles to forecasts.

    `overrides`: fields of the model preset, such as `batch_size`. `seeds`: number of averaged copies of each member,
    with seeds from `seed` on.
    """

    architectures: str | None = Field(
        None, description="as in gru,har,har-universal; default: the preset's own"
    )
    preset: str = Field(
        "default",
        description=f"{', '.join(PRESET_ARCHITECTURES)}, or your own file (NAME.toml); several as in seed-gru,default",
    )
    preset_files: dict[str, PresetFile] = Field(
        default_factory=dict,
        description="content of the preset files that preset names, by name; read if not given",
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or a GPU as in cuda:1"
    )
    profile: Literal["auto", "cpu", "gpu-6gb", "gpu-16gb", "gpu-80gb"] = Field(
        "auto",
        description="auto, cpu, gpu-6gb (which sets the sizes of a seed preset, too), gpu-16gb or gpu-80gb",
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="float32 or float64, of the weights")
    kernels: bool = Field(
        True, description="use cpb's own GPU kernels if GPU and options allow it; false: only torch's"
    )
    seed: int = Field(1, ge=0, description="every member's own seed derives from it")
    seeds: int | None = Field(
        None, ge=1, le=64, description="copies of each model that are averaged; default: the preset's"
    )
    serving: bool = Field(
        False,
        description="train what serves in each timeframe, as it was trained; preset where nothing serves",
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
        None,
        pattern=r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$",
        description="USER/NAME of a Hub repository; without it: a dry run",
    )
    force: str | None = Field(
        None,
        pattern=r"\S",
        description="REASON: let an older as_of replace newer champions; it is kept with the decision",
    )
    prune: bool = Field(False, description="at the end, delete runs and versions older than 14 nights")
    wandb: bool = Field(
        False, description="copy params and metrics to Weights & Biases too; offline with WANDB_MODE=offline"
    )

    @field_validator("overrides")
    @classmethod
    def _by_field(cls, overrides: dict[str, Any]) -> dict[str, Any]:
        return _resolved(overrides)

    @model_validator(mode="before")
    @classmethod
    def _read_preset_files(cls, values: Any) -> Any:
        return with_preset_files(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _known_models(self) -> Self:
        _ = self.fleets
        return self

    @property
    def presets(self) -> tuple[str, ...]:
        """The names in `preset`, without duplicates."""
        return _listed(self.preset)

    @property
    def fleets(self) -> tuple[FleetSpec, ...]:
        """The fleets to train: of each preset its architectures, or of several what they have of `architectures`.

        `overrides` go to each preset of which an architecture reads them. Of fleets that train the same models, as two
        presets may after `overrides`, the first stands.

        Raises:
            UsageError: a preset or an architecture is unknown, an option is invalid, none of the fleets reads it, or a
                preset trains nothing but what others train.
        """
        names = self.presets or (self.preset,)
        parts = [self._part(name) for name in names]
        per_part = self._architectures(parts)
        given: dict[str, list[str]] = {name: [] for name in self.overrides}  # why presets do not take it
        per_preset: dict[str, list[FleetSpec]] = {}
        for preset, part, architectures in zip(names, parts, per_part, strict=True):
            overrides, without = self._overrides(part, architectures, alone=len(parts) == 1)
            for name, sentence in without.items():
                given[name].append(sentence)
            per_preset[preset] = [
                FleetSpec(
                    architecture=architecture,
                    preset=part.base,
                    overrides=overrides,
                    seeds=self._copies(part, architecture),
                    dtype=self.dtype,
                )
                for architecture in architectures
            ]
        if nowhere := [sentences for sentences in given.values() if len(sentences) == len(parts)]:
            raise UsageError(nowhere[0][0], code="without-effect", field="overrides")
        return _different(per_preset)

    def _part(self, preset: str) -> PresetFile:
        """Return a preset's content: a file's, or a built-in preset without a change."""
        part = self.preset_files.get(preset) or PresetFile(base=preset)
        if part.base not in PRESET_ARCHITECTURES:
            raise UsageError(
                f"preset {part.base!r} is unknown: choose from {', '.join(PRESET_ARCHITECTURES)}, "
                "or give a file that ends in .toml",
                code="preset",
            )
        return part

    def _architectures(self, parts: Collection[PresetFile]) -> list[tuple[str, ...]]:
        """Return the architectures that each preset trains."""
        own = [part.architectures or PRESET_ARCHITECTURES[part.base] for part in parts]
        if self.architectures is None:
            for names in own:
                _check_architectures(",".join(names), names)
            return own
        wanted = _listed(self.architectures)
        _check_architectures(self.architectures, wanted)
        if len(own) == 1:
            return [wanted]
        chosen = [tuple(name for name in wanted if name in names) for names in own]
        if homeless := [name for name in wanted if not any(name in names for names in own)]:
            raise UsageError(
                f"architectures {self.architectures!r}: none of the presets {self.preset} trains "
                f"{', '.join(homeless)}; leave it out, or train it with one preset in a run of its own",
                code="architectures",
            )
        if idle := [name for name, names in zip(self.presets, chosen, strict=True) if not names]:
            raise UsageError(
                f"architectures {self.architectures!r}: preset {', '.join(idle)} trains none of them; leave the preset "
                f"out, or add one of {', '.join(own[self.presets.index(idle[0])])}",
                code="architectures",
            )
        return chosen

    def _overrides(
        self, part: PresetFile, architectures: Collection[str], *, alone: bool
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the overrides of a preset's fleets, and for each option given that none of them reads, a sentence.

        Explicit options take precedence over the file's, and both over the sizes that a profile sets. Unless the preset
        is `alone` in the run, what each of its architectures fixes and refuses is left to the other presets.
        """
        import cpbmodels  # takes a second if torch is not imported yet

        sizes = PROFILE_SIZES.get(self.profile, {}) if part.base.startswith(SEED) else {}
        given = dict(self.overrides)
        fixed = {} if alone else _refused_as_fixed(part, architectures, given)
        merged: dict[str, Any] = {
            **sizes,
            **part.options,
            **{n: v for n, v in given.items() if n not in fixed},
        }
        without: dict[str, list[str]] = {name: [] for name in merged}
        for architecture in architectures:
            name = base_of(architecture)
            try:
                options = cpbmodels.preset(part.base, name, **merged)
            except cpbmodels.ModelError as error:
                field = "overrides" if merged else "preset"
                raise UsageError(str(error), code="preset", field=field) from None
            for option, sentences in without.items():
                sentences += cpbmodels.without_effect(options, name, [option])[:1]
        unread = {name: s[0] for name, s in without.items() if len(s) == len(architectures)}
        for name, sentence in unread.items():
            if name not in self.overrides:
                raise UsageError(sentence, code="without-effect", field="overrides")
        return {name: value for name, value in merged.items() if name not in unread}, unread | fixed

    def _copies(self, part: PresetFile, architecture: str) -> int:
        """Return how many copies of a member are averaged; 1 for a closed form, whose result has no randomness."""
        import cpbmodels

        standard = standard_copies(architecture, part.base)
        if cpbmodels.architecture(base_of(architecture)).closed_form:
            return standard
        return self.seeds or part.seeds or standard


def _refused_as_fixed(
    part: PresetFile, architectures: Collection[str], given: dict[str, Any]
) -> dict[str, str]:
    """Return, of the options given, those that each architecture fixes and refuses with this value: the refusal."""
    import cpbmodels
    from cpbmodels.arch.presets import fixes

    refused = {}
    for option, value in given.items():
        sentences = []
        for name in map(base_of, architectures):
            if not fixes(name, option):
                break
            try:
                cpbmodels.preset(part.base, name, **{option: value})
            except ModelError as error:
                sentences.append(str(error))
        if len(sentences) == len(architectures):
            refused[option] = sentences[0]
    return refused


def _different(per_preset: dict[str, list[FleetSpec]]) -> tuple[FleetSpec, ...]:
    """Return the fleets of a run's presets, each with models of its own.

    Raises:
        UsageError: a preset has none.
    """
    trained: dict[str, tuple[str, FleetSpec]] = {}  # what makes the models -> the first that trains them
    for preset, fleets in per_preset.items():
        first = {trained.setdefault(_models_of(fleet), (preset, fleet))[0] for fleet in fleets}
        if preset not in first:
            raise UsageError(
                f"preset {preset} trains the same models as {', '.join(sorted(first))} in this run; leave it out, or "
                "train it in a run of its own",
                code="preset",
            )
    return tuple(fleet for _, fleet in trained.values())


def _models_of(fleet: FleetSpec) -> str:
    """Return a text that fleets have in common if they train the same models: equal recipes."""
    import cpbmodels
    from cpbmodels.arch.presets import of_members

    options = cpbmodels.preset(fleet.preset, base_of(fleet.architecture), **fleet.overrides)
    members = of_members(fleet.preset, options, **fleet.overrides)
    decisive = [
        {name: value for name, value in one.as_dict().items() if name not in HOW_IT_RUNS}
        for one in (options, *members.values())
    ]
    return json.dumps([fleet.model_dump(exclude={"overrides"}), decisive])


def _resolved(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a model by the names of their fields."""
    try:
        return by_field(options)
    except ModelError as error:
        raise UsageError(str(error), code="overrides") from None


def _check_architectures(text: str, names: Collection[str]) -> None:
    """Raise `UsageError` if one of the names in a text is unknown, or there is none."""
    import cpbmodels

    available = cpbmodels.architectures()
    unknown = [name for name in names if base_of(name) not in available]
    if unknown or not names:
        raise UsageError(
            f"architectures {text!r}: unknown {', '.join(unknown) or '(empty)'}; choose from "
            f"{', '.join(available)} (add {UNIVERSAL_SUFFIX} for one model of all coins)",
            code="architectures",
        )


class TrainSpec(RunSpec):
    """Options of `cpb train`, which trains one model: `har` by default, with the architecture's own preset."""

    architectures: str | None = Field(
        None, description="transformer, gru, lstm, linear, har, …; default: the preset's one, else har"
    )
    preset: str = Field(
        "auto", description="auto (the architecture's own), another preset, or NAME.toml; one"
    )

    @model_validator(mode="before")
    @classmethod
    def _preset_of_the_architecture(cls, values: Any) -> Any:
        import cpbmodels

        preset = one_preset(
            values.get("preset", "auto"),
            "`cpb train` trains one preset's model; name one, or use `cpb train-all`",
        )
        own = PRESET_ARCHITECTURES.get(str(preset), ())
        default = None if is_file(preset) else own[0] if len(own) == 1 else "har"
        architecture = values.get("architectures") or default
        if preset == "auto":
            preset = "default"
            if base_of(str(architecture)) in cpbmodels.architectures():
                preset = cpbmodels.architecture(base_of(str(architecture))).default_preset
        return values | {"architectures": architecture, "preset": preset}

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if len(self.scope.series) * len(self.fleets) != 1:
            raise UsageError(
                "`cpb train` trains one model: name one coin, one timeframe and one architecture, or use "
                "`cpb train-all`",
                code="one-model",
                field="",
            )
        return self


class BacktestSpec(RunSpec):
    """Options of `cpb backtest` in addition to those of a run."""

    timeframes: str = Field("1h", description="Binance intervals, as in 15m,1h")
    folds: int = Field(4, ge=1, le=24, description="test periods, the newest last")
    baselines: str = Field("random-walk,robust-har", description=f"any of {', '.join(BASELINES)}")
    check_lookahead: bool = Field(False, description="recompute everything without the future")
    out: str | None = Field(
        None, description="folder for tables, verdicts, forecast rows and the report; default: none"
    )
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
        if unknown := [name for name in _listed(text) if name not in BASELINES]:
            raise UsageError(
                f"baselines {text!r}: unknown {', '.join(unknown)}; choose from {', '.join(BASELINES)}",
                code="baselines",
            )
        return text

    @model_validator(mode="after")
    def _only_what_folds_can_judge(self) -> Self:
        import cpbmodels

        names = dict.fromkeys(fleet.architecture for fleet in self.fleets)
        if classifiers := [name for name in names if cpbmodels.architecture(base_of(name)).classifier]:
            raise UsageError(
                f"architectures: a backtest judges forecasts of prices; leave {', '.join(classifiers)} out",
                code="classifier",
                field="architectures",
            )
        return self

    @model_validator(mode="after")
    def _only_what_the_gate_can_judge(self) -> Self:
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
                code="run",
                field=given[0],
            )
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


def one_preset(preset: Any, instead: str, field: str = "preset") -> Any:
    """Return the only name in a list of presets; what names none, or is no text, as it is.

    Raises:
        UsageError: several presets are named; `instead` says what to do.
    """
    names = _listed(preset) if isinstance(preset, str) else ()
    if len(names) > 1:
        raise UsageError(f"preset {preset!r}: {instead}", code="one-preset", field=field)
    return names[0] if names else preset


def is_universal(architecture: str) -> bool:
    """Whether a single model is trained on all series of a timeframe."""
    return architecture.endswith(UNIVERSAL_SUFFIX)


def base_of(architecture: str) -> str:
    """Return the architecture's name in `cpbmodels`, without `-universal`."""
    return architecture.removesuffix(UNIVERSAL_SUFFIX)
