"""The tree for people: as YAML, as its differences from the defaults, and as the text of --help."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Literal, get_origin

import yaml
from pydantic.fields import FieldInfo

from zerobeast.common.config.expectation import expectation
from zerobeast.common.config.preset import names
from zerobeast.common.config.setting import Section
from zerobeast.common.config.table import TREE, section_of, settings_of, value_at
from zerobeast.common.config.torchbeast import FLAGS
from zerobeast.common.config.tree import RunConfig

WIDTH, COLUMN = 112, 36
LAYERS = (
    "Settings, shown with their defaults. They are flags (--learner.batch_size 32), environment variables "
    "(BEAST_LEARNER__BATCH_SIZE=32) and entries of a YAML file; a flag wins over the environment, that over the "
    "file, that over the preset, that over the default."
)
PRESETS = "the layer between the defaults and the file; without it the one that fits environment and algorithm:"
TORCHBEAST = "--env is short for --env.id. TorchBeast's flags are understood as well:"


def dump(config: RunConfig) -> str:
    """Every setting as YAML that `load` reads back to the same tree."""
    text: str = yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True, width=WIDTH)
    return text


def differences(config: RunConfig) -> dict[str, Any]:
    """The settings that are not at their default."""
    default = RunConfig()
    return {path: value for path in TREE if (value := value_at(config, path)) != value_at(default, path)}


def settings_help(own: type[Section] = Section) -> str:
    """Every setting with its default and meaning, by section, after the command's own flags."""
    run = {path: field for path, field in TREE.items() if "." not in path}
    parts = [
        *_group("This process", settings_of(own)),
        *["", *textwrap.wrap(LAYERS, WIDTH), ""],
        *_entry("--config FILE", "YAML file with settings; may stand several times, the last on top"),
        *_entry("--preset NAME", f"{PRESETS} {', '.join(names())}"),
        *_group("run", run),
    ]
    for name, field in RunConfig.model_fields.items():
        if section := section_of(field):
            parts += _group(f"{name}: {(section.__doc__ or '').splitlines()[0]}", settings_of(section, f"{name}."))
    parts += ["", *textwrap.wrap(f"{TORCHBEAST} {', '.join(FLAGS)}", WIDTH)]
    return "\n".join(parts).strip("\n")


def _group(title: str, table: dict[str, FieldInfo]) -> Iterator[str]:
    if table:
        yield from ("", title)
    for path, field in table.items():
        default = (
            "" if field.default in (None, "") else str(field.default).replace("True", "true").replace("False", "false")
        )
        choices = f" ({expectation(field)})" if get_origin(field.annotation) is Literal else ""
        yield from _entry(f"--{path} {default}", f"{field.description}{choices}")


def _entry(flag: str, text: str) -> list[str]:
    start = f"  {flag:<{COLUMN - 3}} "
    if len(start) > COLUMN:
        return [
            start.rstrip(),
            *textwrap.wrap(text, WIDTH, initial_indent=" " * COLUMN, subsequent_indent=" " * COLUMN),
        ]
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * COLUMN)
