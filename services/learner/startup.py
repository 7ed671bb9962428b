"""How a run begins: with its first actor, or where its checkpoint left off."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from zerobeast.common.errors import CheckpointError, ConfigError, raise_as
from zerobeast.common.files import run_files
from zerobeast.common.settings import NetConfig, Reading, Run, RunConfig
from zerobeast.common.wire import EnvSpec, PolicySpec
from zerobeast.common.wire.records import explain_oversize
from zerobeast.rl.learning.replay_learning import replay_folder
from zerobeast.rl.nets.checkpoint import UNREADABLE_ERRORS
from zerobeast.rl.ops import ranks
from zerobeast.rl.replay.ring_file import NAME as REPLAY
from zerobeast.services.learner.admission import Terms, mismatch
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.update import Trainer

log = logging.getLogger(__name__)


def terms_of(config: RunConfig, env: EnvSpec, policy: PolicySpec | None) -> Terms:
    """The terms that actors of a run have to offer."""
    most_rows = max(config.actor.envs_per_group, config.learner.batch_size)
    return Terms(env, policy, config.learner.unroll_length, most_rows)


class HasIntake(Protocol):
    """What takes in the rollouts of a run."""

    @property
    def intake(self) -> Intake: ...


T = TypeVar("T", bound=HasIntake)


def start_run(config: RunConfig, theirs: Terms, make: Callable[[EnvSpec], T]) -> T:
    """A new run for the environment of its first actor.

    Raises:
      ConfigError: the environment is not the run's, or cannot be learned.
    """
    asked = config.env.id
    if theirs.env.env_id not in config.env.tasks:
        raise ConfigError(f"env.env_id is {theirs.env.env_id}, this run has {asked}")
    length, unbuilt = config.learner.unroll_length, terms_of(config, theirs.env, theirs.policy)
    if sentence := mismatch(theirs, unbuilt) or explain_oversize(theirs.env, theirs.policy, length, theirs.num_envs):
        raise ConfigError(sentence)
    # whatever torch raises for shapes that a peer made up
    with raise_as(ConfigError, f"{asked}: the network cannot learn from it", RuntimeError, ValueError, MemoryError):
        run = make(theirs.env.among(asked))
    if sentence := mismatch(theirs, run.intake.terms):
        raise ConfigError(sentence)
    return run


def resume_run(
    config: RunConfig,
    path: Path,
    saved: dict[str, Any] | None,
    meters: Meters,
    make: Callable[[EnvSpec], Trainer],
) -> tuple[Trainer | None, SavedLedger]:
    """The trainer that the run's checkpoint describes, None if there is no checkpoint; and what became of rollouts.

    Raises:
      CheckpointError: it is not this run's.
    """
    if saved is None:
        return None, SavedLedger()
    with raise_as(CheckpointError, f"{path}: the checkpoint's entries are unreadable", *UNREADABLE_ERRORS):
        env = EnvSpec.from_wire(saved["env"])
        algo = saved["config"]["algo"]
        if ":" in algo:  # it imports nothing: beside settings of runs, there are only those of its algorithm
            (algo,) = saved["config"].keys() - Run.model_fields.keys()
        net = NetConfig.model_validate(saved["config"]["net"])
        total, done = saved["config"]["total_steps"], saved["counters"]["agent_steps"]
        note = ""
        if algo == config.section:
            before = config.algorithm.model_copy(update=saved["config"][algo])
            note = config.algorithm.jump(algo, config, before, total, done)
        meters.load(saved["statistics"])
        record = SavedLedger.load(saved["rollouts"])
        if ranks.rank():  # the first rank goes on counting
            record = SavedLedger(streams=record.streams)
            meters.lost.rows = 0
    for name, theirs, ours in _bound_settings(config, env, algo, net):
        if theirs != ours:
            advice = "use the same again, another name, or start afresh"
            raise CheckpointError(f"{path}: it was made with {name} {theirs}, but this run has {ours}: {advice}")
    _fit_replay(config, len(saved.get("ranks", ())) + 1)
    trainer = make(env)
    trainer.load(path, saved)
    log.info("continuing %s at agent step %d%s", path.parent, trainer.counters.agent_steps, note and f"; {note}")
    return trainer, record


def _fit_replay(config: RunConfig, earlier: int) -> None:
    """Let this rank's replay begin anew if there were more or fewer ranks before: each one's holds its share."""
    replay = replay_folder(config.store) / REPLAY
    if earlier != ranks.size() and replay.exists():
        run_files.move_aside(replay)
        log.warning("learner.ranks %d, before %d: %s begins anew without rows", ranks.size(), earlier, replay)


def _bound_settings(config: RunConfig, env: EnvSpec, algo: str, net: NetConfig) -> Iterator[tuple[str, str, str]]:
    """Settings that a run cannot change, with those of the checkpoint and its own."""
    yield "env.id", env.env_id, config.env.id
    yield "algo", algo, config.section
    if config.algorithm.sees_last_step:
        theirs, ours = ("always" if each.sees_last_step else "never" for each in (net, config.net))
        yield "net.last_action_reward", theirs, ours
    # the shapes of weights do not show these
    yield "net.activation", net.activation, config.net.activation
    if ":" in net.torso + config.net.torso:
        yield "net.torso", net.torso, config.net.torso
    if ":" in net.core + config.net.core:
        yield "net.core", net.core, config.net.core
    if any(Reading.of(array, net) != Reading.of(array, config.net) for array in env.obs.arrays):
        yield "net.pixels", net.pixels, config.net.pixels
