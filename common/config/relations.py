"""What must hold between settings that are each valid on their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from zerobeast.common.algos.replay_settings import ReplaySettings
from zerobeast.common.config.tree import RunConfig

#: for actions before they are squashed; `zerobeast.common.ops.gaussian` softly bounds larger values
MAX_SQUASHED_LOG_STD = 0.0


class Relation(NamedTuple):
    """A relation that is broken."""

    paths: tuple[str, ...]  #: of the settings that it relates
    sentence: str


def relations(config: RunConfig) -> Iterator[Relation]:
    """The relations that are broken wherever the services run."""
    envs, rows = config.actor.envs_per_group, config.broker.max_batch_rows
    if envs > rows:
        yield Relation(
            ("broker.max_batch_rows", "actor.envs_per_group"),
            f"broker.max_batch_rows {rows} is below actor.envs_per_group {envs}: no request would fit a batch",
        )
    servers, actors = config.local.env_servers, config.local.actors
    if servers > actors:
        yield Relation(
            ("local.env_servers", "local.actors"),
            f"local.env_servers {servers} is above local.actors {actors}: an actor here uses one, the rest would idle",
        )
    yield from _minibatches(config)
    yield from _atoms(config)
    yield from _rollouts(config)
    yield from _replay(config)
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
    if config.security.secret and not config.security.keys:
        yield Relation(
            ("security.secret", "security.keys"),
            "security.secret is of no use without security.keys, the folder of the public ones",
        )


def _minibatches(config: RunConfig) -> Iterator[Relation]:
    """PPO cannot make more minibatches than a batch has rollouts (with an LSTM) or steps (without)."""
    if config.algo != "ppo":
        return
    parts, rows, steps = config.ppo.minibatches, config.learner.batch_size, config.learner.unroll_length
    if config.net.use_lstm and parts > rows:
        yield Relation(
            ("ppo.minibatches", "learner.batch_size", "net.use_lstm"),
            f"ppo.minibatches {parts} is above learner.batch_size {rows}: with net.use_lstm a rollout stays whole, "
            f"so a batch has {rows} of them to share out",
        )
    elif parts > rows * steps:
        yield Relation(
            ("ppo.minibatches", "learner.batch_size", "learner.unroll_length"),
            f"ppo.minibatches {parts} is above learner.batch_size {rows} x learner.unroll_length {steps}, "
            f"the {rows * steps} steps of a batch",
        )


def _atoms(config: RunConfig) -> Iterator[Relation]:
    """A distribution over returns reaches from a lower return to a higher one."""
    if config.algo not in ("c51", "rainbow"):
        return
    settings = config.c51 if config.algo == "c51" else config.rainbow
    if settings.v_min >= settings.v_max:
        low, high = f"{config.algo}.v_min", f"{config.algo}.v_max"
        yield Relation((low, high), f"{low} {settings.v_min:g} with {high} {settings.v_max:g}: expected a lower one")


def _rollouts(config: RunConfig) -> Iterator[Relation]:
    """A replay has recurrent states only where rollouts begin, and a return spans at most two rollouts."""
    algo, steps = config.algo, config.learner.unroll_length
    if algo == "r2d2":
        if config.r2d2.burn_in % steps:
            yield Relation(
                ("r2d2.burn_in", "learner.unroll_length"),
                f"r2d2.burn_in {config.r2d2.burn_in} is no multiple of learner.unroll_length {steps}: a burn-in begins "
                f"with a rollout, where the recurrent state was stored",
            )
        if config.r2d2.sequence_length < steps:
            yield Relation(
                ("r2d2.sequence_length", "learner.unroll_length"),
                f"r2d2.sequence_length {config.r2d2.sequence_length} is below learner.unroll_length {steps}: sequences "
                f"begin with rollouts, of which the steps behind them would never be learned from",
            )
    elif (n := getattr(getattr(config, algo), "n_step", 1)) > steps:
        yield Relation(
            (f"{algo}.n_step", "learner.unroll_length"),
            f"{algo}.n_step {n} is above learner.unroll_length {steps}: a return ends in the rollout that it begins "
            f"in, or in the next one",
        )


def _replay(config: RunConfig) -> Iterator[Relation]:
    """A replay must hold what an update draws, and it acknowledges rollouts before they are learned from."""
    algo = config.algo
    settings, size = getattr(config, algo), f"{algo}.replay_size"
    if not isinstance(settings, ReplaySettings):
        return
    if config.deterministic:
        yield Relation(
            ("deterministic", "algo"),
            f"deterministic true with algo {algo}: expected an algorithm without a replay, which learns from every "
            f"rollout before the next is acted",
        )
    least = {f"{algo}.{name}": getattr(settings, name) for name in ("replay_min_size", "batch_size")}
    if algo == "r2d2":
        least["r2d2.sequence_length"] = config.r2d2.sequence_length
    for path, value in least.items():
        if value > settings.replay_size:
            sentence = f"{path} {value} is above {size} {settings.replay_size}: expected at most what it holds"
            yield Relation((path, size), sentence)
    step = settings.batch_size * settings.updates_per_step * (config.r2d2.sequence_length if algo == "r2d2" else 1)
    if (config.total_steps - settings.replay_min_size) * settings.samples_per_insert < step:
        fewer, more = f"{algo}.replay_min_size", f"{algo}.samples_per_insert"
        yield Relation(
            ("total_steps", fewer, more),
            f"total_steps {config.total_steps} is too few to learn from: with {fewer} {settings.replay_min_size} and "
            f"{more} {settings.samples_per_insert:g} it ends before the first step, which draws {step} samples",
        )
