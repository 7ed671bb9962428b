"""What each layer gives, before anything is validated: presets and files, and the environment.

A layer is a list of `GivenValue`. Input that cannot even be read becomes an error in `mistakes`, so that one start
reports every mistake of every layer.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast, get_origin

import yaml
from pydantic.fields import FieldInfo

from zerobeast.common.config.hints import unknown_setting_error
from zerobeast.common.config.settings_table import SHORT_NAMES, TREE, is_section, nest
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files.atomic import explain_os_errors
from zerobeast.common.files.regular_files import read_small_text
from zerobeast.common.wire import short

PREFIX = "BEAST_"
CONFIG, CONFIRMED_FLAG = "config", "confirmed"  #: flags of every command, beside settings
MAX_NUMBER_WIDTH = len("-0b") + 64  #: characters of a number
MAX_DEPTH = 100  #: levels of nesting in a file
BASE = "base"  #: of a file of settings: the file, in its folder or the one above, whose settings lie below its own
MAX_BASES = 4  #: below each other
_BASE = re.compile(r"(\.\./)?[\w-]+\.yaml")
#: What Kubernetes and Docker links put into the environment for a service called beast-<something>.
_LINK = re.compile(r"BEAST_\w*?(_SERVICE_(HOST|PORT\w*)|_PORT_\d+_(TCP|UDP)\w*)")


class GivenValue(NamedTuple):
    """A value for a setting, and the layer that it comes from."""

    path: str
    value: Any
    where: str  #: such as "flag --learner.batch_size"

    @property
    def file(self) -> Path | None:
        """The file that gives it, or a folder of files."""
        kind, _, place = self.where.rpartition(": ")[0].partition(" ")
        return Path(place) if kind == "file" else None

    def over(self, lower: "GivenValue | None") -> "GivenValue":
        """The same above a value of a lower layer: a mapping gets its entries too, but those that are null here."""
        if not (lower and isinstance(lower.value, dict) and isinstance(self.value, dict)):
            return self
        dropped = {key for key, value in self.value.items() if value is None and lower.value.get(key) is not None}
        entries = {**lower.value, **self.value}
        return self._replace(value={key: value for key, value in entries.items() if key not in dropped})

    def below(self, higher: "GivenValue") -> "GivenValue | None":
        """What of it still counts below the value of a higher layer."""
        if not (isinstance(higher.value, dict) and isinstance(self.value, dict)):
            return None
        rest = {key: value for key, value in self.value.items() if key not in higher.value}
        return self._replace(value=rest) if rest else None


class InheritedSettings(dict[str, Any]):
    """All settings of another run, as a tree. What that run had left open is found anew for the one that has them."""


def merge_layers(given: Iterable[GivenValue]) -> dict[str, GivenValue]:
    """The value of each setting, from the lowest layer to the highest."""
    found: dict[str, GivenValue] = {}
    for one in given:
        found[one.path] = one.over(found.get(one.path))
    return found


def select_file_values(given: Iterable[GivenValue]) -> tuple[GivenValue, ...]:
    """What files give and nothing above them replaces, from the lowest layer to the highest."""
    counting: dict[str, list[GivenValue]] = {}
    for one in given:
        left = (lower.below(one) for lower in counting.get(one.path, ()))
        counting[one.path] = [*filter(None, left), one]
    return tuple(one for several in counting.values() for one in several if one.file)


class _Resolver(yaml.resolver.Resolver):
    """Leaves as text what YAML 1.1 takes for a number to the base 60, such as 12:30, and what may overflow one."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag: str = cast("Any", super()).resolve(kind, value, implicit)
        number = tag.endswith((":int", ":float"))
        return self.DEFAULT_SCALAR_TAG if number and (":" in value or len(value) > MAX_NUMBER_WIDTH) else tag


class _StrictLoader(_Resolver, yaml.SafeLoader):
    """Refuses a duplicate key, for which YAML would silently take the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


#: the one in C is ten times faster
FAST_LOADER: Any = type("FastLoader", (_Resolver, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})


class NumberText(str):
    """A number that YAML 1.1 takes for text, such as 1e-3. The type of its setting decides which of both it is."""


#: the same for PyYAML: tag, pattern, first characters
NUMBER = ("!number", re.compile(r"([-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+|NaN|-?Infinity)$"), list("-+.0123456789NI"))
_StrictLoader.add_implicit_resolver(*NUMBER)
_StrictLoader.add_constructor(NUMBER[0], lambda _, node: NumberText(node.value))


def read_yaml(path: Path, label: str, loader: Any = _StrictLoader, read: Any = read_small_text) -> dict[str, Any]:
    """The mapping in a file, above that of its `base` if it names one, which may have one too.

    Args:
      path: of the file.
      label: its name in errors.
      loader: a SafeLoader.
      read: `read_text_or_pipe` if the user has named the file.

    Raises:
      ConfigError: one of the two cannot be read, is not YAML or not a mapping.
    """
    tree = read_without_base(path, label, loader, read)
    for _ in range(MAX_BASES):
        if BASE not in tree:
            return tree
        name = tree.pop(BASE)
        if not (isinstance(name, str) and _BASE.fullmatch(name)):
            raise ConfigError(path=f"{label}: {BASE}", value=name, expected="NAME.yaml or ../NAME.yaml")
        path = path.parent / name
        tree = _merge_over_base(tree, read_without_base(path, f"{label}: {BASE} {name}", loader))
    raise ConfigError(path=f"{label}: {BASE}", value=path.name, expected=f"fewer than {MAX_BASES} below each other")


def _merge_over_base(tree: Mapping[Any, Any], below: Mapping[Any, Any]) -> dict[str, Any]:
    """The settings of a file above those of its base."""
    paths = [(SHORT_NAMES.get(path, path), value) for each in (below, tree) for path, value in leaves(each)]
    found = merge_layers(GivenValue(path, value, "") for path, value in paths if not is_section(path))
    wrong = {path: value for path, value in paths if is_section(path)}  # which is reported
    return nest({path: one.value for path, one in found.items()}) | wrong


def read_without_base(
    path: Path, label: str, loader: Any = _StrictLoader, read: Callable[[Path], str] = read_small_text
) -> dict[str, Any]:
    """As `read_yaml`, without what its base has."""
    try:
        with explain_os_errors(f"{label}: cannot be read"):
            text = read(path)
        tree = _parse_yaml(text, loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{label}{line}: not valid YAML: {error.problem}", path=label) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # an impossible date is a ValueError
        raise ConfigError(f"{label}: not valid YAML: {str(error).splitlines()[0]}", path=label) from error
    if tree is not None and not isinstance(tree, dict):
        expected = "settings such as 'seed: 1'"
        raise ConfigError(f"{label}: expected {expected}, got {short(tree)}", path=label, value=tree, expected=expected)
    return tree or {}


def _parse_yaml(text: str, loader: Any) -> Any:
    """What a text in YAML stands for.

    An alias is an error, because with some of them a few bytes stand for more than fits into memory; so is deep
    nesting, which exhausts the stack of the loader in C, and a tag, with which a value may be of any kind.
    """
    depth, events = 0, yaml.parse(text, Loader=loader) if loader is FAST_LOADER or {*"*!"} & {*text} else ()
    event: Any
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or isinstance(event, yaml.AliasEvent) or getattr(event, "tag", None):
            wrong = short(text[event.start_mark.index : event.end_mark.index])
            problem = "too many levels" if depth > MAX_DEPTH else f"expected a value without alias and tag, got {wrong}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
    return yaml.load(text, Loader=loader)  # noqa: S506 - a SafeLoader


def flatten_tree(tree: Mapping[Any, Any], label: str, mistakes: list[BeastError]) -> Iterator[GivenValue]:
    """Flatten a file or preset; keys may be nested or dotted."""
    entries = (GivenValue(path, value, f"{label}: {path}") for path, value in leaves(tree))
    return _settings(entries, _convert_value, str(tree.get("algo", "")), mistakes)


def _settings(
    entries: Iterable[GivenValue],
    typed: Callable[[FieldInfo, Any], Any],
    section: str,
    mistakes: list[BeastError],
    *others: str,
) -> Iterator[GivenValue]:
    """The settings among entries, some of which have short names; the rest as for `unknown_setting_error`."""
    first: dict[str, str] = {}
    for key, value, where in entries:
        if (path := SHORT_NAMES.get(key, key)) in first:
            sentence = f"{where}: the same setting as {first[path]}; expected it once"
            mistakes.append(ConfigError(sentence, path=path, value=value, layer=where))
        elif path in TREE:
            first[path] = where.rpartition(" ")[2]
            yield GivenValue(path, typed(TREE[path], value), where)
        else:
            groups = {each.partition(".")[0] for each in TREE if "." in each}
            mistakes.append(unknown_setting_error(where, path, value, section, [*SHORT_NAMES, *groups, *others]))


def leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Entries of a file by their paths; of sections, those within."""
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if is_section(path) and isinstance(value, dict):
            yield from leaves(value, f"{path}.")
        elif value is not None or not is_section(path):  # skips a section with everything in it commented out
            yield path, value


def read_environment(environ: Mapping[str, str], mistakes: list[BeastError]) -> Iterator[GivenValue]:
    """BEAST_LEARNER__BATCH_SIZE is learner.batch_size, BEAST_SEED is seed; BEAST_CONFIG is not a setting."""
    names = (name for name in sorted(environ) if name.startswith(PREFIX) and not _is_link(name, environ[name]))
    keys = ((name, name.removeprefix(PREFIX).lower().replace("__", ".")) for name in names)
    entries = (GivenValue(key, environ[name], f"environment {name}") for name, key in keys if key != CONFIG)
    return _settings(entries, parse_scalar, environ.get(f"{PREFIX}ALGO", ""), mistakes, CONFIG)


def _is_link(name: str, text: str) -> bool:
    return bool(_LINK.fullmatch(name)) or (name.endswith("_PORT") and text.startswith(("tcp://", "udp://")))


def parse_scalar(field: FieldInfo, text: str) -> Any:
    """Text from the environment or a flag as a value: a mapping is parsed as JSON or YAML, anything else stays text."""
    if get_origin(field.annotation) is not dict:
        return text
    with suppress(ValueError, RecursionError):
        return json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        return _convert_value(field, _parse_yaml(text, _StrictLoader))
    return text  # which validation refuses


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(mapping := dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice")  # as YAML, it is refused in a sentence
    return mapping


def _convert_value(field: FieldInfo, value: Any) -> Any:
    """A value from YAML: the numbers of a mapping are numbers, other settings take them from text as well."""
    return _convert_numbers(value) if get_origin(field.annotation) is dict else value


def _convert_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _convert_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_convert_numbers(part) for part in value]
    return float(value) if isinstance(value, NumberText) else value
