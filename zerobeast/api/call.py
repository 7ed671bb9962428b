"""Calls that give an environment and settings of its section: `train(Walk, "ppo", env={"action_mask": "mask"})`."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def beside_its_section(call: Callable[Given, Result]) -> Callable[Given, Result]:
    """The same function, whose first argument `env` may be given beside such settings by the same name."""

    @wraps(call)
    def joined(*given: Any, **named: Any) -> Result:
        if given and isinstance(named.get("env"), Mapping):
            given = ({**named.pop("env"), "id": given[0]}, *given[1:])
        return call(*given, **named)

    return joined
