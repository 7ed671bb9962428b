"""The building blocks of the tree, kept apart from it so that an algorithm's folder can declare its own section."""

from contextlib import suppress
from typing import Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from zerobeast.common.settings.facts import FACTS, About, Facts
from zerobeast.common.text import printable

LIMIT = 10**12  #: on counts and seconds that have no other bound, far below where 64-bit sums overflow


class Section(BaseModel):
    """A frozen group of settings that refuses names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)
    about: ClassVar[About] = About.LEARNING  #: what its settings are about, unless one declares something else
    is_bound: ClassVar[bool] = False  #: whether a run that is resumed keeps them, unless one declares something else
    shapes: ClassVar[bool] = False  #: whether environments depend on them, unless one declares something else

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true for 1, and read 1e6 as a million: YAML and the command line deliver it as text.

        Other text is one line that controls no terminal, since settings are in logs and on screens.
        """
        assert info.field_name is not None, "a field validator has a field"
        kind = cls.model_fields[info.field_name].annotation
        if kind in (int, int | None, float, float | None) and isinstance(value, bool):
            raise PydanticCustomError("number_type", "expected a number")
        if kind is int and isinstance(value, str) and "e" in value.lower():
            with suppress(ValueError):
                return float(value)
        if isinstance(value, str) and printable(value) != value:
            raise ValueError("expected text without control characters")
        return value


def whole_numbers(most: int, largest: int, expected: str, *, least: int = 1) -> BeforeValidator:
    """At most so many numbers, each from `least` to `largest`, from a list or text as "256,128" or "[256, 128]"."""

    def read(value: Any) -> tuple[int, ...]:
        parts = value if isinstance(value, list | tuple) else str(value).strip("[] ").split(",")
        with suppress(TypeError, ValueError):
            numbers = tuple(map(int, map(str, parts if parts != [""] else ())))
            if len(numbers) <= most and all(least <= number <= largest for number in numbers):
                return numbers
        raise ValueError(f"expected {expected}")

    return BeforeValidator(read)


def setting(default: Any, meaning: str, **declared: Any) -> Any:
    """One setting: its only default, what it means (with its source), and what is `declared` of it.

    That is its bounds as pydantic names them, and `Facts`: `decides` is required of one that takes text, `PLAIN` if it
    is data and nothing else (`guards`).
    """
    facts = Facts(**{name: declared.pop(name) for name in Facts._fields if name in declared})
    return Field(default=default, description=meaning, json_schema_extra=_kept(facts), **declared)


def _kept(facts: Facts) -> Any:
    """Pydantic keeps this with the field."""
    return {FACTS: facts} if facts != Facts() else None
