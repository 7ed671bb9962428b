"""Filling the tree: default < preset < what `deterministic` needs < YAML file < environment < flag.

    config = load(sys.argv[1:], os.environ)

Several --config files are read in order, each over the one before; BEAST_CONFIG is used if there is no --config. The
entries of a mapping, such as `env.kwargs`, are added to those of the layers below (`GivenValue.over`).
Every value of every layer is checked, even one that a higher layer replaces, and all mistakes are reported at once.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from pydantic import ValidationError

from zerobeast.common.config import preset as presets
from zerobeast.common.config import remarks, trust
from zerobeast.common.config.describe import differences, dump, expectation, settings_help
from zerobeast.common.config.layers import GivenValue, flatten_tree, merge_layers, select_file_values
from zerobeast.common.config.relations import (
    Groups,
    deterministic_layer,
    drop_open_settings,
    find_broken_relations,
    short_layer,
)
from zerobeast.common.config.request import ALGO, Request
from zerobeast.common.config.settings_table import (
    LEVELS,
    NAMES,
    RUN,
    TREE,
    home_of,
    nest,
    settings_of,
    table_for,
    value_at,
)
from zerobeast.common.errors import BeastError, ConfigError, raise_as
from zerobeast.common.settings import AlgorithmSpec, Relation, RunConfig, Section, spec_of
from zerobeast.common.wire import EnvSpec, short

__all__ = [
    "LoadedSettings",
    "Request",
    "differences",
    "dump",
    "load_config",
    "resolve",
    "resolve_flags",
    "settings_help",
]

log = logging.getLogger(__name__)
DEFAULTS = "the defaults"

#: returns the spec of the environment that settings name; takes path of a setting -> its unchecked `GivenValue`
Describe = Callable[[Mapping[str, GivenValue]], EnvSpec]


class LoadedSettings(NamedTuple):
    """The settings of a run and where they come from."""

    config: RunConfig
    own: Any  #: an instance of the request's `own`
    origins: Mapping[str, str]  #: path -> layer, of every setting that a layer gives
    notes: tuple[str, ...]  #: remarks for the log, such as on flags without effect
    in_files: tuple[GivenValue, ...] = ()  #: what files alone give

    def for_its_env(self, file: str) -> "LoadedSettings":
        """The same, without `evaluate.levels` of a run's file if another layer gives another environment.

        Args:
          file: how the origins of the settings in this file begin.
        """
        theirs = (self.origins.get(path, file).startswith(file) for path in ("env.id", LEVELS))
        if LEVELS not in self.origins or tuple(theirs) != (False, True):
            return self
        evaluate = self.config.evaluate.model_copy(update={"levels": ""})
        origins = {path: where for path, where in self.origins.items() if path != LEVELS}
        in_files = tuple(one for one in self.in_files if one.path != LEVELS)
        config = self.config.model_copy(update={"evaluate": evaluate})
        note = f"{self.origins[LEVELS]} has no effect, because env.id is given anew"
        return LoadedSettings(config, self.own, origins, (*self.notes, note), in_files)


def load_config(argv: Sequence[str], environ: Mapping[str, str]) -> RunConfig:
    """The settings of a run alone, as `resolve` finds them; its notes are logged."""
    loaded = resolve_flags(argv, environ)
    for note in loaded.notes:
        log.warning("%s", note)
    return loaded.config


def resolve_flags(
    argv: Sequence[str], environ: Mapping[str, str], *, own: type[Section] = Section, **how: Any
) -> LoadedSettings:
    """As `resolve`, of flags and variables alone; `how` is for `resolve`."""
    return resolve(Request.of_flags(argv, environ, own), **how)


def resolve(
    request: Request,
    *,
    describe: Describe | None = None,
    groups: Groups | None = None,
    read_only: bool = False,
    partial: bool = False,
) -> LoadedSettings:
    """The settings that a request makes.

    Args:
      request: all that is given.
      describe: called if the environment's id does not determine the preset; without it the classic one is taken.
      groups: called if the run is deterministic; without it `learner.batch_size` is taken as it is.
      read_only: nothing is started under these settings, so a file may decide all but what is imported (`trust`).
      partial: these are not all layers, so what must hold between several settings is not checked yet.

    Raises:
      ConfigError: a line for every mistake of every layer.
    """
    mistakes = [*request.mistakes]
    above, inherited = layers = request.layers(mistakes)
    given = layers.given
    in_files = select_file_values(given)
    refusals = trust.refusals(in_files, merge_layers(given), request.confirmed, read_only=read_only)
    if any(trust.guard_at(path).always for path in refusals):  # nothing below may import it
        raise ConfigError.of(refusals.values())
    mistakes += refusals.values()
    spec = _algorithm(_highest(above), mistakes)
    mistakes += request.unknown_flag_errors(spec.name)
    preset, lowest = _preset(above, spec, None if refusals else describe, mistakes)
    good, refused = dict[str, GivenValue](), set[str]()
    for layer in (lowest, *above, [preset]):
        checked, bad = check_layer(layer, mistakes)
        if layer in inherited and ALGO in checked:  # of another algorithm, it has none of these
            checked = drop_open_settings(checked, good, _tree({**good, **checked}, spec), groups)
        good = merge_layers([*good.values(), *checked.values()])
        refused |= bad
    config = _tree(good, spec)
    good |= check_layer([*deterministic_layer(config, good, groups), *short_layer(config, good)], mistakes)[0]
    config = _tree(good, spec)
    origins = {path: given.where for path, given in good.items()}
    if not partial:
        with raise_as(ConfigError, f"algo {spec.name}: relations"):
            found = list(find_broken_relations(config, groups))
        mistakes += [_clash_error(relation, good) for relation in found if not refused.intersection(relation.paths)]
        with raise_as(ConfigError, f"algo {spec.name}: unused"):
            mistakes += remarks.find_unused_flags(config, origins)
    own_good, _ = check_layer(request.own_given, mistakes, request.own)
    if mistakes:
        raise ConfigError.of(mistakes)  # `describe` may have found some of them too
    if not partial:
        trust.confirm(given, config)
    flags_of_command = request.own.model_validate({path: one.value for path, one in own_good.items()})
    return LoadedSettings(config, flags_of_command, origins, tuple(remarks.notes(config, origins)), in_files)


def _algorithm(given: Mapping[str, GivenValue], mistakes: list[BeastError]) -> AlgorithmSpec:
    """The algorithm of the run, which a preset that is named may choose.

    Raises:
      ConfigError: there is no such algorithm; with all mistakes so far.
    """
    algo, preset = given[ALGO], str(given["preset"].value)
    if algo.where == DEFAULTS and preset:
        with suppress(ConfigError):  # for which it is refused later
            algo = GivenValue(ALGO, presets.load_preset(preset).get(ALGO, algo.value), f"preset {preset}")
    try:
        return spec_of(str(algo.value))
    except ConfigError as error:
        found = ConfigError(f"{algo.where}: {error}", path=ALGO, value=algo.value, layer=algo.where)
        raise ConfigError.of([*mistakes, found]) from error


def _preset(
    above: list[list[GivenValue]], spec: AlgorithmSpec, describe: Describe | None, mistakes: list[BeastError]
) -> tuple[GivenValue, list[GivenValue]]:
    """The preset that the layers name, or else the one that fits, and its settings."""
    given = _highest(above)
    preset = given["preset"]
    try:
        if not preset.value:
            env_id, ask = str(given["env.id"].value), partial(describe, given) if describe else None
            with_arguments = "env.kwargs" in given and bool(given["env.kwargs"].value)
            name = presets.choose_preset(env_id, spec, ask, with_arguments=with_arguments)
            preset = GivenValue("preset", name, f"chosen for {env_id} and {spec.name}")
        tree = presets.select_settings(spec, presets.load_preset(str(preset.value), spec))
        if not given["preset"].value and "-" not in preset.value and spec.name not in tree:
            why = "which has no preset of its own and gets the settings that suit IMPALA"
            preset = preset._replace(where=f"{preset.where}, {why}")
        return preset, list(flatten_tree(tree, f"preset {preset.value}", mistakes))
    except ConfigError as error:
        mistakes.append(error)
        return preset, []


def _highest(layers: list[list[GivenValue]]) -> dict[str, GivenValue]:
    """The highest value given for each setting, unchecked, with defaults for the settings that choose the preset."""
    chosen_by = {path: GivenValue(path, RUN[path].default, DEFAULTS) for path in NAMES}
    return chosen_by | merge_layers(entry for layer in layers for entry in layer)


def check_layer(
    layer: Sequence[GivenValue], mistakes: list[BeastError], own: type[Section] | None = None
) -> tuple[dict[str, GivenValue], set[str]]:
    """The valid values of one layer, parsed, and the paths of those that are refused; `own` are a command's flags."""
    good: dict[str, GivenValue] = {}
    refused: set[str] = set()
    for path, given in merge_layers(layer).items():
        try:
            model, field = (own, path) if own else home_of(path)
            parsed = model.model_validate(nest({field: given.value}))
        except ValidationError as error:
            detail = error.errors()[0]
            custom = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else ""
            sentence = f"{given.where}: got {short(given.value)}, {custom}" if custom else ""
            expected = "" if custom else expectation((settings_of(own) if own else TREE)[path])
            mistakes.append(ConfigError(sentence, path=path, value=given.value, expected=expected, layer=given.where))
            refused.add(path)
        else:
            good[path] = given._replace(value=value_at(parsed, field))
    return good, refused


def _tree(good: Mapping[str, GivenValue], spec: AlgorithmSpec) -> RunConfig:
    values = {path: given.value for path, given in good.items()}
    own = table_for(values, spec.name)
    try:
        return RunConfig.model_validate(nest({path: value for path, value in values.items() if path in own}))
    except ValidationError as error:  # each value is valid: a validator of the algorithm relates several
        sentence = f"algo {spec.name}: {'; '.join(detail['msg'] for detail in error.errors())}"
        raise ConfigError(sentence, path=ALGO, value=spec.name) from error


def _clash_error(relation: Relation, good: Mapping[str, GivenValue]) -> ConfigError:
    sources = dict.fromkeys(f"{good[path].where}" for path in relation.paths if path in good)
    return relation.mistake(", ".join(sources) or DEFAULTS)
