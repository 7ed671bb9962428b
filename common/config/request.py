"""What is given for a run, each flag, value, variable and file read once, before any of it is checked.

A command makes a `Request` of its arguments, a call in Python of its values, and `load.resolve` makes settings of it.
What is known besides, such as the file of a run that continues, becomes a layer of the same request.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from zerobeast.common.config import trust
from zerobeast.common.config.flags import ALIASES, Flag, parse_flags
from zerobeast.common.config.hints import unknown_setting_error
from zerobeast.common.config.layers import (
    CONFIG,
    CONFIRMED_FLAG,
    PREFIX,
    GivenValue,
    InheritedSettings,
    flatten_tree,
    parse_scalar,
    read_environment,
    read_yaml,
)
from zerobeast.common.config.plain_values import plain_values
from zerobeast.common.config.settings_table import SHORT_NAMES, TREE, settings_of
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files.regular_files import read_text_or_pipe
from zerobeast.common.settings import Section, spec_of
from zerobeast.common.text import as_text

ALGO = "algo"
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})

Tree = Mapping[str, Any]  #: of settings, as a file has it


class Layers(NamedTuple):
    """The layers of a request, the lowest first."""

    every: list[list[GivenValue]]
    inherited: list[list[GivenValue]]  #: those of another run

    @property
    def given(self) -> list[GivenValue]:
        return [one for layer in self.every for one in layer]


@dataclass(frozen=True)
class Request:
    """What a command, a call or a service is given.

    Attributes:
      settings: flags or values, the highest layer.
      own: section of the flags of the command itself.
      own_given: those that are given.
      files: names of files, the lowest first.
      environ: environment variables; those without the prefix BEAST_ are ignored.
      trees: settings of other runs and files, below all others, by the layer's name.
      confirmed: digests of values that files may give (`trust`).
      unknown: flags that are nothing of all this.
      mistakes: in what could not be read.
    """

    settings: Sequence[GivenValue] = ()
    own: type[Section] = Section
    own_given: Sequence[GivenValue] = ()
    files: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    trees: Mapping[str, Tree] = field(default_factory=dict)
    confirmed: frozenset[str] = frozenset()
    unknown: Sequence[Flag] = ()
    mistakes: Sequence[BeastError] = ()

    @classmethod
    def of_flags(
        cls, argv: Sequence[str], environ: Mapping[str, str] = NO_SETTINGS, own: type[Section] = Section
    ) -> "Request":
        """What a command line gives.

        Args:
          argv: flags, without the program's name.
          environ, own: as of a request.
        """
        mistakes: list[BeastError] = []
        flags, table = list(parse_flags(argv, mistakes)), settings_of(own)
        _import_algorithm([flag.text for flag in flags if flag.key == ALGO and flag.text], environ)
        settings, own_given, files, unknown = list[GivenValue](), list[GivenValue](), list[str](), list[Flag]()
        confirmed = frozenset[str]()
        for flag in flags:
            path = SHORT_NAMES.get(flag.key) or ALIASES.get(flag.key, flag.key)
            if path in table:
                own_given += _of_flag(flag, path, table[path], mistakes)
            elif path in TREE:
                settings += _of_flag(flag, path, TREE[path], mistakes)
            elif flag.key == CONFIG:
                files += [one.value for one in _of_flag(flag, CONFIG, None, mistakes)]
            elif flag.key == CONFIRMED_FLAG:
                confirmed |= set(filter(None, (flag.text or "").split(",")))
            else:
                unknown.append(flag)
        return cls(settings, own, own_given, files, environ, {}, confirmed, unknown, mistakes)

    @classmethod
    def of_values(
        cls, values: Mapping[str, Any], environ: Mapping[str, str] = NO_SETTINGS, own: type[Section] = Section
    ) -> "Request":
        """What a call in Python gives.

        Args:
          values: settings by section or by path, flags of `own`, and the file `config`; classes and other objects
            become references, and None is not given.
          environ, own: as of a request.

        Raises:
          ConfigError: no other process can import an object, or what is in a list or dict is not `plain`.
        """
        found, table = plain_values(values), settings_of(own)
        _import_algorithm([str(value) for path, value in found if path == ALGO], environ)
        settings, own_given, unknown = list[GivenValue](), list[GivenValue](), list[Flag]()
        files = [str(value) for path, value in found if path == CONFIG]
        for name, value in found:
            path, where = SHORT_NAMES.get(name, name), f"argument {name}"
            if path in table:
                own_given.append(GivenValue(path, value, where))
            elif path in TREE:
                settings.append(
                    GivenValue(path, parse_scalar(TREE[path], value) if isinstance(value, str) else value, where)
                )
            elif path != CONFIG:
                unknown.append(Flag(name, as_text(value), where))
        return cls(settings, own, own_given, files, environ, unknown=unknown)

    def with_trees(self, trees: Mapping[str, Tree]) -> "Request":
        """The same, with these layers below all others."""
        return replace(self, trees={**trees, **self.trees})

    def of_run(self, label: str, tree: Tree) -> "Request":
        """The same for a run that is there: its file is below all others, and in place of that of BEAST_CONFIG."""
        environ = {name: text for name, text in self.environ.items() if name != PREFIX + CONFIG.upper()}
        return replace(self.with_trees({label: tree}), environ=environ)

    def with_defaults(self, values: Mapping[str, Any], where: str) -> "Request":
        """The same, with settings that hold unless a flag or value of the request gives them."""
        return replace(
            self, settings=[*(GivenValue(path, value, where) for path, value in values.items()), *self.settings]
        )

    def with_values(self, values: Mapping[str, Any], where: str) -> "Request":
        """The same, with settings that hold whatever else is given."""
        return replace(
            self, settings=[*self.settings, *(GivenValue(path, value, where) for path, value in values.items())]
        )

    def value(self, path: str) -> Any:
        """The unchecked value that a flag or value gives a setting, or a flag of the command; None if none does."""
        return next((one.value for one in reversed((*self.settings, *self.own_given)) if one.path == path), None)

    @property
    def algo(self) -> str:
        """The algorithm that a flag, a value or else a variable names; empty if none does."""
        return str(self.value(ALGO) or self.environ.get(PREFIX + ALGO.upper(), ""))

    def layers(self, mistakes: list[BeastError]) -> Layers:
        """Read the files and variables; adds an error for every mistake."""
        _import_algorithm([self.algo], {})
        lowest = [(tree, list(_of_tree(label, tree, self.confirmed, mistakes))) for label, tree in self.trees.items()]
        inherited = [layer for tree, layer in lowest if isinstance(tree, InheritedSettings)]
        files = [list(_of_tree(*read, self.confirmed, mistakes)) for read in self._read(mistakes)]
        every = [*(layer for _, layer in lowest), *files, list(read_environment(self.environ, mistakes))]
        return Layers([*every, list(self.settings)], inherited)

    def _read(self, mistakes: list[BeastError]) -> Iterator[tuple[str, Tree]]:
        for name in self.files or filter(None, [self.environ.get(PREFIX + CONFIG.upper())]):
            label = f"file {name}"
            try:
                yield label, read_yaml(Path(name), label, read=read_text_or_pipe)
            except ConfigError as error:
                mistakes.append(error)

    def unknown_flag_errors(self, section: str) -> Iterator[BeastError]:
        """An error for each unknown flag; suggestions are of the run and of algorithm `section`."""
        others = [*SHORT_NAMES, *settings_of(self.own), CONFIG, "help"]
        yield from (unknown_setting_error(flag.where, flag.key, flag.text, section, others) for flag in self.unknown)


def _import_algorithm(named: Sequence[str], environ: Mapping[str, str]) -> None:
    """Import an algorithm that is no installed one, so that its settings are among those that are read."""
    algo = named[-1] if named else environ.get(PREFIX + ALGO.upper(), "")
    if ":" in algo:
        with suppress(ConfigError):  # which whoever needs the algorithm reports
            spec_of(algo)


def _of_flag(flag: Flag, path: str, setting: FieldInfo | None, mistakes: list[BeastError]) -> list[GivenValue]:
    text = flag.text
    if text is None and setting is not None and setting.annotation is bool:
        text = "true"
    if text is None:
        what = f"a {'file' if path == CONFIG else 'value'} after it"
        mistakes.append(ConfigError(f"{flag.where}: expected {what}", path=path, expected=what, layer=flag.where))
        return []
    return [GivenValue(path, parse_scalar(setting, text) if setting else text, flag.where)]


def _of_tree(label: str, tree: Tree, known: frozenset[str], mistakes: list[BeastError]) -> Iterator[GivenValue]:
    algo = GivenValue(ALGO, str(tree.get(ALGO)), f"{label}: {ALGO}")
    if ":" in algo.value and not trust.refusals([algo], {}, known):
        with suppress(ConfigError):  # which whoever needs the algorithm reports
            spec_of(algo.value)  # so that its settings are among those that are read
    return flatten_tree(tree, label, mistakes)
