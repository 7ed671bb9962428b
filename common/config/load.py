"""Filling the tree: default < preset < YAML file < environment < flag.

    config = load(sys.argv[1:], os.environ)

    --config run.yaml              learner: {batch_size: 32}
    BEAST_LEARNER__BATCH_SIZE=32   BEAST_SEED=1
    --learner.batch_size 32        --seed 1 --env CartPole-v1

Several --config are read in turn, each over the one before; BEAST_CONFIG and BEAST_PRESET stand in for the flags.
Every value of every layer is checked, also one that a higher layer replaces, and all mistakes are reported at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from zerobeast.common.algos.registry import ALGORITHMS
from zerobeast.common.config import preset as presets
from zerobeast.common.config.describe import differences, dump, settings_help
from zerobeast.common.config.expectation import expectation, shown
from zerobeast.common.config.flags import CommandLine, read_flags
from zerobeast.common.config.layers import CONFIG, PREFIX, PRESET, Given, from_environment, from_tree, read_yaml
from zerobeast.common.config.relations import PARTIAL, BrokenRelations, Relation
from zerobeast.common.config.setting import Section
from zerobeast.common.config.table import SHORT, TREE, Table, nested, settings_of, value_at
from zerobeast.common.config.torchbeast import spread
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import ConfigError

__all__ = ["Loaded", "differences", "dump", "gather", "load", "settings_help"]

log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """The settings of a run and where they come from."""

    config: RunConfig
    own: Any  #: an instance of the `own` of `gather`
    origins: Mapping[str, str]  #: path -> layer, of every setting that a layer gives
    notes: tuple[str, ...]  #: for the log: flags without effect


def load(argv: Sequence[str], environ: Mapping[str, str]) -> RunConfig:
    """Read all layers.

    Args:
      argv: flags, without the program's name.
      environ: environment variables; those without the prefix BEAST_ are ignored.

    Raises:
      ConfigError: a line for every mistake of every layer.
    """
    loaded = gather(argv, environ)
    for note in loaded.notes:
        log.warning("%s", note)
    return loaded.config


def gather(argv: Sequence[str], environ: Mapping[str, str], *, own: type[Section] = Section) -> Loaded:
    """Read all layers and keep where each value came from.

    Args:
      argv: as for `load`.
      environ: as for `load`.
      own: flags of the command itself, beside the settings of the run.

    Raises:
      ConfigError: as for `load`.
    """
    mistakes: list[str] = []
    own_table = settings_of(own)
    line = read_flags(argv, own_table, mistakes)
    files, preset = _sources(line, environ, mistakes)
    above = [*files, list(from_environment(environ, mistakes)), line.settings]
    layers = [_preset_layer(preset, above, mistakes), *above]
    good, refused = _merge(layers, mistakes)
    _add_counts(good, line, mistakes)
    config, broken = _build(good)
    mistakes += [_sentence(relation, good) for relation in broken if not refused.intersection(relation.paths)]
    own_good, _ = _check(own, own_table, line.own, mistakes)
    if mistakes or config is None:
        raise ConfigError("\n".join(mistakes))
    own_values = {path: given.value for path, given in own_good.items()}
    origins = {path: given.where for path, given in good.items()}
    notes = (*line.notes, *_idle_flags(config, origins))
    return Loaded(config, own.model_validate(own_values), origins, notes)


def _idle_flags(config: RunConfig, origins: Mapping[str, str]) -> Iterator[str]:
    """A sentence for every flag that sets something of another algorithm."""
    others = ALGORITHMS.keys() - {config.algo}
    for path, where in origins.items():
        if path.partition(".")[0] in others and where.startswith("flag "):
            yield f"{where.removeprefix('flag ')} has no effect: it sets {path}, and this run's algo is {config.algo}"


def _sources(
    line: CommandLine, environ: Mapping[str, str], mistakes: list[str]
) -> tuple[list[list[Given]], str | None]:
    """The layers of the files, lowest first, and the name of the preset where one is given."""
    names = line.files or [name for name in [environ.get(PREFIX + CONFIG.upper())] if name]
    preset = None
    layers = []
    for name in names:
        label = f"file {name}"
        try:
            tree = read_yaml(Path(name), label)
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        preset = tree.pop(PRESET, preset)
        layers.append(list(from_tree(tree, label, mistakes)))
    return layers, line.preset or environ.get(PREFIX + PRESET.upper()) or preset


def _preset_layer(name: str | None, above: list[list[Given]], mistakes: list[str]) -> list[Given]:
    if name is None:
        given = {entry.path: str(entry.value) for layer in above for entry in layer}
        default = RunConfig()
        name = presets.fitting(given.get(SHORT["env"], default.env.id), given.get("algo", default.algo))
    try:
        return list(from_tree(presets.read(str(name)), f"preset {name}", mistakes))
    except ConfigError as error:
        mistakes.append(str(error))
        return []


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
    """One layer's values as the tree takes them, and the paths of those that it refuses."""
    given = {entry.path: entry for entry in layer}
    refused: set[str] = set()
    while True:
        values = {path: entry.value for path, entry in given.items()}
        try:
            parsed = model.model_validate(nested(values), context=PARTIAL)
        except ValidationError as error:
            for path, sentence in _refusals(error, table):
                if path in given:
                    mistakes.append(f"{given.pop(path).where}: got {shown(values[path])}, {sentence}")
                    refused.add(path)
        else:
            return {path: entry._replace(value=value_at(parsed, path)) for path, entry in given.items()}, refused


def _refusals(error: ValidationError, table: Table) -> Iterator[tuple[str, str]]:
    for detail in error.errors():
        parts = [str(part) for part in detail["loc"]]
        path = next(name for n in range(len(parts), 0, -1) if (name := ".".join(parts[:n])) in table)
        custom = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else ""
        yield path, custom or f"expected {expectation(table[path])}"


def _add_counts(good: dict[str, Given], line: CommandLine, mistakes: list[str]) -> None:
    """Work num_actors and num_buffers out, unless flags set their targets by name."""
    if not line.counts:
        return
    by_flag = {given.path for given in line.settings}
    config = RunConfig.model_validate(nested({path: given.value for path, given in good.items()}), context=PARTIAL)
    where = " and ".join(f"flag --{name}" for name in line.counts)
    changes = spread(line.counts, lambda path: int(value_at(config, path)))
    layer = [Given(path, value, f"{where}: {path}") for path, value in changes.items() if path not in by_flag]
    good |= _check(RunConfig, TREE, layer, mistakes)[0]


def _build(good: Mapping[str, Given]) -> tuple[RunConfig | None, tuple[Relation, ...]]:
    """The tree, or what keeps it from being one."""
    values = nested({path: given.value for path, given in good.items()})
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        cause = error.errors()[0]["ctx"]["error"]
        assert isinstance(cause, BrokenRelations), "every value was checked by itself"
        return None, cause.broken
    return config, ()


def _sentence(relation: Relation, good: Mapping[str, Given]) -> str:
    sources = dict.fromkeys(f"{good[path].where}" for path in relation.paths if path in good)
    return f"{relation.sentence} (from {', '.join(sources) or 'the defaults'})"
