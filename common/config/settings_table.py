"""The tree as a flat table, `learner.batch_size` -> its field, and flat values as nested ones."""

from collections.abc import Iterator, Mapping
from functools import cache, reduce
from typing import Any

from pydantic.fields import FieldInfo

from zerobeast.common.settings import OpenSection, Run, RunConfig, Section, find_usable
from zerobeast.common.settings.algorithm import spec_of_section
from zerobeast.common.settings.facts import About, facts_of

Table = Mapping[str, FieldInfo]

LEVELS = "evaluate.levels"


@cache
def topic_of(path: str) -> About:
    """What a setting is about; falsy if that is what is learned, or if there is no such setting."""
    if path not in TREE:
        return About.LEARNING
    own = facts_of(TREE[path]).about
    return section_at(path).about if own is None else own


def is_bound(path: str) -> bool:
    """Whether a run that is resumed keeps a setting."""
    own = facts_of(TREE[path]).bound
    return section_at(path).is_bound if own is None else own


def shapes_env(path: str) -> bool:
    """Whether what an environment looks like, or how that is found out, depends on a setting."""
    own = facts_of(TREE[path]).shapes
    return section_at(path).shapes if own is None else own


def section_at(path: str) -> type[Section]:
    """The section that declares a setting."""
    model, own = home_of(path)
    for name in own.split(".")[:-1]:
        model = section_of(model.model_fields[name]) or model
    return model


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


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
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
    """Every setting of a run, of every algorithm and of all parts that add settings to its sections: each is imported
    when one of its settings is looked up.
    """

    def __getitem__(self, path: str) -> FieldInfo:
        if path in RUN:
            return RUN[path]
        section, _, name = path.partition(".")
        if section in OPEN_SECTIONS:
            kind = OPEN_SECTIONS[section].home_of(name)
            return (kind.model_fields if kind else {})[name]
        return algorithm_settings(section)[path]

    def __iter__(self) -> Iterator[str]:
        yield from RUN
        for name in (*OPEN_SECTIONS, *(spec.name for spec in find_usable())):
            yield from part_settings(name)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def algorithm_settings(name: str) -> dict[str, FieldInfo]:
    """The settings of an algorithm under their dotted paths; empty if there is none of this name.

    Raises:
      ConfigError: it is installed and cannot be imported.
    """
    spec = spec_of_section(name)
    return settings_of(spec.settings, f"{spec.name}.") if spec else {}


def part_settings(name: str) -> dict[str, FieldInfo]:
    """The settings of an algorithm, or those that parts add to an open section; empty if there is neither.

    Raises:
      ConfigError: as `algorithm_settings`.
    """
    if name not in OPEN_SECTIONS:
        return algorithm_settings(name)
    every = [settings_of(kind, f"{name}.") for kind in OPEN_SECTIONS[name].find_classes()]
    return {path: field for table in every for path, field in table.items() if path not in RUN}


def home_of(path: str) -> tuple[type[Section], str]:
    """The section that checks a setting, and the setting's path in it."""
    if path in RUN:
        return Run, path
    name, _, own = path.partition(".")
    if name in OPEN_SECTIONS:
        kind = OPEN_SECTIONS[name].home_of(own)
        assert kind is not None, "it is in the tree"
        return kind, own
    spec = spec_of_section(name)
    assert spec is not None, "it is in the tree"
    return spec.settings, own


def is_section(name: str) -> bool:
    """Whether settings are grouped under this name."""
    paths = RUN | algorithm_settings(name.partition(".")[0])
    return any(path.startswith(f"{name}.") for path in paths) or bool(spec_of_section(name))


def table_of(config: RunConfig) -> Table:
    """The settings of a run, of its parts and of its own algorithm, in the order of its file."""
    kinds = {name: type(getattr(config, name)) for name in OPEN_SECTIONS}
    return _in_order(tuple(kinds.items())) | algorithm_settings(config.section)


def table_for(values: Mapping[str, Any], section: str) -> Table:
    """As `table_of`, of values by path, which need not be valid; `section` is that of the algorithm."""
    tree = nest({path: value for path, value in values.items() if path.partition(".")[0] in OPEN_SECTIONS})
    kinds = {name: kind.of(tree.get(name, {})) for name, kind in OPEN_SECTIONS.items()}
    return _in_order(tuple(kinds.items())) | algorithm_settings(section)


@cache
def _in_order(kinds: tuple[tuple[str, type[Section]], ...]) -> dict[str, FieldInfo]:
    """The settings of a run whose open sections have these classes."""
    classes = dict(kinds)
    table: dict[str, FieldInfo] = {}
    for name, field in Run.model_fields.items():
        kind = classes.get(name) or section_of(field)
        table |= settings_of(kind, f"{name}.") if kind else {name: field}
    return table


RUN = settings_of(Run)
#: sections to which parts add settings, by name
OPEN_SECTIONS = {
    name: kind
    for name, field in Run.model_fields.items()
    if (kind := section_of(field)) and issubclass(kind, OpenSection)
}
TREE: Table = Tree()
#: Short names of settings, valid in every layer: `--env CartPole-v1`, `env: CartPole-v1`, BEAST_ENV=CartPole-v1.
SHORT_NAMES = {short: path for path, field in RUN.items() if (short := facts_of(field).short)}
#: Settings that say which run one is: a preset is chosen by them, and names and commands begin with them.
NAMES = sorted(
    (path for path, field in RUN.items() if facts_of(field).names), key=lambda path: path != SHORT_NAMES["env"]
)
