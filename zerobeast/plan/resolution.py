"""From what was given to the settings of a run.

A run is its folder. A new name makes one; an existing name continues it with its saved settings, which new flags
override; --fresh moves the old folder aside and starts over.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from zerobeast.common.config import confirmations
from zerobeast.common.config.describe import by_origin
from zerobeast.common.config.layers import flatten_tree, read_yaml
from zerobeast.common.config.load import LoadedSettings, Request, differences, resolve
from zerobeast.common.config.settings_table import NAMES, RUN, TREE, topic_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.process.terminal import say
from zerobeast.common.settings import CODE, NO_GUARD, RunConfig, Section, setting
from zerobeast.common.settings import spec_of as spec_named
from zerobeast.common.settings.facts import About, facts_of
from zerobeast.common.text import as_text, did_you_mean
from zerobeast.plan import run_folder
from zerobeast.plan.machine import fit_machine
from zerobeast.plan.parent import Parent
from zerobeast.plan.placement import GPUS, groups_of, placement_of
from zerobeast.plan.spaces import fetch_spec
from zerobeast.tracking.sinks import PROJECT, load_tracker

Say = Callable[[str], None]


class RunFlags(Section):
    """Flags of commands that begin or continue a run."""

    fresh: bool = setting(default=False, meaning="start over; an existing run of that name is moved aside, not deleted")
    trust_folder: bool = setting(default=False, meaning="resume a run whose folder belongs to another user")
    track: str = setting(
        "", "send the run to an experiment tracker: trackio, wandb, or your own module:Class", decides=CODE
    )
    track_project: str = setting(PROJECT, "project of the run in the tracker", decides=NO_GUARD)
    from_run: str = setting(
        "", "start a new run from the weights of RUN, RUN:<agent steps> or RUN:best; short: --from", decides=NO_GUARD
    )


Flags = TypeVar("Flags", bound=RunFlags)


class ResolvedRun(NamedTuple, Generic[Flags]):
    config: RunConfig
    flags: Flags
    saved: RunConfig | None  #: settings of the run that continues
    origins: Mapping[str, str]  #: path -> layer, of every setting that a layer gives
    parent: Parent | None = None  #: whose weights a new run begins with


def resolve_locally(request: Request, *, partial: bool = False) -> LoadedSettings:
    """As `resolve`, on the machine on which the run starts: its environments are made if settings depend on them."""
    return resolve(request, describe=fetch_spec, groups=groups_of, partial=partial)


def resolve_run(
    request: Request, now: datetime, *, say: Say = say, parent: Parent | None = None, here: bool = True
) -> ResolvedRun[Any]:
    """The settings of a run: what is given now overrides what the run of that name was saved with.

    Args:
      request: with flags of a command, `RunFlags` or more.
      now: for the name of a run without one.
      say: takes remarks.
      parent: what `from_run` names; its settings are those of the new run as well, below all that are given.
      here: whether this machine is to play, so that a new run may have numbers that fit it.

    Raises:
      ConfigError: a line for every mistake.
    """
    if parent is not None:
        return _resolve_fork(parent, request, now, say)
    given = resolve(request, groups=groups_of, partial=True)
    identity = {"name": given.config.name or run_folder.default_name(given.config, now), "root": given.config.root}
    file = given.config.model_copy(update=identity).folder / run_files.CONFIG
    if given.config.name and not file.exists() and "env.id" not in given.origins:
        place = file.parents[1].absolute()
        names = [folder.name for folder in place.glob("*/") if not folder.is_symlink()]
        near = did_you_mean(file.parent.name, names)
        sentence = f"name {given.config.name!r}: no such run in {place}, and a new one needs --env{near}"
        raise ConfigError(sentence, path="name", value=given.config.name, beside=["env.id"])
    continues = file.exists() and not given.own.fresh
    label = f"file {file}"
    tree = read_yaml(file, label) if continues else {}
    algo = tree.get("algo", given.config.algo)
    if "algo" in given.origins and algo != given.config.algo and given.config.section not in tree:
        raise run_folder.refusal("algo", given.config.name, algo, given.config.algo)
    tree |= identity  # wherever it was when it began
    loaded = resolve_locally(request.of_run(label, tree) if continues else request)
    saved = _load_saved(label, tree, loaded.config.algo) if continues else None
    _refuse(loaded)
    loaded = fit_machine(loaded) if here and not continues else loaded
    for note in (*loaded.notes, *_find_ineffective(given)):
        say(note)
    if saved and loaded.config.preset != saved.preset:
        say(f"preset {loaded.config.preset} has no effect: a resumed run keeps the settings of {file}")
        identity["preset"] = saved.preset
    return ResolvedRun(loaded.config.model_copy(update=identity), loaded.own, saved, loaded.origins)


def _load_saved(label: str, tree: Mapping[str, Any], algo: str) -> RunConfig:
    """The settings in the file of a run that continues.

    Args:
      label: the layer's name.
      tree: those settings.
      algo: what the run's algorithm is imported by, if it is no installed one: nothing else that the file refers to is.
    """
    others = [one for one in flatten_tree(tree, "", []) if one.path != "algo"]
    digests = frozenset(digest for one in others for digest in confirmations.digest_values(one.path, one.value))
    own = {"algo": algo} if ":" in str(tree.get("algo")) else {}
    request = Request(trees={label: tree}, confirmed=digests).with_values(own, "this start")
    return resolve(request, read_only=True).config


def _resolve_fork(parent: Parent, request: Request, now: datetime, say: Say) -> ResolvedRun[Any]:
    """As `resolve_run`, for a new run that begins with the weights of another."""
    label = f"file {parent.file}"
    loaded = resolve_locally(request.with_trees({label: parent.settings(find_section(request.algo))})).for_its_env(
        label
    )
    theirs = [path for path in ("name", "root") if loaded.origins.get(path, label).startswith(label)]
    config = loaded.config.model_copy(update={**{path: RUN[path].default for path in theirs}, "parent": parent.entry})
    config = config.model_copy(update={"name": config.name or run_folder.default_name(config, now)})
    if run_folder.has_checkpoint(config.folder) and not loaded.own.fresh:
        raise ConfigError(
            f"name {config.name!r}: this run exists in {config.folder.parent.absolute()}, and --from starts a new one: "
            f"give another --name, or --fresh; without --from the run is resumed",
            path="name",
            value=config.name,
        )
    _refuse(loaded._replace(config=config))
    for note in (*loaded.notes, *_find_ineffective(loaded, but=label)):
        say(note)
    origins = {**loaded.origins, **dict.fromkeys(theirs, run_folder.CHOSEN_ORIGIN)}
    return ResolvedRun(config, loaded.own, None, origins, parent)


def find_section(algo: str) -> str:
    """The section of an algorithm; empty if there is none of that name."""
    with contextlib.suppress(ConfigError):  # what is wrong with it is reported when it is read
        return spec_named(algo).name if algo else ""
    return ""


def _refuse(loaded: LoadedSettings) -> None:
    """Raise ConfigError for a tracker that there is not, another user's folder, and environments that nobody plays."""
    if loaded.own.track:
        load_tracker(loaded.own.track)
    config = loaded.config
    if config.name and not loaded.own.trust_folder:
        run_folder.refuse_foreign(config.folder)
    for role in ("learner", "broker"):
        path, device = f"{role}.device", getattr(config, role).device
        if device.startswith("cuda") and not any(place.exists() for place in GPUS):
            sentence = f"{path} {device}: this machine has no GPU; expected cpu, or auto"
            raise ConfigError(sentence, path=path, value=device, expected="cpu, or auto")
    groups, tasks, ranks = groups_of(config), len(config.env.tasks), config.learner.ranks
    players = 0 if placement_of(config).name == "serve" else tasks
    for least, what in ((ranks * (ranks > 1), "of learner.ranks"), (players, "environment of env.id")):
        if groups < least:
            given = f"actor.env_groups {config.actor.env_groups}: {groups} env groups in total"
            expected = f"at least {least}: one for each {what}"
            sentence = f"{given}, expected {expected}"
            raise ConfigError(sentence, path="actor.env_groups", value=config.actor.env_groups, expected=expected)


def describe_values(config: RunConfig, origins: Mapping[str, str]) -> Iterator[str]:
    """A line for each layer that gives values, and one on where to read the rest."""
    printed = {*NAMES, *(path for path in origins if topic_of(path) is About.IDENTITY and path != "seed")}
    for origin, values in by_origin(config, origins).items():
        if texts := [f"{path} {as_text(value)}" for path, value in values.items() if path not in printed]:
            yield f"{origin}: {', '.join(texts)}"
    padding = {f"env.{name}": size for name, size in config.env.padding.items() if f"env.{name}" not in origins}
    if config.env.agents > 1:
        yield f"{config.env.agents} agents per environment, {config.actor.envs_per_group} per env group"
    if padding:
        sizes = ", ".join(f"{path} {as_text(size)}" for path, size in padding.items())
        yield f"environments of unequal sizes; the smaller ones are padded: {sizes}"
    chosen = f" was {origins['preset']}" if origins["preset"].startswith("chosen") else ""
    yield f"preset {config.preset}{chosen}; all other settings have their defaults: --help shows them"


def _find_ineffective(given: LoadedSettings, but: str = "chosen") -> Iterator[str]:
    """A sentence for every setting without effect, of any layer whose origin does not begin with `but`."""
    placement = placement_of(given.config)
    for path in differences(given.config):
        if given.origins[path].startswith(but):
            continue
        idle = facts_of(TREE[path]).idle
        if placement.name in idle.placements:
            yield f"{given.origins[path]} has no effect: {idle.why or f'the placement is {placement.name}'}"
