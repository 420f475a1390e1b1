"""Options of training runs.

Each option of cpb is declared once, in a `Spec` of this package: command line, flow parameters and Prefect's run form
are derived from these classes (`flows/cli/options.py`) and report the same message for an invalid value.
"""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from schemas.base import names_in
from schemas.errors import UsageError
from schemas.fleets import FleetSpec, base_of, fleets_of
from schemas.presets import (
    PRESET_ARCHITECTURES,
    PresetFile,
    is_file,
    one_preset,
    options_by_field,
    preset_named,
    with_preset_files,
)
from schemas.retention import NIGHTS
from schemas.space import REPO, SpaceSpec

LOCAL, RAY = "local", "ray"
"""Engines: this machine, or a Ray cluster."""


class RunSpec(SpaceSpec):
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
        6 * 3600, gt=0, description="time limit of one shard's training, in seconds"
    )
    repo: str | None = Field(
        None,
        pattern=REPO,
        description="USER/NAME of a Hub repository; without it the champions are packaged in HOME/hub alone",
    )
    force: str | None = Field(
        None,
        pattern=r"\S",
        description="REASON: let an older as_of replace newer champions; it is kept with the decision",
    )
    prune: bool = Field(False, description=f"at the end, delete runs and versions older than {NIGHTS} nights")
    wandb: bool = Field(
        False, description="copy params and metrics to Weights & Biases too; offline with WANDB_MODE=offline"
    )

    @field_validator("overrides")
    @classmethod
    def _by_field(cls, overrides: dict[str, Any]) -> dict[str, Any]:
        return options_by_field(overrides)

    @model_validator(mode="before")
    @classmethod
    def _read_preset_files(cls, values: Any) -> Any:
        return with_preset_files(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _known_models(self) -> Self:
        # found now, with exit code 2, and not after an hour of fetching
        _ = self.fleets
        return self

    @property
    def presets(self) -> tuple[str, ...]:
        """The names in `preset`, without duplicates."""
        return names_in(self.preset)

    @property
    def fleets(self) -> tuple[FleetSpec, ...]:
        """The fleets to train; raises `UsageError` as `fleets_of`, and if a preset is unknown."""
        names = self.presets or (self.preset,)
        return fleets_of(
            {name: preset_named(name, self.preset_files) for name in names},
            architectures=self.architectures,
            overrides=self.overrides,
            profile=self.profile,
            seeds=self.seeds,
            dtype=self.dtype,
            timeframes=self.intervals,
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
        # a file names its own architectures; a preset of one architecture means that one
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
