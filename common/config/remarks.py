"""Remarks on settings that are all valid: what has no effect, and what may surprise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zerobeast.common.algos.registry import ALGORITHMS
from zerobeast.common.algos.replay_settings import QSettings
from zerobeast.common.algos.settings import UNUSED, OptimizerSettings
from zerobeast.common.config import preset, torchbeast
from zerobeast.common.config.describe import source
from zerobeast.common.config.expectation import shown
from zerobeast.common.config.flags import CommandLine
from zerobeast.common.config.layers import from_tree
from zerobeast.common.config.table import TREE, value_at
from zerobeast.common.config.tree import RunConfig

GIVEN = ("flag ", "environment ")  #: first words of the origins of what was given for this start


def unused(config: RunConfig, origins: Mapping[str, str]) -> Iterator[str]:
    """A mistake for every flag or variable that sets something the optimiser does not have."""
    path = f"{config.algo}.optimizer"
    optimizer = value_at(config, path) if path in TREE else ""
    for name in UNUSED.get(optimizer, ()):
        where, chosen_by = origins.get(f"{config.algo}.{name}", ""), source(origins.get(path, "the default"))
        if where.startswith(GIVEN):
            yield f"{where}: {path} is {optimizer} ({chosen_by}), which has no {name}; rmsprop has"


def idle(config: RunConfig, origins: Mapping[str, str]) -> Iterator[str]:
    """A sentence for every flag that sets something of another algorithm."""
    others = ALGORITHMS.keys() - {config.algo}
    for path, where in origins.items():
        if path.partition(".")[0] in others and where.startswith("flag "):
            yield f"{where.removeprefix('flag ')} has no effect: it sets {path}, and this run's algo is {config.algo}"


def ladder(config: RunConfig) -> Iterator[str]:
    """A sentence if the exploration ladder may have places that no environment takes: those that explore least."""
    algo, settings, envs = config.algo, getattr(config, config.algo), config.actor.envs_per_group
    if not (isinstance(settings, QSettings) and settings.exploration == "ladder"):
        return
    places = settings.exploration_places
    if config.local.placement == "serve":
        yield (
            f"{algo}.exploration ladder: a broker's agents take its {places} places in turn, and one agent alone takes "
            f"0.4 of its actions at random for ever; with fewer than {places} agents give --{algo}.exploration annealed"
        )
    elif places > envs:
        yield (
            f"{algo}.exploration_places {places} is above actor.envs_per_group {envs}: "
            f"a broker with one env group has no environment for the places that explore least"
        )


def raw_frames(config: RunConfig) -> Iterator[str]:
    """A sentence for every Atari game that a module makes, without what Atari games get here."""
    for task in config.env.tasks:
        module, _, game = task.partition(":")
        if preset.fitting(game, config.algo).startswith("atari"):
            yield f"env.id {task} has raw colour frames, as {module} makes them: --env {game} has Atari's usual ones"


def held(config: RunConfig) -> Iterator[str]:
    """A sentence if PPO hardly reaches the divergence in sync.rule: ratios of 1 + clip mean one of about clip^2 / 2."""
    rule, settings = config.sync.parsed, config.ppo
    reached = settings.clip**2 / 2
    if config.algo == "ppo" and rule.measured and rule.value > reached:
        yield (
            f"sync.rule {config.sync.rule} may never be due: ppo.clip {settings.clip:g} keeps the policy near the one "
            f"that acts, at divergences of about {reached:.2g}"
        )


def jump(config: RunConfig, before: OptimizerSettings, total_before: int, steps: int) -> str:
    """A sentence if the learning rate of a run that continues after `steps` jumps, or is not what was asked for.

    Until now the run had the settings `before`, with `total_before` agent steps in all.
    """
    algo, settings = config.algo, getattr(config, config.algo)
    was, now = before.learning_rate_at(steps, total_before), settings.learning_rate_at(steps, config.total_steps)
    if settings.schedule == "constant" or was == now:
        return ""
    asked = settings.learning_rate if settings.learning_rate != before.learning_rate else now
    return (
        f"{algo}.schedule linear: the learning rate, {was:.3g} before, continues at {now:.3g} and falls to 0 "
        f"at total_steps {config.total_steps}; --{algo}.schedule constant --{algo}.learning_rate {asked:.3g} holds it"
    )


def other_defaults(config: RunConfig, origins: Mapping[str, str], line: CommandLine) -> Iterator[str]:
    """A sentence about the defaults that are not TorchBeast's, if its flags are used without its preset."""
    if not line.torchbeasts or config.preset == torchbeast.PRESET:
        return
    others = ALGORITHMS.keys() - {config.algo}
    differences = [
        f"{given.path} {shown(ours)} (there {shown(given.value)})"
        for given in from_tree(preset.read(torchbeast.PRESET), "", [])
        if given.path.partition(".")[0] not in others
        and not origins.get(given.path, "").startswith((*GIVEN, "file "))
        and (ours := value_at(config, given.path)) != given.value
    ]
    if differences:
        yield (
            f"{line.torchbeasts[0]} is a flag of TorchBeast, and only --preset {torchbeast.PRESET} has its defaults; "
            f"here other defaults are {', '.join(differences)}"
        )
