"""Filling the tree: default < preset < what `deterministic` needs < YAML file < environment < flag.

    config = load(sys.argv[1:], os.environ)

Several --config files are read in order, each over the one before; BEAST_CONFIG is used if there is no --config. The
entries of a mapping, such as `env.kwargs`, are added to those of the layers below (`Given.over`).
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
from zerobeast.common.config.layers import Given, by_files, from_tree, merged
from zerobeast.common.config.relations import Groups, broken, deterministic_layer, reopened, short_layer
from zerobeast.common.config.request import ALGO, Request
from zerobeast.common.config.table import LEVELS, NAMES, RUN, TREE, home_of, nested, settings_of, table_for, value_at
from zerobeast.common.errors import BeastError, ConfigError, raising
from zerobeast.common.settings import AlgorithmSpec, Relation, RunConfig, Section, spec_of
from zerobeast.common.wire import EnvSpec, short

__all__ = ["Loaded", "Request", "differences", "dump", "gather", "load", "resolve", "settings_help"]

log = logging.getLogger(__name__)
DEFAULTS = "the defaults"

#: returns the spec of the environment that settings name; takes path of a setting -> its unchecked `Given`
Describe = Callable[[Mapping[str, Given]], EnvSpec]


class Loaded(NamedTuple):
    """The settings of a run and where they come from."""

    config: RunConfig
    own: Any  #: an instance of the request's `own`
    origins: Mapping[str, str]  #: path -> layer, of every setting that a layer gives
    notes: tuple[str, ...]  #: remarks for the log, such as on flags without effect
    in_files: tuple[Given, ...] = ()  #: what files alone give

    def for_its_env(self, file: str) -> "Loaded":
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
        return Loaded(config, self.own, origins, (*self.notes, note), in_files)


def load(argv: Sequence[str], environ: Mapping[str, str]) -> RunConfig:
    """The settings of a run alone, as `resolve` finds them; its notes are logged."""
    loaded = gather(argv, environ)
    for note in loaded.notes:
        log.warning("%s", note)
    return loaded.config


def gather(argv: Sequence[str], environ: Mapping[str, str], *, own: type[Section] = Section, **how: Any) -> Loaded:
    """As `resolve`, of flags and variables alone; `how` is for `resolve`."""
    return resolve(Request.of_flags(argv, environ, own), **how)


def resolve(
    request: Request,
    *,
    describe: Describe | None = None,
    groups: Groups | None = None,
    read_only: bool = False,
    partial: bool = False,
) -> Loaded:
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
    in_files = by_files(given)
    refusals = trust.refusals(in_files, merged(given), request.confirmed, read_only=read_only)
    if any(trust.guard_at(path).always for path in refusals):  # nothing below may import it
        raise ConfigError.of(refusals.values())
    mistakes += refusals.values()
    spec = _algorithm(_highest(above), mistakes)
    mistakes += request.refused(spec.name)
    preset, lowest = _preset(above, spec, None if refusals else describe, mistakes)
    good, refused = dict[str, Given](), set[str]()
    for layer in (lowest, *above, [preset]):
        checked, bad = check(layer, mistakes)
        if layer in inherited and ALGO in checked:  # of another algorithm, it has none of these
            checked = reopened(checked, good, _tree({**good, **checked}, spec), groups)
        good = merged([*good.values(), *checked.values()])
        refused |= bad
    config = _tree(good, spec)
    good |= check([*deterministic_layer(config, good, groups), *short_layer(config, good)], mistakes)[0]
    config = _tree(good, spec)
    origins = {path: given.where for path, given in good.items()}
    if not partial:
        with raising(ConfigError, f"algo {spec.name}: relations"):
            found = list(broken(config, groups))
        mistakes += [_broken(relation, good) for relation in found if not refused.intersection(relation.paths)]
        with raising(ConfigError, f"algo {spec.name}: unused"):
            mistakes += remarks.unused(config, origins)
    own_good, _ = check(request.own_given, mistakes, request.own)
    if mistakes:
        raise ConfigError.of(mistakes)  # `describe` may have found some of them too
    if not partial:
        trust.confirm(given, config)
    flags_of_command = request.own.model_validate({path: one.value for path, one in own_good.items()})
    return Loaded(config, flags_of_command, origins, tuple(remarks.notes(config, origins)), in_files)


def _algorithm(given: Mapping[str, Given], mistakes: list[BeastError]) -> AlgorithmSpec:
    """The algorithm of the run, which a preset that is named may choose.

    Raises:
      ConfigError: there is no such algorithm; with all mistakes so far.
    """
    algo, preset = given[ALGO], str(given["preset"].value)
    if algo.where == DEFAULTS and preset:
        with suppress(ConfigError):  # for which it is refused later
            algo = Given(ALGO, presets.read(preset).get(ALGO, algo.value), f"preset {preset}")
    try:
        return spec_of(str(algo.value))
    except ConfigError as error:
        found = ConfigError(f"{algo.where}: {error}", path=ALGO, value=algo.value, layer=algo.where)
        raise ConfigError.of([*mistakes, found]) from error


def _preset(
    above: list[list[Given]], spec: AlgorithmSpec, describe: Describe | None, mistakes: list[BeastError]
) -> tuple[Given, list[Given]]:
    """The preset that the layers name, or else the one that fits, and its settings."""
    given = _highest(above)
    preset = given["preset"]
    try:
        if not preset.value:
            env_id, ask = str(given["env.id"].value), partial(describe, given) if describe else None
            with_arguments = "env.kwargs" in given and bool(given["env.kwargs"].value)
            name = presets.fitting(env_id, spec, ask, with_arguments=with_arguments)
            preset = Given("preset", name, f"chosen for {env_id} and {spec.name}")
        tree = presets.of(spec, presets.read(str(preset.value), spec))
        if not given["preset"].value and "-" not in preset.value and spec.name not in tree:
            why = "which has no preset of its own and gets the settings that suit IMPALA"
            preset = preset._replace(where=f"{preset.where}, {why}")
        return preset, list(from_tree(tree, f"preset {preset.value}", mistakes))
    except ConfigError as error:
        mistakes.append(error)
        return preset, []


def _highest(layers: list[list[Given]]) -> dict[str, Given]:
    """The highest value given for each setting, unchecked, with defaults for the settings that choose the preset."""
    chosen_by = {path: Given(path, RUN[path].default, DEFAULTS) for path in NAMES}
    return chosen_by | merged(entry for layer in layers for entry in layer)


def check(
    layer: Sequence[Given], mistakes: list[BeastError], own: type[Section] | None = None
) -> tuple[dict[str, Given], set[str]]:
    """The valid values of one layer, parsed, and the paths of those that are refused; `own` are a command's flags."""
    good: dict[str, Given] = {}
    refused: set[str] = set()
    for path, given in merged(layer).items():
        try:
            model, field = (own, path) if own else home_of(path)
            parsed = model.model_validate(nested({field: given.value}))
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


def _tree(good: Mapping[str, Given], spec: AlgorithmSpec) -> RunConfig:
    values = {path: given.value for path, given in good.items()}
    own = table_for(values, spec.name)
    try:
        return RunConfig.model_validate(nested({path: value for path, value in values.items() if path in own}))
    except ValidationError as error:  # each value is valid: a validator of the algorithm relates several
        sentence = f"algo {spec.name}: {'; '.join(detail['msg'] for detail in error.errors())}"
        raise ConfigError(sentence, path=ALGO, value=spec.name) from error


def _broken(relation: Relation, good: Mapping[str, Given]) -> ConfigError:
    sources = dict.fromkeys(f"{good[path].where}" for path in relation.paths if path in good)
    return relation.mistake(", ".join(sources) or DEFAULTS)
