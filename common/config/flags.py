"""The command line as a layer, and the settings of a call in Python as flags: so what reads these serves both.

--learner.batch_size 32    --learner.batch-size=32    --net.use_lstm    --seed 1    --env CartPole-v1
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from zerobeast.common.config.given_env import id_and_arguments
from zerobeast.common.config.hints import no_setting
from zerobeast.common.config.layers import CONFIG, CONFIRMED, Given, scalar
from zerobeast.common.config.table import SHORT, TREE, Table
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.plugins import installed, reference_to
from zerobeast.common.settings.algorithm import GROUP
from zerobeast.common.settings.arguments import plain
from zerobeast.common.text import as_text
from zerobeast.common.wire import short

_ENV = re.compile(r".-v\d+$|:[A-Z]|\w/[A-Z]")  #: in ids of environments
IN_PYTHON = {"env_kwargs": "env.kwargs"}  #: names of settings for calls alone
ALIASES = {"from": "from_run"}  #: of flags of commands: a word of Python cannot name their field


class Flag(NamedTuple):
    """One flag as typed; `text` is None if no value follows."""

    name: str
    text: str | None

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def where(self) -> str:
        return f"flag --{self.name}"

    def refused(self, expected: str) -> ConfigError:
        """An error about the value."""
        return ConfigError(path=self.key, value=self.text, expected=expected, layer=self.where)


@dataclass
class CommandLine:
    """The flags of a command line, sorted by what they set."""

    settings: list[Given] = field(default_factory=list)
    own: list[Given] = field(default_factory=list)  #: of the command itself, not of the run
    unknown: list[Flag] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    confirmed: set[str] = field(default_factory=set)  #: digests of values that files may give (`trust`)


def read_flags(argv: Sequence[str], own: Table, mistakes: list[BeastError]) -> CommandLine:
    """Sort flags by what they set; `own` are those of the command itself. Adds an error per mistake to `mistakes`."""
    line = CommandLine()
    for flag in split(argv, mistakes):
        path = SHORT.get(flag.key) or ALIASES.get(flag.key, flag.key)
        if path in TREE or path in own:
            table, given = (own, line.own) if path in own else (TREE, line.settings)
            given += _given(flag, path, table[path], mistakes)
        elif flag.key == CONFIG:
            line.files += [one.value for one in _given(flag, CONFIG, None, mistakes)]
        elif flag.key == CONFIRMED:
            line.confirmed |= set(filter(None, (flag.text or "").split(",")))
        else:
            line.unknown.append(flag)
    return line


def unknown(line: CommandLine, own: Table, section: str = "") -> Iterator[BeastError]:
    """An error for each unknown flag; suggestions are of the run and of algorithm `section`."""
    others = [*SHORT, *own, CONFIG, "help"]
    yield from (no_setting(flag.where, flag.key, flag.text, section, others) for flag in line.unknown)


def split(argv: Sequence[str], mistakes: list[BeastError]) -> Iterator[Flag]:
    """The flags on a command line; an error about every other argument is added to `mistakes`."""
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            setting = "algo" if word in installed(GROUP) else "env" if _ENV.search(word) else ""
            hint = f"; did you mean --{setting} {word}?" if setting else ""
            sentence = f"argument {short(word)}: expected a flag such as --learner.batch_size 32{hint}"
            mistakes.append(ConfigError(sentence, path="argument", value=word))
            continue
        name, assigned, text = word[2:].partition("=")
        yield Flag(name, text if assigned else words.pop(0) if words and not words[0].startswith("--") else None)


def _given(flag: Flag, path: str, setting: FieldInfo | None, mistakes: list[BeastError]) -> list[Given]:
    text = flag.text
    if text is None and setting is not None and setting.annotation is bool:
        text = "true"
    if text is None:
        what = f"a {'file' if path == CONFIG else 'value'} behind it"
        mistakes.append(ConfigError(f"{flag.where}: expected {what}", path=path, expected=what, layer=flag.where))
        return []
    return [Given(path, scalar(setting, text) if setting else text, flag.where)]


def flags_for(settings: Mapping[str, Any]) -> list[str]:
    """Flags for settings by section or by path; classes and other objects become references, and None is not given.

    Raises:
      ConfigError: no other process can import one of those, or what is in a list or dict is not `plain`.

    >>> flags_for({"seed": 3, "net": {"hidden_size": 64, "use_lstm": True}, "learner.batch_size": 8, "name": None})
    ['--seed=3', '--net.hidden_size=64', '--net.use_lstm=true', '--learner.batch_size=8']
    """
    return [f"--{path}={_text(path, value)}" for path, value in _leaves(settings, "") if value is not None]


def with_env(env: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a call whose environment is an argument of its own, beside or in place of others of its section.

    >>> with_env("Walk-v0", {"seed": 3, "env": {"action_mask": "mask"}})
    {'seed': 3, 'env': {'id': 'Walk-v0', 'action_mask': 'mask'}}

    Raises:
      ConfigError: both have an environment.
    """
    others = settings.get("env", {})
    section = others if isinstance(others, dict) else {"id": others}
    if env is not None and section.get("id", env) is not env:
        sentence = f"env is given twice, {env!r:.100} and {section['id']!r:.100}: expected one of them"
        raise ConfigError(sentence, path="env", value=env, beside=["env.id"])
    return {**settings, "env": {"id": env, **section}}


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        path = IN_PYTHON.get(prefix + name, prefix + name)
        if isinstance(value, dict) and path not in TREE:
            yield from _leaves(value, f"{path}.")
        elif path in ("env", "env.id") and value is not None:
            env_id, arguments = id_and_arguments(value)
            yield from (("env.kwargs", arguments or None), (path, env_id))
        else:
            yield path, value


def _text(path: str, value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return json.dumps(plain(value, path))
    if hasattr(type(value), "tolist"):
        return _text(path, value.tolist())
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    return as_text(value) if isinstance(value, Number) else reference_to(value, path)
