"""What must hold between settings that are each valid on their own.

What `deterministic` requires of others is also a layer: above the preset and below everything the user gives.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerobeast.common.config.describe import as_text
from zerobeast.common.config.layers import Given
from zerobeast.common.config.table import value_at
from zerobeast.common.settings import PAST, Relation, RunConfig

#: for actions before they are squashed; `zerobeast.rl.ops.gaussian` softly bounds larger values
MAX_SQUASHED_LOG_STD = 0.0
RESCALED = ("value_rescaling", "normalize_returns")  #: settings by which values are not in units of rewards
DETERMINISTIC = "deterministic"
ONE_THREAD = {"device": "cpu", "threads": 1, "precision": "float32"}

#: counts the env groups of a run on this machine
Groups = Callable[[RunConfig], int]


def broken(config: RunConfig, groups: Groups | None) -> Iterator[Relation]:
    """The relations that are broken; `groups` as for `implied`."""
    envs, rows = config.actor.envs_per_group, config.broker.max_batch_rows
    if envs > rows:
        yield Relation(
            ("broker.max_batch_rows", "actor.envs_per_group"),
            f"broker.max_batch_rows {rows} is below actor.envs_per_group {envs}: no request would fit a batch",
        )
    yield from _processes(config)
    yield from _ranks(config)
    yield from config.algorithm.relations(config.section, config)
    rule = config.sync.parsed.name
    if config.deterministic and rule not in ("always", "never"):
        yield Relation(
            ("sync.rule", "deterministic"),
            f"sync.rule {config.sync.rule!r} with deterministic: expected always or never, because news of a version "
            f"come whenever they do",
        )
    if config.net.squash_actions and config.net.action_log_std > MAX_SQUASHED_LOG_STD:
        yield Relation(
            ("net.action_log_std", "net.squash_actions"),
            f"net.action_log_std {config.net.action_log_std} with net.squash_actions: expected at most "
            f"{MAX_SQUASHED_LOG_STD:g}, the widest that squashed actions begin with",
        )
    if config.net.memory != "none":
        yield from _memory(config)
    yield from _opponent(config)
    if config.security.secret and not config.security.keys:
        yield Relation(
            ("security.secret", "security.keys"),
            "security.secret is of no use without security.keys, the folder of the public ones",
        )
    for path, (value, why) in implied(config, groups).items():
        if (given := value_at(config, path)) != value:
            expected = f"expected {as_text(value)}, so that {why}"
            yield Relation((path, DETERMINISTIC), f"{path} {as_text(given)} with {DETERMINISTIC}: {expected}")


def _memory(config: RunConfig) -> Iterator[Relation]:
    """The relations of the episodic memory that are broken."""
    net, own, steps = config.net, config.memory, config.learner.unroll_length
    if not net.use_lstm:
        yield Relation(
            ("net.use_lstm", "net.memory"),
            f"net.use_lstm false with net.memory {net.memory}: expected true, because it holds states of an LSTM",
        )
    if net.memory_neighbours > net.memory_size:
        yield Relation(
            ("net.memory_neighbours", "net.memory_size"),
            f"net.memory_neighbours {net.memory_neighbours} is above net.memory_size {net.memory_size}: expected at "
            f"most as many as there are entries",
        )
    if steps < 2:
        yield Relation(
            ("learner.unroll_length", "net.memory"),
            f"learner.unroll_length {steps} with net.memory {net.memory}: expected at least 2, because only steps with "
            f"a successor in their rollout are remembered",
        )
    if own.familiar < (least := own.refresh_every * min(own.steps_per_batch, config.learner.batch_size)):
        yield Relation(
            ("memory.familiar", "memory.refresh_every", "memory.steps_per_batch"),
            f"memory.familiar {own.familiar}: expected at least {least}, memory.refresh_every times "
            f"memory.steps_per_batch, because steps would leave before their rarity is measured",
        )
    if net.memory == "momentum" and not own.contrastive_rate:
        yield Relation(
            ("memory.contrastive_rate", "net.memory"),
            "memory.contrastive_rate 0.0 with net.memory momentum: expected more, because that loss is its signal",
        )
    if net.memory == "td_error":
        yield from _unfit_values(config)
    yield from _replayed(config)


def _unfit_values(config: RunConfig) -> Iterator[Relation]:
    """Settings with which values give no TD error."""
    algo, what = config.section, "net.memory td_error with"
    for name in RESCALED:
        if getattr(config.algorithm, name, False):
            sentence = f"{what} {algo}.{name}: expected another signal, because values are not in units of rewards"
            yield Relation(("net.memory", f"{algo}.{name}"), sentence)
    if getattr(config.algorithm, "popart", False) and len(config.env.tasks) > 1:
        sentence = f"{what} {algo}.popart and several environments: expected another signal, because values are sent "
        yield Relation(("net.memory", f"{algo}.popart"), f"{sentence}of the first one alone")


def _replayed(config: RunConfig) -> Iterator[Relation]:
    """The relations of `memory.replay_share` that are broken."""
    share, algo = config.memory.replay_share, config.section
    if share and not config.algorithm.corrects_age:
        yield Relation(
            ("memory.replay_share", "algo"),
            f"memory.replay_share {share} with algo {algo}: expected 0, because it learns from new rollouts alone, or "
            f"has a replay of its own",
        )
    if share and getattr(config.algorithm, "replay_share", 0):
        yield Relation(
            ("memory.replay_share", f"{algo}.replay_share"),
            f"memory.replay_share {share} with {algo}.replay_share: expected 0 for one of them, because each would "
            f"replay what the other has replayed",
        )


def _opponent(config: RunConfig) -> Iterator[Relation]:
    """The relations of `env.opponent` that are broken."""
    if config.env.opponents and not config.env.opponent:
        yield Relation(
            ("env.opponents", "env.opponent"),
            f"env.opponents {','.join(map(str, config.env.opponents))} without env.opponent: expected none, because "
            f"nobody acts for them",
        )
    if config.env.opponent == PAST and not config.learner.checkpoint_every_steps:
        yield Relation(
            ("learner.checkpoint_every_steps", "env.opponent"),
            "learner.checkpoint_every_steps 0 with env.opponent past: expected more, because these checkpoints are "
            "played against",
        )
    if config.deterministic and config.env.opponent:
        yield Relation(
            ("env.opponent", DETERMINISTIC),
            f"env.opponent {config.env.opponent} with {DETERMINISTIC}: expected none, because opponents are drawn",
        )


def _ranks(config: RunConfig) -> Iterator[Relation]:
    """The relations of `learner.ranks` that are broken."""
    ranks, batch = config.learner.ranks, config.learner.batch_size
    if batch % ranks:
        yield Relation(
            ("learner.batch_size", "learner.ranks"),
            f"learner.batch_size {batch} with learner.ranks {ranks}: expected a multiple, because each learns from as "
            f"many rollouts",
        )
    alone = {
        "sync.rule": (config.sync.parsed.measured, "the first rank gets no rollouts of the others"),
        DETERMINISTIC: (config.deterministic, "it does not order what several ranks receive"),
        "local.placement": (config.local.placement in ("serial", "serve"), "it has one learner"),
        "net.memory": (config.net.memory != "none", "each rank would store only steps of its own rollouts"),
    }
    for path, (used, why) in alone.items():
        if ranks > 1 and used:
            given = as_text(value_at(config, path))
            yield Relation(("learner.ranks", path), f"learner.ranks {ranks} with {path} {given}: expected 1, as {why}")


def _processes(config: RunConfig) -> Iterator[Relation]:
    """The relations of `local` and `evaluate` that are broken."""
    servers, actors = config.local.env_servers, config.local.actors
    if servers > actors:
        yield Relation(
            ("local.env_servers", "local.actors"),
            f"local.env_servers {servers} is above local.actors {actors}: an actor here uses one, the rest would idle",
        )
    path = "evaluate.every_steps" if config.evaluate.every_steps else "evaluate.times"
    if config.evaluates and config.local.placement == "serial":
        yield Relation(
            ("local.placement", path),
            f"{path} {value_at(config, path)} with local.placement serial: expected 0, as an evaluator is a process",
        )
    if config.evaluates and config.deterministic and config.stop_at_return is not None:
        yield Relation(
            ("stop_at_return", path, DETERMINISTIC),
            f"stop_at_return {config.stop_at_return:g} with {DETERMINISTIC} and {path} {value_at(config, path)}: "
            f"expected at most two of the three, as the end would depend on how long an evaluation takes",
        )


def implied(config: RunConfig, groups: Groups | None) -> dict[str, tuple[Any, str]]:
    """Setting -> the value that it must have, and why; empty for a run that is not deterministic.

    Args:
      config: of the run.
      groups: without it `learner.batch_size` is left out.
    """
    if not config.deterministic:
        return {}
    in_turn, same = "acting and learning take turns", "sums are made in the same order"
    needed: dict[str, tuple[Any, str]] = {
        "actor.collect_ahead": (False, in_turn),
        "learner.window": (1, in_turn),
        "learner.publish_every": (1, "every version acts"),
        "broker.max_batch_rows": (config.actor.envs_per_group, "the request of a group is a batch of its own"),
    }
    for role in ("learner", "broker"):
        needed |= {f"{role}.{name}": (value, same) for name, value in ONE_THREAD.items()}
    if groups is not None:
        envs = groups(config) * config.actor.envs_per_group
        needed["learner.batch_size"] = envs, "a batch has one rollout of every environment of the run"
    return needed


def deterministic_layer(config: RunConfig, origins: Mapping[str, Given], groups: Groups | None) -> Iterator[Given]:
    """The implied values of settings that the user leaves open."""
    for path, (value, _) in implied(config, groups).items():
        if path not in origins or origins[path].where.startswith("preset "):
            yield Given(path, value, f"{DETERMINISTIC} true: {path}")
