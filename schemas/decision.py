"""The gate's decision on who serves a series, with the evidence that it rests on."""

from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, Literal

from schemas.base import Record
from schemas.errors import counted
from schemas.identity import SeriesId

Outcome = Literal["first", "refreshed", "switched", "kept", "unchanged", "forced", "retired"]

MOVED: tuple[Outcome, ...] = ("first", "refreshed", "switched", "forced")
"""Outcomes that move the alias `champion` to another version."""

_SENTENCES: dict[Outcome, tuple[str, str]] = {
    "first": ("has its first champion", "have their first champion"),
    "refreshed": ("has a newer champion", "have newer champions"),
    "switched": ("follows the recipe that won a backtest", "follow the recipe that won a backtest"),
    "kept": ("keeps its champion", "keep their champions"),
    "unchanged": ("has the same champion as before", "have the same champions as before"),
    "forced": ("has a champion that a person forced", "have champions that a person forced"),
    "retired": ("has lost its champion", "have lost their champions"),
}
"""What has become of one series, and of several."""


class ModelRef(Record):
    """A model in a decision: its registered version ("" if not registered), its run and its recipe."""

    version_number: str = ""
    run_id: str = ""
    recipe: str = ""

    def __str__(self) -> str:
        """Return the text used in messages: `version 3 (har/default/3f9a12c0d4e5)`."""
        return f"version {self.version_number} ({self.recipe})" if self.version_number else self.recipe


class Compared(Record):
    """Comparison of two models on the same rows, used neither to train nor to select either model.

    `first`, `last`: UTC close of the last known candle at the first and the last of the `n` origins. `ratio`: the
    candidate's CRPS divided by the incumbent's, with its 95 % interval.
    """

    first: datetime
    last: datetime
    n: int
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the figures: `CRPS ratio 0.9991 [0.9975, 1.0008] on 2851 rows from 2025-02-06 to 2025-06-05`."""
        return (
            f"CRPS ratio {self.ratio:.4f} [{self.low:.4f}, {self.high:.4f}] on {self.n} rows from "
            f"{self.first:%Y-%m-%d} to {self.last:%Y-%m-%d}"
        )


class Paired(Record):
    """Figures of a recipe against another on the same rows, over `days` days with rows.

    `ratio`: the recipe's CRPS divided by the other's, mean over coins, with the 95 % interval of a bootstrap over
    weeks; `p`: that it is no better, one-sided, Diebold-Mariano on days. `better`: of `months` calendar months, those
    with a lower loss; `recent_p`: two-sided, of the last three months being worse, 1 if they are not.
    """

    days: int
    ratio: float
    low: float
    high: float
    p: float
    months: int
    better: int
    recent_p: float


class BacktestEvidence(Paired):
    """Result of a recipe in a long backtest against the champions' recipe; `p` is corrected.

    `first`, `last`: UTC close of the last known candle at the first and the last origin. `submitted`: recipes and
    search trials submitted for spans that overlap this one, this run's included; `named`: digest of the register's
    record that named them before the backtest.
    """

    challenger: str
    incumbent: str
    first: datetime
    last: datetime
    # all that were tried on this span, else the best of many would look like the best of one
    submitted: int
    named: str

    def __str__(self) -> str:
        """Return the text used in messages: path, span, count and figures."""
        return (
            f"backtest of {self.challenger} from {self.first:%Y-%m-%d} to {self.last:%Y-%m-%d}, {self.days:,} days, "
            f"of {self.submitted} submitted for this span: CRPS ratio {self.ratio:.4f} "
            f"[{self.low:.4f}, {self.high:.4f}], corrected p {self.p:.3g}, better in {self.better} of {self.months} "
            "months"
        )


class Decision(Record):
    """The gate's decision on the champion of a series, and its reason.

    `version_number`: version of the champion after the decision (`retired`: of the version that lost the alias).
    `rule`: name of the gate rule that decided (docs/promotion.md); `reason`: a sentence for users.
    """

    version: ClassVar[int] = 3

    series: SeriesId
    outcome: Outcome
    rule: str
    version_number: str
    candidate: ModelRef | None = None
    incumbent: ModelRef | None = None
    compared: Compared | None = None
    backtest: BacktestEvidence | None = None
    reason: str = ""
    decided_at: datetime

    @property
    def moved(self) -> bool:
        """Whether the champion of the series changed."""
        return self.outcome in MOVED

    @property
    def serving(self) -> ModelRef | None:
        """The model that serves the series after the decision; None if there is none, or it is not known."""
        if self.outcome == "retired":
            return None
        return self.candidate if self.moved else self.incumbent

    @property
    def architecture(self) -> str:
        """The architecture that serves the series after the decision; "" if there is none, or it is not known."""
        return self.serving.recipe.partition("/")[0] if self.serving else ""


def decided_sentence(decisions: Sequence[Decision]) -> str:
    """Return what decisions of one outcome mean: `4 coins have their first champion, har`.

    After the comma are the architectures that serve now; of a single series, its name stands for the number.
    """
    one, several = _SENTENCES[decisions[0].outcome]
    what = "coin" if len({decision.series.timeframe for decision in decisions}) == 1 else "series"
    whose = (
        f"{decisions[0].series} {one}"
        if len(decisions) == 1
        else f"{counted(len(decisions), what)} {several}"
    )
    names = sorted({decision.architecture for decision in decisions} - {""})
    return ", ".join([whose, *([" and ".join(names)] if names else [])])
