"""Base class of all option sets: an invalid value raises an error with a single sentence."""

from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from schemas.errors import UsageError

_WANTED = {"int": "a whole number", "float": "a number", "bool": "true or false"}
"""Expected kind of value, by the prefix of pydantic's error type: `int_parsing`, `int_from_float`, .."""


class Spec(BaseModel):
    """A set of options. Invalid values raise `UsageError`, which names the option and a valid value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _one_sentence(cls, values: Any, build: Any) -> Self:
        _refuse_booleans(cls, values)
        try:
            return build(values)
        except ValidationError as error:
            first = error.errors()[0]
            field = str(first["loc"][0]) if first["loc"] else ""
            code = first["type"].replace("_", "-")
            raise UsageError(
                _sentence(first, field, list(cls.model_fields)), code=code, field=field
            ) from None


def _refuse_booleans(spec: type[BaseModel], values: Any) -> None:
    """Raise `UsageError` for a boolean in a numeric field: Python treats booleans as 1 and 0."""
    for name, field in spec.model_fields.items() if isinstance(values, dict) else ():
        kinds = set(get_args(field.annotation) or (field.annotation,))
        if isinstance(values.get(name), bool) and bool not in kinds and kinds & {int, float}:
            wanted = _WANTED["float" if float in kinds else "int"]
            raise UsageError(f"{name} {values[name]!r} is not {wanted}", code="int-type", field=name)


def _sentence(error: ErrorDetails, field: str, known: list[str]) -> str:
    """Return a pydantic error as a single sentence."""
    given, limits = error["input"], error.get("ctx", {})
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"option {field!r} is unknown: choose from {', '.join(known)}"
    if kind == "literal_error":
        return f"{field} {given!r} is unknown: choose {limits['expected'].replace(chr(39), '')}"
    if kind in ("greater_than_equal", "less_than_equal", "greater_than", "less_than"):
        (limit,) = limits.values()
        words = {"greater_than_equal": "at least", "less_than_equal": "at most", "greater_than": "more than"}
        return f"{field} {given!r} is out of range: it must be {words.get(kind, 'less than')} {limit:g}"
    if field == "repo":
        return f"repo {given!r} is not USER/NAME, as in alice/cpb-models"
    if wanted := _WANTED.get(kind.partition("_")[0]):
        return f"{field} {given!r} is not {wanted}"
    return f"{field} {given!r} cannot be used: {error['msg'][0].lower()}{error['msg'][1:]}"
