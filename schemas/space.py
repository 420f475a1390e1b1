"""The options of runs that end with forecasts: the Space of the Hub that shows them, and who may read it."""

from typing import Self

from pydantic import Field, model_validator

from schemas.errors import UsageError
from schemas.scope import ScopeSpec

REPO = r"^[A-Za-z0-9]([.-]?\w)*/[A-Za-z0-9]([.-]?\w)*$"
"""Of a repository of the Hub."""


class SpaceSpec(ScopeSpec):
    """Options of a run that ends with forecasts."""

    space: str | None = Field(
        None,
        pattern=REPO,
        description="USER/NAME of a static Space of the Hub, whose page the command brings up to date at its end",
    )
    private: bool = Field(
        False, description="create --repo or --space as private; refused if it exists and is public"
    )

    @model_validator(mode="after")
    def _private_place(self) -> Self:
        if self.private and not (self.space or getattr(self, "repo", None)):
            raise UsageError(
                "private says who may read the repository or Space, and none is named: give repo or space, USER/NAME",
                code="private",
                field="private",
            )
        return self
