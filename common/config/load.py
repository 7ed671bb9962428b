"""Filling the tree: default < preset < what `deterministic` needs < YAML file < environment < flag.

    config = load(sys.argv[1:], os.environ)

Several --config files are read in order, each over the one before; BEAST_CONFIG is used if there is no --config.
Every value of every layer is checked, even one that a higher layer replaces, and all mistakes are reported at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from zerobeast.common.algos.registry import ALGORITHMS
from zerobeast.common.config import lock_step, remarks, torchbeast, trust
from zerobeast.common.config import preset as presets
from zerobeast.common.config.describe import differences, dump, settings_help
from zerobeast.common.config.expectation import expectation, shown
from zerobeast.common.config.flags import CommandLine, read_flags
from zerobeast.common.config.layers import CONFIG, PREFIX, Given, earlier, from_environment, from_tree, read_yaml
from zerobeast.common.config.relations import Relation, relations
from zerobeast.common.config.table import TREE, Table, nested, settings_of, value_at
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings.section import Section
from zerobeast.common.wire.specs import EnvSpec

__all__ = ["Loaded", "differences", "dump", "gather", "load", "settings_help"]

log = logging.getLogger(__name__)


#: returns the spec of the environment that settings name; takes path of a setting -> its unchecked `Given`
Describe = Callable[[Mapping[str, Given]], EnvSpec]


class Loaded(NamedTuple):
    """The settings of a run and where they come from."""

    config: RunConfig
    own: Any  #: an instance of the `own` of `gather`
    origins: Mapping[str, str]  #: path -> layer, of every setting that a layer gives
    notes: tuple[str, ...]  #: remarks for the log, such as on flags without effect


def load(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    describe: Describe | None = None,
    groups: lock_step.Groups | None = None,
    read_only: bool = False,
) -> RunConfig:
    """Read all layers.

    Args:
      argv: flags, without the program's name.
      environ: environment variables; those without the prefix BEAST_ are ignored.
      describe: called if the environment's id does not tell which preset fits; without it the classic one is taken.
      groups: called if the run is deterministic; without it `learner.batch_size` is taken as it is.
      read_only: nothing is started under these settings, so a file may decide all of them (`trust`).

    Raises:
      ConfigError: a line for every mistake of every layer.
    """
    loaded = gather(argv, environ, describe=describe, groups=groups, read_only=read_only)
    for note in loaded.notes:
        log.warning("%s", note)
    return loaded.config


def gather(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    own: type[Section] = Section,
    describe: Describe | None = None,
    groups: lock_step.Groups | None = None,
    read_only: bool = False,
) -> Loaded:
    """As `load`, and keep where each value came from. `own` are flags of the command itself."""
    mistakes: list[str] = []
    own_table = settings_of(own)
    line = read_flags(argv, own_table, mistakes)
    above = [*_files(line, environ, mistakes), list(from_environment(environ, mistakes)), line.settings]
    refusals = [] if read_only else list(trust.refusals(_highest(above)))
    mistakes += refusals
    preset, lowest = _preset(above, None if refusals else describe, mistakes)
    flags = list(_resolved(above.pop(), _highest([lowest, *above, line.settings])["algo"].value, mistakes))
    good, refused = _merge([lowest, *above, flags, [preset]], mistakes)
    _add_counts(good, line, mistakes)
    good |= _check(RunConfig, TREE, list(lock_step.layer(_tree(good), good, groups)), mistakes)[0]
    config = _tree(good)
    broken = (*relations(config), *lock_step.broken(config, groups))
    mistakes += [_sentence(relation, good) for relation in broken if not refused.intersection(relation.paths)]
    origins = {path: given.where for path, given in good.items()}
    mistakes += remarks.unused(config, origins)
    own_good, _ = _check(own, own_table, line.own, mistakes)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    own_values = {path: given.value for path, given in own_good.items()}
    notes = (
        *line.notes,
        *remarks.idle(config, origins),
        *remarks.ladder(config),
        *remarks.held(config),
        *remarks.raw_frames(config),
        *remarks.other_defaults(config, origins, line),
    )
    return Loaded(config, own.model_validate(own_values), origins, notes)


def _files(line: CommandLine, environ: Mapping[str, str], mistakes: list[str]) -> Iterator[list[Given]]:
    """The layers of the files, lowest first."""
    for name in line.files or filter(None, [environ.get(PREFIX + CONFIG.upper())]):
        label = f"file {name}"
        try:
            layer = list(from_tree(read_yaml(Path(name), label), label, mistakes))
            yield [*layer, *earlier(layer, label)]
        except ConfigError as error:
            mistakes.append(str(error))


def _preset(above: list[list[Given]], describe: Describe | None, mistakes: list[str]) -> tuple[Given, list[Given]]:
    """The preset that the layers name, or else the one that fits, and its settings."""
    given = _highest(above)
    preset = given["preset"]
    try:
        if not preset.value:
            env_id, algo = (str(given[path].value) for path in ("env.id", "algo"))
            ask = partial(describe, given) if describe else None
            name = presets.fitting(env_id, algo, ask, with_arguments="env.kwargs" in given)
            preset = Given("preset", name, f"chosen for {env_id} and {algo}")
        return preset, list(from_tree(presets.read(str(preset.value)), f"preset {preset.value}", mistakes))
    except ConfigError as error:
        mistakes.append(str(error))
        return preset, []


def _highest(layers: list[list[Given]]) -> dict[str, Given]:
    """The highest value given for each setting, unchecked, with defaults for the settings that choose the preset."""
    default = RunConfig()
    chosen_by = {path: Given(path, value_at(default, path), "the defaults") for path in ("env.id", "algo", "preset")}
    return chosen_by | {entry.path: entry for layer in layers for entry in layer}


def _resolved(flags: list[Given], algo: Any, mistakes: list[str]) -> Iterator[Given]:
    """The flags; TorchBeast's names for algorithm settings are resolved to the section of the run's algorithm."""
    known = algo if algo in ALGORITHMS else RunConfig().algo
    for given in flags:
        path = given.path.replace(torchbeast.ALGO, known)
        if path in TREE:
            yield given._replace(path=path)
        else:
            mistakes.append(f"{given.where}: algo {known} has no setting {path}")


def _merge(layers: list[list[Given]], mistakes: list[str]) -> tuple[dict[str, Given], set[str]]:
    """The highest good value of every setting, and the paths of bad ones."""
    good: dict[str, Given] = {}
    refused: set[str] = set()
    for layer in layers:
        checked, bad = _check(RunConfig, TREE, layer, mistakes)
        good |= checked
        refused |= bad
    return good, refused


def _check(
    model: type[Section], table: Table, layer: list[Given], mistakes: list[str]
) -> tuple[dict[str, Given], set[str]]:
    """The valid values of one layer, parsed, and the paths of those that are refused."""
    good: dict[str, Given] = {}
    refused: set[str] = set()
    for path, given in {entry.path: entry for entry in layer}.items():
        try:
            parsed = model.model_validate(nested({path: given.value}))
        except ValidationError as error:
            detail = error.errors()[0]
            custom = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else ""
            if detail["type"] == "finite_number" and isinstance(given.value, dict):
                custom = "expected finite numbers"
            sentence = custom or f"expected {expectation(table[path])}"
            mistakes.append(f"{given.where}: got {shown(given.value)}, {sentence}")
            refused.add(path)
        else:
            good[path] = given._replace(value=value_at(parsed, path))
    return good, refused


def _add_counts(good: dict[str, Given], line: CommandLine, mistakes: list[str]) -> None:
    """Add the settings that num_actors and num_buffers stand for, unless flags set them by name."""
    if not line.counts:
        return
    by_flag = {given.path for given in line.settings}
    config = _tree(good)
    where = " and ".join(f"flag --{name}" for name in line.counts)
    changes = torchbeast.spread(line.counts, lambda path: int(value_at(config, path)))
    layer = [Given(path, value, f"{where}: {path}") for path, value in changes.items() if path not in by_flag]
    good |= _check(RunConfig, TREE, layer, mistakes)[0]


def _tree(good: Mapping[str, Given]) -> RunConfig:
    return RunConfig.model_validate(nested({path: given.value for path, given in good.items()}))


def _sentence(relation: Relation, good: Mapping[str, Given]) -> str:
    sources = dict.fromkeys(f"{good[path].where}" for path in relation.paths if path in good)
    return f"{relation.sentence} (from {', '.join(sources) or 'the defaults'})"
