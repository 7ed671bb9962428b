"""The tree as a flat table, `learner.batch_size` -> its field, and flat values as nested ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pydantic.fields import FieldInfo

from zerobeast.common.config.tree import RunConfig
from zerobeast.common.settings.section import Section

Table = Mapping[str, FieldInfo]


def settings_of(model: type[Section], prefix: str = "") -> dict[str, FieldInfo]:
    """Every setting under its dotted path, in the order of declaration."""
    table: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        if section := section_of(field):
            table |= settings_of(section, f"{prefix}{name}.")
        else:
            table[prefix + name] = field
    return table


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds, or None for a setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def value_at(config: Section, path: str) -> Any:
    return reduce(getattr, path.split("."), config)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = value
    return tree


TREE: Table = settings_of(RunConfig)
SECTIONS = frozenset(path.partition(".")[0] for path in TREE if "." in path)
#: Short names of settings, valid in every layer: `--env CartPole-v1`, `env: CartPole-v1`, BEAST_ENV=CartPole-v1.
SHORT = {"env": "env.id", "insecure": "security.insecure"}
