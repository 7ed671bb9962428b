"""What must hold between settings that are each valid on their own.

What `deterministic` requires of others is also a layer: above the preset and below everything the user gives.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from zerobeast.common.config.layers import GivenValue
from zerobeast.common.config.settings_table import TREE, table_of, value_at
from zerobeast.common.settings import PAST_OPPONENT, Relation, RunConfig
from zerobeast.common.settings.facts import facts_of
from zerobeast.common.text import as_text

#: for actions before they are squashed; `zerobeast.rl.ops.gaussian` softly bounds larger values
MAX_SQUASHED_LOG_STD = 0.0
DETERMINISTIC = "deterministic"
ONE_THREAD = {"device": "cpu", "threads": 1, "precision": "float32"}

#: counts the env groups of a run on this machine
Groups = Callable[[RunConfig], int]

Clash = tuple[str, ...]  #: settings that do not fit together, and what is expected of the first one


def find_broken_relations(config: RunConfig, groups: Groups | None) -> Iterator[Relation]:
    """The relations that are broken; `groups` as for `deterministic_values`."""
    yield from config.algorithm.relations(config.section, config)
    own = (_run_clashes, _evaluations, _ranks, _memory, _opponent)
    for *paths, expected in chain(*(clashes(config) for clashes in own), _deterministic(config, groups)):
        yield Relation.of({path: value_at(config, path) for path in paths}, expected)


def _run_clashes(config: RunConfig) -> Iterator[Clash]:
    """Settings of a run that clash."""
    if config.actor.envs_per_group > config.broker.max_batch_rows:
        yield "broker.max_batch_rows", "actor.envs_per_group", "at least that many, otherwise no request fits a batch"
    if config.local.env_servers > config.local.actors:
        yield "local.env_servers", "local.actors", "at most that many: each actor uses one, and the rest would idle"
    if config.net.squash_actions and config.net.action_log_std > MAX_SQUASHED_LOG_STD:
        widest = f"at most {MAX_SQUASHED_LOG_STD:g}, the largest initial value for squashed actions"
        yield "net.action_log_std", "net.squash_actions", widest
    if config.net.norm == "batch" and not config.algorithm.batch_norms:
        yield "net.norm", "algo", "none or layer: its statistics would differ between acting and learning"
    if config.net.residual_blocks and config.net.hidden_sizes:
        yield "net.hidden_sizes", "net.residual_blocks", "none: net.hidden_size is the width of the blocks"
    if config.security.secret and not config.security.keys:
        yield "security.secret", "security.keys", "none, because it is useless without the public keys"


def _evaluations(config: RunConfig) -> Iterator[Clash]:
    """Settings that clash with evaluations, if there are any."""
    path = "evaluate.every_steps" if config.evaluate.every_steps else "evaluate.times"
    if config.evaluates and config.local.placement == "serial":
        yield path, "local.placement", "0, because an evaluator needs its own process"
    if config.evaluates and config.deterministic and config.stop_at_return is not None:
        why = "because the last step would depend on the duration of an evaluation"
        yield "stop_at_return", DETERMINISTIC, path, f"at most two of the three, {why}"


def _memory(config: RunConfig) -> Iterator[Clash]:
    """Settings that clash with the episodic memory, if there is one."""
    net, own = config.net, config.memory
    if net.memory == "none":
        return
    if net.core != "lstm":
        yield "net.core", "net.memory", "lstm, because the memory stores its hidden states"
    if net.memory_neighbours > net.memory_size:
        yield "net.memory_neighbours", "net.memory_size", "at most that number of entries"
    if config.learner.unroll_length < 2:
        yield "learner.unroll_length", "net.memory", "at least 2, because the last step of a rollout is never stored"
    if net.memory == "momentum" and not own.contrastive_rate:
        yield "memory.contrastive_rate", "net.memory", "above 0, because that loss is its signal"
    if own.familiar < (least := own.refresh_every * min(own.steps_per_batch, config.learner.batch_size)):
        expected = f"at least {least}, otherwise steps leave the buffer before their rarity is measured"
        yield "memory.familiar", "memory.refresh_every", "memory.steps_per_batch", expected
    yield from _of_its_algorithm(config)


def _of_its_algorithm(config: RunConfig) -> Iterator[Clash]:
    """Settings of an algorithm with which values give no TD error, or that rule out the replay of the memory."""
    algo, own, share = config.section, config.algorithm, config.memory.replay_share
    if config.net.memory == "td_error":
        if name := own.rescaled_by:
            yield "net.memory", f"{algo}.{name}", "another signal, because values are not in the units of rewards"
        if (name := own.normalized_by) and len(config.env.tasks) > 1:
            expected = "another signal, because only the values of the first environment are sent"
            yield "net.memory", f"{algo}.{name}", expected
    if share and not own.corrects_age:
        yield (
            "memory.replay_share",
            "algo",
            "0, because the algorithm only learns from new rollouts or has its own replay",
        )
    if share and (name := own.reused_by):
        yield "memory.replay_share", f"{algo}.{name}", "0 for one of them, otherwise each replays the other's rollouts"


def _opponent(config: RunConfig) -> Iterator[Clash]:
    """Settings that clash with `env.opponent`."""
    if config.env.opponents and not config.env.opponent:
        yield "env.opponents", "env.opponent", "none, because no policy acts for them"
    if config.env.opponent == PAST_OPPONENT and not config.learner.checkpoint_every_steps:
        yield "learner.checkpoint_every_steps", "env.opponent", "above 0, because these checkpoints are the opponents"
    if config.deterministic and config.env.opponent:
        yield "env.opponent", DETERMINISTIC, "none, because opponents are drawn at random"


def _ranks(config: RunConfig) -> Iterator[Clash]:
    """Settings that clash with `learner.ranks`."""
    if config.learner.batch_size % config.learner.ranks:
        yield "learner.batch_size", "learner.ranks", "a multiple, because all ranks learn from equally many rollouts"
    alone = {
        "sync.rule": (config.sync.parsed.measured, "the first rank does not see the rollouts of the others"),
        DETERMINISTIC: (config.deterministic, "rollouts are not ordered across ranks"),
        "local.placement": (config.local.placement in ("serial", "serve"), "there is only one learner"),
        "net.memory": (config.net.memory != "none", "each rank would only store steps of its own rollouts"),
    }
    for path, (used, why) in alone.items():
        if config.learner.ranks > 1 and used:
            yield "learner.ranks", path, f"1, because {why}"


def _deterministic(config: RunConfig, groups: Groups | None) -> Iterator[Clash]:
    """Settings that clash with `deterministic`."""
    if config.deterministic and config.sync.parsed.name not in ("always", "never"):
        yield (
            "sync.rule",
            DETERMINISTIC,
            "always or never, because announcements of new versions arrive at arbitrary times",
        )
    for path, (value, why) in deterministic_values(config, groups).items():
        if value_at(config, path) != value:
            yield path, DETERMINISTIC, f"{as_text(value)}, so that {why}"


def deterministic_values(config: RunConfig, groups: Groups | None) -> dict[str, tuple[Any, str]]:
    """Setting -> the value that it must have, and why; empty for a run that is not deterministic.

    Args:
      config: of the run.
      groups: without it `learner.batch_size` is left out.
    """
    if not config.deterministic:
        return {}
    in_turn, same = "acting and learning take turns", "sums are computed in the same order"
    needed: dict[str, tuple[Any, str]] = {
        "actor.collect_ahead": (False, in_turn),
        "learner.window": (1, in_turn),
        "learner.publish_every": (1, "every version acts"),
        "broker.max_batch_rows": (config.actor.envs_per_group, "every request of an env group is a batch"),
    }
    for role in ("learner", "broker"):
        needed |= {f"{role}.{name}": (value, same) for name, value in ONE_THREAD.items()}
    if groups is not None:
        envs = groups(config) * config.actor.envs_per_group
        needed["learner.batch_size"] = envs, "a batch has one rollout from every environment of the run"
    return needed


def short_layer(config: RunConfig, origins: Mapping[str, GivenValue]) -> Iterator[GivenValue]:
    """Shorter starts for a short run: at most the declared shares of `total_steps`, if the user leaves them open."""
    for path in table_of(config) if not is_open("total_steps", origins) else ():
        value = value_at(config, path)
        if is_open(path, origins) and (most := _bound_by_share(path, value, config.total_steps)) != value:
            yield GivenValue(path, most, f"total_steps {config.total_steps}: {path}")


def drop_open_settings(
    given: Mapping[str, GivenValue], lower: Mapping[str, GivenValue], config: RunConfig, groups: Groups | None
) -> dict[str, GivenValue]:
    """The settings of another run without what it left open, so that what follows from these is found for this run.

    Args:
      given: all of that run.
      lower: the layers below.
      config: that run.
      groups: as for `deterministic_values`.
    """
    found, needed = dict(given), deterministic_values(config.model_copy(update={DETERMINISTIC: True}), groups)
    for path in (path for path in given if path in needed or facts_of(TREE[path]).share):
        value = lower[path].value if path in lower else TREE[path].default
        bound = needed[path][0] if path in needed and config.deterministic else value
        if given[path].value in (value, bound, _bound_by_share(path, value, config.total_steps)):
            del found[path]
    return found


def _bound_by_share(path: str, value: Any, total_steps: int) -> Any:
    """What a setting that is left open is in a run of this length."""
    share = facts_of(TREE[path]).share
    return min(value, max(1, int(share * total_steps))) if share else value


def is_open(path: str, origins: Mapping[str, GivenValue]) -> bool:
    """Whether the user leaves a setting open."""
    return path not in origins or origins[path].where.startswith("preset ")


def deterministic_layer(
    config: RunConfig, origins: Mapping[str, GivenValue], groups: Groups | None
) -> Iterator[GivenValue]:
    """The implied values of settings that the user leaves open."""
    for path, (value, _) in deterministic_values(config, groups).items():
        if is_open(path, origins):
            yield GivenValue(path, value, f"{DETERMINISTIC} true: {path}")
