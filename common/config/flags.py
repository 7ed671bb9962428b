"""Flags: those of a command line, and those that give another process its settings.

--learner.batch_size 32    --learner.batch-size=32    --net.normalize_obs    --seed 1    --env CartPole-v1
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from zerobeast.common.config.plain_values import plain_values
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.plugins import find_entry_points
from zerobeast.common.settings.algorithm import GROUP
from zerobeast.common.text import as_text
from zerobeast.common.wire import short

_ENV = re.compile(r".-v\d+$|:[A-Z]|\w/[A-Z]")  #: in ids of environments
ALIASES = {"from": "from_run"}  #: of flags of commands: a word of Python cannot name their field


class Flag(NamedTuple):
    """One flag as typed; `text` is None if no value follows."""

    name: str
    text: str | None
    origin: str = ""  #: if it is none of a command line

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def where(self) -> str:
        return self.origin or f"flag --{self.name}"

    def refusal(self, expected: str) -> ConfigError:
        """An error about the value."""
        return ConfigError(path=self.key, value=self.text, expected=expected, layer=self.where)


def parse_flags(argv: Sequence[str], mistakes: list[BeastError]) -> Iterator[Flag]:
    """The flags on a command line; an error about every other argument is added to `mistakes`."""
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            setting = "algo" if word in find_entry_points(GROUP) else "env" if _ENV.search(word) else ""
            hint = f"; did you mean --{setting} {word}?" if setting else ""
            sentence = f"argument {short(word)}: expected a flag such as --learner.batch_size 32{hint}"
            mistakes.append(ConfigError(sentence, path="argument", value=word))
            continue
        name, assigned, text = word[2:].partition("=")
        yield Flag(name, text if assigned else words.pop(0) if words and not words[0].startswith("--") else None)


def flags_for(settings: Mapping[str, Any]) -> list[str]:
    """Flags for settings by section or by path, for another process; see `values.plain_values`.

    >>> flags_for({"seed": 3, "net": {"hidden_size": 64, "core": "lstm"}, "learner.batch_size": 8, "name": None})
    ['--seed=3', '--net.hidden_size=64', '--net.core=lstm', '--learner.batch_size=8']
    """
    return [f"--{path}={_text(value)}" for path, value in plain_values(settings)]


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else as_text(value)
