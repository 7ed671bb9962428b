"""What a file may not decide alone, since a config or a run folder may come from an untrusted source.

A file is data. Which module is imported, who may take part, what is reached beyond this machine and what is written
outside this folder is decided by the flags and environment variables of whoever starts a process; a file that gives
such a value is refused unless one of those does too, or did for this folder before (`confirmations`). Settings declare
what they decide (`common.settings.guards`). config.yaml has all settings of a run, so launchers hand digests of these
values to their services as a flag, which unlike the values anyone may see.
"""

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from zerobeast.common import plugins
from zerobeast.common.config import confirmations
from zerobeast.common.config.layers import CONFIRMED_FLAG, GivenValue, merge_layers
from zerobeast.common.config.settings_table import LEVELS, RUN, SHORT_NAMES, TREE, table_of, value_at
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import CODE, NO_GUARD, PEERS, PLACE, REACH, RunConfig
from zerobeast.common.settings.facts import guard_of
from zerobeast.common.settings.guards import ENVIRONMENT, Around, Guard
from zerobeast.common.text import as_text, split_ids
from zerobeast.common.wire import short

UNNEEDED_GUARDS = (PEERS, REACH, PLACE)  #: for a command that makes environments alone
#: values by which no file admits or reaches anyone there
SAFE_VALUES = {path: one.default for path, one in RUN.items() if guard_of(one) in UNNEEDED_GUARDS}


def guard_at(path: str) -> Guard:
    """What a setting decides."""
    return guard_of(TREE[path])


def refusals(
    in_files: Iterable[GivenValue],
    given: Mapping[str, GivenValue],
    known: Collection[str] = (),
    *,
    read_only: bool = False,
) -> dict[str, ConfigError]:
    """By the paths of settings, an error for every value, valid or not, that a file alone gives and may not.

    Args:
      in_files: what files give and nothing else replaces.
      given: the highest value of each setting.
      known: digests of values that a flag confirms.
      read_only: nothing is started under these settings.
    """
    around = _around({path: one.value for path, one in given.items()})
    asked = [one for one in in_files if guard_at(one.path).always or not read_only]
    decide = [
        one
        for one in asked
        if _matters(one.path, one.value, around._replace(folder=one.file and one.file.absolute().parent))
    ]
    unknown = [one for one in decide if not confirmations.is_known(one, known) and not _was_passed(one)]
    return {one.path: _refusal(*one) for one in unknown}


def _was_passed(one: GivenValue) -> bool:
    """Whether a file refers to nothing but what calls in this process were given as objects."""
    references = split_ids(str(one.value)) if guard_at(one.path) is ENVIRONMENT else [str(one.value)]
    return guard_at(one.path) in (CODE, ENVIRONMENT) and plugins.passed_references.issuperset(
        each for each in references if ":" in each
    )


def _refusal(path: str, value: Any, where: str) -> ConfigError:
    sentence = f"{short(value)} {guard_at(path).what}, which a file alone may not decide"
    expected = f"give {shlex.join(flag_of(path, value))} as well"
    return ConfigError(f"{where}: {sentence}: {expected}", path=path, value=value, expected=expected, layer=where)


def refusals_of(config: RunConfig, in_files: Iterable[GivenValue]) -> dict[str, ConfigError]:
    """As `refusals`, for the settings of a run and what files alone have given of them."""
    return refusals(in_files, {path: GivenValue(path, value_at(config, path), "") for path in ("env.id", LEVELS)})


def decisive_values(config: RunConfig) -> dict[str, Any]:
    """The settings of a run, by path, that would be refused if a file alone gave them."""
    values = {path: value_at(config, path) for path in table_of(config)}
    around = _around(values)
    return {path: value for path, value in values.items() if _matters(path, value, around)}


def user_settings(config: RunConfig) -> dict[str, Any]:
    """The settings, by path, that a command which makes environments alone may not take from a file by any value."""
    left_out = (NO_GUARD, *UNNEEDED_GUARDS)
    return {path: value_at(config, path) for path in table_of(config) if guard_at(path) not in left_out}


def settings_to_confirm(config: RunConfig) -> dict[str, Any]:
    """The settings, by path, that such a command needs as flags, because it refuses them in a file."""
    found, own = decisive_values(config), user_settings(config)
    return {path: found[path] for path in sorted(found.keys() & own.keys())}


def confirmation(values: Mapping[str, Any]) -> list[str]:
    """The flag with which a file may give settings these values."""
    digests = [digest for path, value in values.items() for digest in confirmations.digest_values(path, value)]
    return [f"--{CONFIRMED_FLAG}", ",".join(digests)] if digests else []


def confirm(given: Sequence[GivenValue], config: RunConfig) -> None:
    """Remember what files give and flags or variables give too: from now on those files need none."""
    in_files, by_hand = [one for one in given if one.file], merge_layers(one for one in given if not one.file)
    values = decisive_values(config) if in_files else {}
    for one in in_files:
        if one.file and one.path in values and (hand := by_hand.get(one.path)):
            confirmations.remember(one.file, {one.path: _common_values(one.value, hand.value, values[one.path])})


def _common_values(by_file: Any, by_hand: Any, value: Any) -> Any:
    """What of a value in effect a file gives as well, of a mapping the entries given by hand; empty if nothing."""
    if isinstance(by_file, dict) and isinstance(by_hand, dict):
        return {key: one for key, one in by_file.items() if key in by_hand and value.get(key) == one}
    return by_file if by_file == value else {}


def _around(values: Mapping[str, Any]) -> Around:
    """With the ids of all environments that get the arguments, those of a mix one by one."""
    text = f"{values.get('env.id', RUN['env.id'].default)},{values.get(LEVELS, '')}"
    return Around({*filter(None, re.split("[(),;]", text.replace(" ", "")))})


def _matters(path: str, value: Any, around: Around) -> bool:
    """Whether this value of a setting decides more than data."""
    return bool(value != TREE[path].default) and guard_at(path).matters(value, around)


def flag_of(path: str, value: Any) -> tuple[str, str]:
    """The flag that gives a setting a value."""
    name = next((name for name, long in SHORT_NAMES.items() if long == path), path)
    with suppress(TypeError, ValueError, RecursionError):  # it is no value of a setting
        return f"--{name}", json.dumps(value, default=str) if isinstance(value, dict) else as_text(value)
    return f"--{name}", "..."
