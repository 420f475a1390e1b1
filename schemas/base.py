"""The bases of what cpb stores and of what it is told: `Record`, and `Spec`, a set of options; reads their texts."""

import json
import re
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails

from schemas.errors import UsageError

_REAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
"""Real numbers, also those that JSON does not know: `.1`, `5.`, `+0.5`."""


_WANTED = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
}
"""What a field takes, by pydantic's type of the error about another value."""


class Record(BaseModel):
    """Base of all records that are stored or passed between steps.

    `version` counts changes of the fields; a file of a different version is not read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)

    version: ClassVar[int] = 1


class Spec(BaseModel):
    """A set of options. Invalid values raise `UsageError`, which names the option and a valid value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _one_sentence(cls, values: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return build(values)
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0]) if first["loc"] else ""
            code = first["type"].replace("_", "-")
            raise UsageError(_sentence(first, field, cls), code=code, field=field) from None


def _sentence(error: ErrorDetails, field: str, spec: type[BaseModel]) -> str:
    """Return a pydantic error as a single sentence."""
    if error["type"] == "extra_forbidden":
        return f"option {field!r} is unknown: choose from {', '.join(spec.model_fields)}"
    if error["type"] == "string_pattern_mismatch":  # the field's description begins with what it takes
        wanted = (spec.model_fields[field].description or "").partition(";")[0]
        return f"{field} {error['input']!r} cannot be used: give {wanted}"
    if error["type"] == "literal_error":
        return (
            f"{field} {error['input']!r} is unknown: choose {error['ctx']['expected'].replace(chr(39), '')}"
        )
    if error["type"] in _WANTED:
        return f"{field} {error['input']!r} cannot be read: give {_WANTED[error['type']]}"
    return f"{field} {error['input']} {error['msg'].partition(' ')[2]}"  # `seeds 0 should be greater than …`


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text, without duplicates, in order."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def parse_value(text: str) -> Any:
    """Return the JSON value of a text, or the text itself if it is not JSON: `5`, `.1`, `false`, `quantile`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # also for thousands of digits or brackets
        return float(text) if _REAL.fullmatch(text) else text
