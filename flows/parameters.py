"""Parameters of a Prefect flow, made from the specification that declares them (`schemas/run.py`).

    @flow(name="train-all", validate_parameters=False)
    @plain_failures
    @takes(RunSpec)
    def train_all(spec: RunSpec) -> State: ...

Prefect reads a flow's signature for its run form (names, types, choices) and the `Args:` section of its docstring for
the descriptions. `validate_parameters=False`: the specification checks the values, with its own sentences.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar

from pydantic.fields import FieldInfo

from schemas.spec import Spec

S = TypeVar("S", bound=Spec)
R = TypeVar("R")


def takes(spec: type[S]) -> Callable[[Callable[[S], R]], Callable[..., R]]:
    """Give a flow function the fields of `spec` as its parameters and call it with the built spec.

    Raises (when the flow is called):
        UsageError: a wrong value, with the specification's own sentence.
    """

    def decorate(function: Callable[[S], R]) -> Callable[..., R]:
        @wraps(function)
        def run(**parameters: Any) -> R:
            return function(spec(**parameters))

        declared = inspect.signature(function).return_annotation
        parameters = [_parameter(name, field) for name, field in spec.model_fields.items()]
        run.__dict__["__signature__"] = inspect.Signature(parameters, return_annotation=declared)
        run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": declared}
        run.__doc__ = f"{inspect.getdoc(function) or ''}\n\nArgs:\n" + "\n".join(
            f"    {name}: {field.description}" for name, field in spec.model_fields.items()
        )
        return run

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    annotation: Any = field.annotation
    extra = field.json_schema_extra
    if isinstance(extra, dict) and isinstance(choices := extra.get("enum"), list):
        annotation = Literal[tuple(choices)]
    for limit in field.metadata:  # ranges and patterns, which the run form shows and the server checks
        annotation = Annotated[annotation, limit]
    default = field.get_default(call_default_factory=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
