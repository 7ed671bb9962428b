"""The building blocks of the tree, kept apart from it so that an algorithm's folder can declare its own section."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from zerobeast.common import plugins
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.facts import FACTS, About, Facts
from zerobeast.common.text import printable

Base = TypeVar("Base", bound="Section")
LONE_SURROGATES = re.compile("[\ud800-\udfff]")  #: halves of a character of UTF-16, which UTF-8 lacks
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
        if isinstance(value, str) and (printable(value) != value or LONE_SURROGATES.search(value)):
            raise ValueError("expected text without control characters, in UTF-8")
        return value


class OpenSection(Section):
    """A section to which parts add settings: a part that its values name may have a subclass with settings of its own.

    A package registers the subclass under the part's name, in the entry point group `zerobeast.settings.<section>`. Its
    module imports little, since every process that reads settings imports it. Whatever is validated as the section
    becomes an instance of the class of its parts, of several one that has the settings of all; so it is made by
    `model_validate`, and not by the constructor.
    """

    section: ClassVar[str]  #: its name
    chosen_by: ClassVar[tuple[str, ...]]  #: the settings that name its parts

    @classmethod
    def parts(cls, values: Mapping[str, Any]) -> Iterable[str]:
        """The names in the group of the parts that these values, which need not be valid, name."""
        raise NotImplementedError

    @classmethod
    def part_names(cls, values: Mapping[str, Any]) -> list[Any]:
        """What these values, or else the defaults, have of the settings that name its parts."""
        return [values.get(name, cls.model_fields[name].default) for name in cls.chosen_by]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> type[Self]:
        """The class of a section with these values, which need not be valid.

        Raises:
          ConfigError: the settings of a part cannot be imported, or two parts declare one differently.
        """
        installed = plugins.find_entry_points(cls.group())
        return _unite(cls, frozenset(cls._find_registered(name) for name in cls.parts(values) if name in installed))

    @classmethod
    def find_classes(cls) -> list[type[Self]]:
        """The classes of all installed parts, without those that cannot be imported."""
        found = []
        for name in plugins.find_entry_points(cls.group()):
            with suppress(ConfigError):  # whoever needs the part reports it
                found.append(cls._find_registered(name))
        return found

    @classmethod
    def home_of(cls, name: str) -> type[Self] | None:
        """The class of an installed part with a setting of this name, if there is one.

        Raises:
          ConfigError: two declare it differently.
        """
        kinds = [kind for kind in cls.find_classes() if name in kind.model_fields]
        _refuse_unlike(kinds, [name])
        return kinds[0] if kinds else None

    @classmethod
    def group(cls) -> str:
        """The group of entry points."""
        return f"zerobeast.settings.{cls.section}"

    @classmethod
    def _find_registered(cls, name: str) -> type[Self]:
        what = f"settings of {name}"
        found = _kind(cls, plugins.reference_of(cls.group(), name, what), what)
        if isinstance(found, ConfigError):
            raise found
        return found

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """The settings that parts have added to the section."""
        fields = cls.model_fields.items()
        return {name: field.default for name, field in fields if name not in cls._base().model_fields}

    @classmethod
    def _base(cls) -> type[OpenSection]:
        return next(one for one in cls.__mro__ if OpenSection in one.__bases__)

    def __reduce__(self) -> tuple[Any, ...]:  # no other process has the class of several parts
        return _of_base, (self._base(), self.model_dump())

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_parts(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if OpenSection not in cls.__bases__ or not isinstance(given, dict | cls):
            return handler(given)
        values = given if isinstance(given, dict) else given.model_dump()
        try:
            kind = cls.of(values)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return handler(given) if kind is cls or isinstance(given, kind) else kind.model_validate(values)


def _of_base(base: type[OpenSection], values: dict[str, Any]) -> OpenSection:
    return base.model_validate(values)


@cache
def _kind(base: type[Base], reference: str, what: str) -> type[Base] | ConfigError:
    """The class that a reference leads to; an error is kept too, since the module would run at each further look."""
    try:
        kind = plugins.load_reference(reference, what)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise ConfigError(path=what, value=reference, expected=f"a subclass of {base.__name__}")
        own = {name: field for name, field in kind.model_fields.items() if name not in base.model_fields}
        if bad := [name for name, field in own.items() if field.is_required() or hasattr(base, name)]:
            expected = f"a default for {', '.join(bad)}, and names that {base.__name__} does not have"
            raise ConfigError(path=what, value=reference, expected=expected)
        if nested := [name for name, field in own.items() if isinstance(field.default, Section)]:
            raise ConfigError(path=what, value=reference, expected=f"settings, not a section such as {nested[0]}")
    except ConfigError as error:
        return error
    return kind


@cache
def _unite(base: type[Base], kinds: frozenset[type[Base]]) -> type[Base]:
    """One class that has the settings of all."""
    least = [one for one in kinds if not any(other is not one and issubclass(other, one) for other in kinds)]
    least.sort(key=lambda one: (one.__module__, one.__qualname__))
    if len(least) < 2:
        return least[0] if least else base
    _refuse_unlike(least, [name for one in least for name in one.model_fields])
    return type(base.__name__, tuple(least), {"__module__": base.__module__, "__doc__": base.__doc__})


def _refuse_unlike(kinds: Sequence[type[Section]], names: Iterable[str]) -> None:
    for name in names:
        those = [kind for kind in kinds if name in kind.model_fields]
        for one, other in pairwise(those):
            if repr(one.model_fields[name]) != repr(other.model_fields[name]):
                homes = f"{one.__module__}.{one.__name__} and {other.__module__}.{other.__name__}"
                raise ConfigError(f"{name}: {homes} declare it differently, expected one declaration", path=name)


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

    That is its bounds as pydantic names them, and `Facts`: `decides` is required of one that takes text, `NO_GUARD` if
    it is data and nothing else (`guards`).
    """
    facts = Facts(**{name: declared.pop(name) for name in Facts._fields if name in declared})
    return Field(default=default, description=meaning, json_schema_extra=_keep_facts(facts), **declared)


def _keep_facts(facts: Facts) -> Any:
    """Pydantic keeps this with the field."""
    return {FACTS: facts} if facts != Facts() else None
