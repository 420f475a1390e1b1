"""The base of all records that are stored or passed between steps; apart from them, since `cpb --help` imports it."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of all records. `version` counts changes of the fields; a file of a different version is not read."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    version: ClassVar[int] = 1
