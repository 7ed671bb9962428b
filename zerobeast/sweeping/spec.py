"""The file of a sweep.

name: lr                         # of the sweep and its folder, <root>/<name>; default: the name of the file
seeds: [1, 2, 3]                 # train every combination with each seed
from: base:50000                 # start all runs from this one, as `beast train --from` does; default: none
settings:                        # for all runs, as in a file for `beast train --config`
  algo: ppo
  net.hidden_size: 64
vary:
  ppo.learning_rate: [3e-4, 1e-3]
  env, total_steps: [[CartPole-v1, 50000], [LunarLander-v3, 400000]]    # vary together
# `samples: 20` draws 20 random combinations, the same ones for the same `seed` (default 1). Values may then also be
# {uniform: [0, 0.02]}, {log_uniform: [1e-5, 1e-2]} or {integers: [1, 10]}.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zerobeast.common.config import trust
from zerobeast.common.config.confirmations import remember
from zerobeast.common.config.layers import GivenValue, leaves, read_yaml
from zerobeast.common.config.load import check_layer
from zerobeast.common.config.settings_table import SHORT_NAMES, TREE, is_section, settings_of
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files.regular_files import read_text_or_pipe
from zerobeast.common.settings import NO_GUARD, PLACE, Section, setting
from zerobeast.common.text import did_you_mean
from zerobeast.sweeping.search import Dimension, Values, draw_samples, grid, read_dimension

MAX_RUNS = 10_000
PARTS = ("from", "seeds", "settings", "vary")  #: entries that are no `SweepSettings`


class SweepSettings(Section):
    """What a sweep is, apart from the settings of its runs. Flags of the command override the file."""

    name: str = setting("", "name of the sweep and of its folder; empty: that of its file", decides=NO_GUARD)
    root: str = setting("runs", "folder that contains the sweep's folder", decides=PLACE)
    samples: int | None = setting(None, "number of random combinations; empty: every combination", ge=1, le=MAX_RUNS)
    seed: int = setting(1, "seed of the random combinations", ge=0, le=2**31 - 1)
    parallel: int | None = setting(None, "runs at a time; empty: as many as the cores allow", ge=1, le=4096)
    dry_run: bool = setting(default=False, meaning="list the runs without starting them")
    cores: int | None = setting(None, "cores per run; empty: 1, or an equal share for `parallel` runs", ge=1)


class Sweep(NamedTuple):
    """A file of a sweep, whose settings of runs are unchecked."""

    file: Path
    own: SweepSettings
    settings: Mapping[str, Any]  #: of all runs
    dimensions: tuple[Dimension, ...]
    seeds: tuple[int, ...]  #: each combination is trained with each; empty: with that of its settings
    parent: str  #: the run that all begin from; empty: none

    @property
    def folder(self) -> Path:
        """Where its runs are, and what is known about them."""
        return Path(self.own.root).expanduser() / (self.own.name or self.file.stem)

    def combinations(self) -> Iterator[tuple[str, Values]]:
        """What each run varies, and what else names it. All combinations come with one seed before the next.

        Raises:
          ConfigError: there are none, or too many.
        """
        if self.own.samples:
            drawn = draw_samples(self.dimensions, self.own.samples, self.own.seed, f"{self.file}: samples")
            found = [(f"sample-{number:03}", values) for number, values in enumerate(drawn, 1)]
        else:
            found = [("", values) for values in itertools.islice(grid(self.dimensions), MAX_RUNS + 1)]
        if len(found) * max(1, len(self.seeds)) > MAX_RUNS:
            raise ConfigError(f"{self.file}: vary: expected at most {MAX_RUNS} runs in all")
        for seed in self.seeds or (None,):
            yield from ((label, values if seed is None else {**values, "seed": seed}) for label, values in found)


def read_sweep(file: Path, flags: Sequence[GivenValue], mistakes: Sequence[BeastError] = ()) -> Sweep:
    """Read a file.

    Args:
      file: YAML.
      flags: values for `SweepSettings` that override those of the file.
      mistakes: in other flags.

    Raises:
      ConfigError: a line for every mistake, which names the entry.
    """
    tree, mistakes, known = read_yaml(file, str(file), read=read_text_or_pipe), [*mistakes], settings_of(SweepSettings)
    mistakes += (
        ConfigError(f"{file}: {key}: unknown entry{_hint(str(key))}", path=str(key), layer=f"{file}: {key}")
        for key in tree
        if key not in (*known, *PARTS)
    )
    given = [GivenValue(path, tree[path], f"{file}: {path}") for path in known if tree.get(path) is not None]
    remember(file, by_flag := {one.path: one.value for one in flags if one.path == "root"})
    alone = [one._replace(where=f"file {one.where}") for one in given if one.path == "root" and not by_flag]
    mistakes += map(without_kind, trust.refusals(alone, {}).values())
    good = {path: one.value for path, one in check_layer([*given, *flags], mistakes, SweepSettings)[0].items()}
    own = SweepSettings.model_validate(good)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name := own.name or file.stem):
        sentence = f"{file}: name {name!r}: expected at most 100 letters, digits, '.', '_' and '-'"
        mistakes.append(ConfigError(sentence, path="name", value=name))
    if "seed" in good and not own.samples:
        sentence = f"{file}: seed: only used with `samples`; `seeds` has the seeds of the runs"
        mistakes.append(ConfigError(sentence, path="seed", value=good["seed"]))
    dimensions = tuple(_dimensions(_mapping(tree, "vary", file, mistakes), f"{file}: vary", mistakes))
    seeds = tuple(_seeds(tree.get("seeds"), f"{file}: seeds", mistakes))
    _refuse_twice(dimensions, seeds, mistakes)
    if not mistakes and not dimensions and not seeds:
        sentence = f"{file}: vary: nothing varies; expected a setting with its values, or `seeds`"
        mistakes.append(ConfigError(sentence, path="vary"))
    settings = _mapping(tree, "settings", file, mistakes)
    if not isinstance(parent := "" if tree.get("from") is None else tree["from"], str):
        expected = "a run, such as base, base:50000 or base:best"
        mistakes.append(ConfigError(path="from", value=parent, expected=expected, layer=f"{file}: from"))
    if mistakes:
        raise ConfigError.of(mistakes)
    return Sweep(file, own, settings, dimensions, seeds, parent)


def without_kind(error: BeastError) -> ConfigError:
    """The same error, of a layer that is called as its file alone."""
    return ConfigError(str(error).removeprefix("file ")).about(error)


def _hint(key: str) -> str:
    """What an unknown entry may have meant."""
    if SHORT_NAMES.get(key, key) in TREE or is_section(key):
        return "; settings of the runs belong in `settings`"
    return did_you_mean(key, [*settings_of(SweepSettings), *PARTS])


def _mapping(tree: Mapping[str, Any], name: str, file: Path, mistakes: list[BeastError]) -> dict[str, Any]:
    part = tree.get(name)
    if part is None or isinstance(part, dict):
        return part or {}
    expected = "settings such as 'total_steps: 50000'"
    mistakes.append(ConfigError(path=name, value=part, expected=expected, layer=f"{file}: {name}"))
    return {}


def _dimensions(tree: Mapping[Any, Any], where: str, mistakes: list[BeastError]) -> Iterator[Dimension]:
    for path, entry in leaves(tree):
        try:
            yield read_dimension(path, entry, f"{where}: {path}")
        except ConfigError as error:
            mistakes.append(error)


def _seeds(given: Any, where: str, mistakes: list[BeastError]) -> Iterator[int]:
    if isinstance(given, list) and given and all(type(seed) is int and 0 <= seed < 2**31 for seed in given):
        yield from given
    elif given is not None:
        expected = "a list of whole numbers such as [1, 2, 3]"
        mistakes.append(ConfigError(path="seeds", value=given, expected=expected, layer=where))


def _refuse_twice(dimensions: tuple[Dimension, ...], seeds: tuple[int, ...], mistakes: list[BeastError]) -> None:
    """Refuse a setting that stands in several entries: one of them would be without effect."""
    at: dict[str, str] = {"seed": "seeds"} if seeds else {}
    for each in dimensions:
        for path in each.paths:
            if path in at:
                sentence = f"{each.where}: {path} also varies in {at[path]}; expected it once"
                mistakes.append(ConfigError(sentence, path=path, layer=each.where))
            at[path] = each.where
