"""The settings tree for people: as YAML, as its differences from the defaults, and as the text of --help."""

import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from zerobeast.common.config.layers import NUMBER
from zerobeast.common.config.preset import list_presets
from zerobeast.common.config.settings_table import (
    OPEN_SECTIONS,
    RUN,
    Table,
    algorithm_settings,
    part_settings,
    section_of,
    settings_of,
    table_of,
    value_at,
)
from zerobeast.common.settings import SCHEDULED, Run, RunConfig, Section, find_usable
from zerobeast.common.settings.facts import facts_of
from zerobeast.common.text import as_text

KINDS: dict[Any, str] = {
    int: "a whole number",
    int | None: "a whole number",
    float: "a number",
    float | None: "a number",
    bool: "true or false",
    str: "text",
}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "max_length": "length at most"}
#: first words of origins, the lowest layer first
RANKS = ("chosen", "preset", "deterministic", "total_steps", "file", "environment", "argument", "flag")
WIDTH, COLUMN = 112, 36
FIRST_SECTIONS = ("env", "actor", "learner", "net", "evaluate")  #: sections that come before those of single services
LAYERS = (
    "Settings are flags (--learner.batch_size 32), environment variables (BEAST_LEARNER__BATCH_SIZE=32) and entries of "
    "a YAML file. In order of precedence: flag, environment variable, file, preset, default. Each setting is shown "
    "with its value for this command line and, if that is not the default, with its origin."
)


def dump(config: RunConfig) -> str:
    """Every setting as YAML that `load_config` reads back to the same tree."""
    return as_yaml(config.model_dump())


def as_yaml(tree: Mapping[str, Any]) -> str:
    """Settings as YAML that `load_config` reads back."""
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)
    return text


class _Dumper(yaml.SafeDumper):
    """Quotes text that looks like a number to `load_config`."""


_Dumper.add_implicit_resolver(*NUMBER)


def differences(config: RunConfig) -> dict[str, Any]:
    """The settings that are not at their default."""
    table = table_of(config).items()
    return {path: value for path, field in table if (value := value_at(config, path)) != field.default}


def by_origin(config: RunConfig, origins: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The settings of a run and its algorithm that are not at their default, or were chosen for this run:
    {"preset atari": {path: value}, ...}.
    """
    chosen = {path: value_at(config, path) for path, where in origins.items() if where.startswith("chosen for ")}
    changed = differences(config) | chosen
    found: dict[str, dict[str, Any]] = {}
    for path, where in sorted(origins.items(), key=lambda item: RANKS.index(item[1].partition(" ")[0])):
        if path in changed:
            found.setdefault(source(where), {})[path] = changed[path]
    return found


def source(where: str) -> str:
    """The layer that an origin names: "preset atari: seed" -> "preset atari", "flag --seed" -> "flag"."""
    kind = where.partition(" ")[0]
    return kind if kind in ("environment", "flag") else where.partition(": ")[0]


def flags_help(own: type[Section]) -> Iterator[str]:
    """Lines with every flag of a command itself, its default and its meaning."""
    return _group("This command", settings_of(own), None, {})


def settings_help(
    own: type[Section] = Section,
    config: RunConfig | None = None,
    origins: Mapping[str, str] = MappingProxyType({}),
    *,
    of_all: bool = True,
) -> str:
    """Every setting with its value in `config`, else its default, and its meaning, and the command's `own` flags.

    What is given most comes first. Unless `of_all`, the algorithm of `config` is the only one.
    """
    run = {path: field for path, field in RUN.items() if "." not in path}
    sections = {name: section for name, field in Run.model_fields.items() if (section := section_of(field))}
    sections |= {name: type(getattr(config, name)) for name in OPEN_SECTIONS if config}
    often, others = (
        {name: sections.pop(name) for name in FIRST_SECTIONS},
        {spec.name: spec.settings for spec in find_usable()},
    )
    mine = {config.section: others.pop(config.section)} if config else {}
    shown = table_of(config) if config else RUN

    def groups(those: Mapping[str, type[Section]], values: RunConfig | None = config) -> Iterator[str]:
        for name, section in those.items():
            table = settings_of(section, f"{name}.") if name in Run.model_fields else algorithm_settings(name)
            yield from _group(f"{name}: {(section.__doc__ or name).splitlines()[0]}", table, values, origins)

    parts = [
        *textwrap.wrap(LAYERS, WIDTH),
        *_group("run", run, config, origins),
        *groups(mine),
        *groups(often),
        *flags_help(own),
        *_entry("--config FILE", "YAML file with settings; may be repeated, later files override earlier ones"),
        *groups(sections),
        *groups(others if of_all else {}, None),
    ]
    for name in OPEN_SECTIONS if of_all else ():
        rest = {path: field for path, field in part_settings(name).items() if path not in shown}
        parts += _group(f"{name}: settings of other parts", rest, None, {})
    parts += [] if of_all else ["", "Settings of another algorithm: --algo NAME --help; of all algorithms: --help all"]
    parts += ["", *textwrap.wrap(f"Presets: {', '.join(list_presets())}. --env is short for --env.id.", WIDTH)]
    return "\n".join(parts).strip("\n")


def _group(title: str, table: Table, values: RunConfig | None, origins: Mapping[str, str]) -> Iterator[str]:
    if table:
        yield from ("", title)
    for path, field in table.items():
        value = value_at(values, path) if values else field.default
        choices = f" ({expectation(field)})" if get_origin(field.annotation) is Literal else ""
        default = as_text(field.default) or "empty"
        origin = f" [{source(origins[path])}; default {default}]" if value != field.default else ""
        most = facts_of(field).share
        share = f"; by default at most {most:.0%} of total_steps" if most else ""
        yield from _entry(f"--{path} {as_text(value)}", f"{field.description or path}{share}{choices}{origin}")


def expectation(field: FieldInfo) -> str:
    """What a setting takes, such as "a whole number, at least 1 and at most 64"."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        *some, last = (str(choice) for choice in get_args(kind))
        return f"{', '.join(some)} or {last}" if some else last
    if get_origin(kind) is dict:
        return "a mapping such as {name: value}"
    name = KINDS.get(kind, "text")
    pairs = [(words, getattr(entry, key, None)) for entry in field.metadata for key, words in BOUNDS.items()]
    bounds = " and ".join(f"{words} {bound}" for words, bound in pairs if bound is not None)
    scheduled = ", or as in linear 0.01 0.001" if SCHEDULED[0] in field.metadata else ""
    return f"{name}, {bounds}{scheduled}" if bounds else name


def _entry(flag: str, text: str) -> list[str]:
    start, margin = f"  {flag:<{COLUMN - 3}} ", " " * COLUMN
    alone = [start.rstrip()] if len(start) > COLUMN else []
    return alone + textwrap.wrap(text, WIDTH, initial_indent=margin if alone else start, subsequent_indent=margin)
