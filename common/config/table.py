"""The tree as a flat table, `learner.batch_size` -> its field, and flat values as nested ones."""

import re
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from typing import Any

from pydantic.fields import FieldInfo

from zerobeast.common.settings import Run, RunConfig, Section, usable
from zerobeast.common.settings.algorithm import section

Table = Mapping[str, FieldInfo]

LEVELS = "evaluate.levels"

#: what settings are about that do not decide what is learned -> their paths, of which the first that fits counts
ABOUT = {
    "identity": r"name|root|seed|parent\..*",
    "peers": r"security\..*|health\..*|.*\.endpoint|learner\.(rank_endpoints|meeting)",
    "capacity": r".*\.(threads|in_process|max_parameters|\w+_timeout_s)|envserver\.(max_\w+|workers)",
    "versions": r"learner\.(checkpoint_every_steps|keep_checkpoints)",  # which are the opponents of `env.opponent past`
    "files": r"learner\.(checkpoint_every_s|log_every_s|when_done|store|max_lost_episodes)"
    r"|evaluate\.(times|every_steps|episodes|levels|seed|actions|video_every)",
    "machine": r"local\..*|.*\.device|broker\.precision|learner\.ranks",
}


@cache
def about(path: str) -> str:
    """What a setting is about, as in `ABOUT`; empty if it decides what is learned."""
    return next((kind for kind, paths in ABOUT.items() if re.fullmatch(paths, path)), "")


@cache
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
    """The value of a setting, of the run's own algorithm too."""
    if isinstance(config, RunConfig) and path.startswith(f"{config.section}."):
        return reduce(getattr, path.split(".")[1:], config.algorithm)
    return reduce(getattr, path.split("."), config)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """{"a.b": 1} -> {"a": {"b": 1}}."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = path.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = value
    return tree


class Tree(Mapping[str, FieldInfo]):
    """Every setting of a run, and of every algorithm: each is imported when one of its settings is looked up."""

    def __getitem__(self, path: str) -> FieldInfo:
        return RUN[path] if path in RUN else of_algorithm(path.partition(".")[0])[path]

    def __iter__(self) -> Iterator[str]:
        yield from RUN
        for spec in usable():
            yield from of_algorithm(spec.name)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def of_algorithm(name: str) -> dict[str, FieldInfo]:
    """The settings of an algorithm under their dotted paths; empty if there is none of this name.

    Raises:
      ConfigError: it is installed and cannot be imported.
    """
    spec = section(name)
    return settings_of(spec.settings, f"{spec.name}.") if spec else {}


def home_of(path: str) -> tuple[type[Section], str]:
    """The section that checks a setting, and the setting's path in it."""
    if path in RUN:
        return Run, path
    name, _, own = path.partition(".")
    spec = section(name)
    assert spec is not None, "it is in the tree"
    return spec.settings, own


def is_section(name: str) -> bool:
    """Whether settings are grouped under this name."""
    paths = RUN | of_algorithm(name.partition(".")[0])
    return any(path.startswith(f"{name}.") for path in paths) or bool(section(name))


def table_of(config: RunConfig) -> Table:
    """The settings of a run and of its own algorithm."""
    return RUN | of_algorithm(config.section)


RUN = settings_of(Run)
TREE: Table = Tree()
#: Short names of settings, valid in every layer: `--env CartPole-v1`, `env: CartPole-v1`, BEAST_ENV=CartPole-v1.
SHORT = {"env": "env.id", "insecure": "security.insecure"}
