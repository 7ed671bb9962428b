"""Saved policies: `load` one to act with it, `evaluate` one over whole episodes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobeast.clients.env_client import EnvClient
from zerobeast.common.config import trust
from zerobeast.common.config.flags import flags_for
from zerobeast.common.config.layers import Given
from zerobeast.common.config.load import dump, gather
from zerobeast.common.config.table import value_at
from zerobeast.common.errors import BeastError, ConfigError, PeerLost
from zerobeast.common.files import run_files
from zerobeast.common.plugins import reference_to, refuse_imported
from zerobeast.common.settings import RunConfig, Section
from zerobeast.common.transport import Context
from zerobeast.launcher.child import BAD_INPUT, Child, ChildSpec, stop
from zerobeast.launcher.fleet import child_environ, child_flags, endpoint_flags, service_command
from zerobeast.launcher.private_folder import private_folder
from zerobeast.launcher.run_folder import trained
from zerobeast.services.envserver.vector import EpisodeTracker

if TYPE_CHECKING:  # torch is loaded with the first policy
    from zerobeast.api.run import Run
    from zerobeast.clients.policy import Policy

MAX_ENVS = 16
START_LIMIT_S = 60.0
STOP_LIMIT_S = 5.0


class Episode(NamedTuple):
    value: float  #: undiscounted, unclipped return
    length: int  #: agent steps


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes of a policy."""

    env: str  #: id of the environment
    returns: list[float]  #: of each episode, undiscounted and unclipped
    lengths: list[int]  #: of each episode, in agent steps
    deterministic: bool  #: whether the likeliest or best actions were taken, or drawn ones
    seed: int
    frame_skip: int  #: env frames of an agent step
    agent_steps_trained: int

    @property
    def mean(self) -> float:
        """The mean of the returns."""
        return statistics.fmean(self.returns)

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return statistics.pstdev(self.returns)


def load(run: str | os.PathLike[str] | Run, *, algo: Any = None, **settings: Any) -> Policy:
    """Load the policy of a run.

    Args:
      run: the name of a run below `root`, its folder, a checkpoint file, or a `Run`.
      algo: the algorithm, if it is not an installed one: a file names it, but only a call imports it.
      settings: to use instead of those that it was trained with, as for `zerobeast.train`: `broker={"device": "cpu"}`.

    Raises:
      ConfigError: there is no such run, it has no checkpoint yet, or its algorithm is not installed.
      CheckpointError: the checkpoint is damaged or of another architecture.
    """
    known: dict[str, Any] = {"algo": algo}
    if not isinstance(run, str | os.PathLike):
        if not isinstance(config := getattr(run, "config", None), RunConfig):
            raise ConfigError(f"run is {run!r:.100}, expected the name of a run, its folder, a checkpoint, or a run")
        run, chosen = run.folder, trust.GUARDED.items()  # its call has said what is imported
        known = {path: value_at(config, path) for path, why in chosen if why == trust.CODE}
    flags = flags_for({**known, **settings})
    return open_policy(find(run, flags), flags, read_only=True)


def find(run: str | os.PathLike[str], flags: Sequence[str] = (), own: type[Section] = Section) -> Path:
    """The folder of a run that has a checkpoint, or the checkpoint itself; flags may have another `root`.

    Raises:
      ConfigError: there is none.
    """
    if (given := Path(run).expanduser()).is_file():
        return given
    root = gather(flags, os.environ, own=own).config.root
    candidates = [given, Path(root).expanduser() / run]
    folder = next((path for path in reversed(candidates) if (path / run_files.CONFIG).is_file()), None)
    if folder is None:
        expected = candidates[-1] / run_files.CONFIG
        raise ConfigError(f"there is no run {str(run)!r}: expected {expected}; root names another folder")
    if not trained(folder):
        raise ConfigError(f"run {str(run)!r} has no checkpoint yet: let it train for a while")
    return folder.resolve()


def open_policy(place: Path, flags: Sequence[str], *, own: type[Section] = Section, read_only: bool = False) -> Policy:
    """The policy of a run under flags. Its file decides nothing about peers, and imports nothing.

    Args:
      place: the folder of the run, or a checkpoint.
      flags: of the tree of settings and of `own`.
      own: flags of a command.
      read_only: no environment will be made.

    Raises:
      BeastError: see `load`.
    """
    read = partial(gather, environ=os.environ, own=own, read_only=read_only)
    flags = [*trust.ALONE, *flags]
    if folder := place.is_dir():  # mistakes are reported before torch is loaded
        loaded = read(["--config", str(place / run_files.CONFIG), *flags])
    from zerobeast.clients.policy import Policy
    from zerobeast.services.learner.checkpoint import Checkpoints, load_checkpoint

    saved = Checkpoints(place).load() if folder else load_checkpoint(place)
    assert saved is not None, "`find` has found one"
    if not folder:
        loaded = read(flags, trees={f"file {place}": saved["config"]})
    return Policy(loaded, saved, place / run_files.CHECKPOINT if folder else place)


def evaluate(
    run: Policy | str | os.PathLike[str] | Run,
    env: Any = None,
    episodes: int = 10,
    deterministic: bool | None = None,  # noqa: FBT001 - as in Stable-Baselines3
    *,
    seed: int = 1000,
    algo: Any = None,
    **settings: Any,
) -> Evaluation:
    """Play whole episodes, without episodic life, in environments that an env-server steps.

    Args:
      run: a policy, or what `load` takes.
      env: as for `zerobeast.train`; None: the environment that the policy was trained in.
      episodes: how many, at least 1.
      deterministic: take the likeliest or best actions, or draw them, as in training; None: draw them unless that is
        exploration, as with DQN and TD3.
      seed: of environments and actions; by default one that nothing was trained on.
      algo, settings: as for `load`; none if `run` is a policy.

    Raises:
      BeastError: the policy cannot be loaded, does not fit the environment, or the environment cannot be made.
    """
    refuse_imported("evaluates a policy")
    from zerobeast.clients.policy import Policy

    if isinstance(run, Policy) and (given := flags_for({"algo": algo, **settings})):
        raise ConfigError(f"{' '.join(given)}: expected no settings, because a policy has its own; give them to load")
    policy = run if isinstance(run, Policy) else load(run, algo=algo, **settings)
    config, origins = policy.config, dict(policy.loaded.origins)
    if env is not None:
        origins["env.id"], env_id = "env", env if isinstance(env, str) else reference_to(env, "env")
        config = config.model_copy(update={"env": config.env.alone(env_id)})
    guarded = {path: Given(path, value_at(config, path), origins[path]) for path in trust.GUARDED if path in origins}
    if refusals := list(trust.refusals(guarded)):
        raise ConfigError("\n".join(refusals))
    if len(config.env.tasks) > 1:
        raise ConfigError(f"env is {env!r}, expected one of {config.env.id}, in which the policy was trained")
    with env_server(config) as endpoint:
        return play(policy, config, endpoint, episodes=episodes, deterministic=deterministic, seed=seed)


@contextmanager
def env_server(config: RunConfig) -> Iterator[str]:
    """Run an env-server until the context is left; yields its endpoint.

    Raises:
      BeastError: it ended, for the reason in its log.
    """
    with private_folder() as place:
        endpoint = list(endpoint_flags(place, 0))
        status, log, file = place / "status.json", place / "log", place / run_files.CONFIG
        file.write_text(dump(config), encoding="utf-8")
        command = service_command("envserver", *child_flags(config, file, status), *trust.ALONE, *endpoint)
        child = Child(ChildSpec("envserver", 0, command, child_environ(os.environ), log, status))
        child.start()
        deadline = time.monotonic() + START_LIMIT_S
        try:
            while not status.exists():
                if not child.running or time.monotonic() > deadline:
                    raise PeerLost(f"the env-server did not start within {START_LIMIT_S:.0f} s")
                time.sleep(0.01)
            yield endpoint[1]
        except PeerLost as error:
            if child.running:
                raise
            ended = BeastError(child.explain())
            ended.exit_code = BAD_INPUT if child.code == BAD_INPUT else ended.exit_code
            raise ended from error
        finally:
            stop([child], STOP_LIMIT_S)


def play(
    policy: Policy,
    config: RunConfig,
    endpoint: str,
    *,
    episodes: int,
    deterministic: bool | None,
    seed: int,
    watch: Callable[[list[Episode]], None] = lambda _: None,
) -> Evaluation:
    """As `evaluate`, in the one environment of `config`; `watch` is called with the episodes of each step."""
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0)):
        if type(value) is not int or not least <= value < 2**31:
            raise ConfigError(f"{name} is {value!r}, expected a whole number, at least {least} and less than 2^31")
    greedy = config.algorithm.drawing_explores if deterministic is None else deterministic
    num_envs, limit_s = min(episodes, MAX_ENVS), START_LIMIT_S + config.envserver.step_timeout_s
    env = config.env.model_copy(update={"episodic_life": False}).model_dump()
    with (
        _threads(config.broker.threads or 1),
        Context() as context,
        EnvClient(context, endpoint, env, num_envs, seed, limit_s) as envs,
    ):
        policy.refuse_unlike(envs.spec)
        policy.seed(seed)
        counter, state, rows = EpisodeCounter(episodes, num_envs), None, envs.reset()
        while not counter.complete:
            mask = rows["action_mask"] if envs.spec.action_mask else None
            given = {"last_reward": rows["reward"], "action_mask": mask}
            actions, state = policy.predict(rows["obs"], state, rows["first"], greedy, **given)
            rows, *_ = envs.step(actions)
            watch(counter.add(rows))
        returns, lengths = map(list, zip(*counter.episodes, strict=True))
        return Evaluation(envs.spec.env_id, returns, lengths, greedy, seed, envs.spec.frame_skip, policy.agent_steps)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with this many threads: for small batches, more of them wait for each other on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class EpisodeCounter:
    """Keeps the first episodes of every environment, equally many of each but for the remainder.

    How many each contributes is settled before the first step: counting the first that end would prefer short ones.
    """

    def __init__(self, episodes: int, num_envs: int) -> None:
        self.episodes: list[Episode] = []
        self._left = np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)
        self._tracker = EpisodeTracker(num_envs)

    @property
    def complete(self) -> bool:
        """Whether every environment has contributed its share."""
        return not self._left.any()

    def add(self, rows: NDArray[Any]) -> list[Episode]:
        """Take one step's rows, [N] of `step_record`; return the episodes that it completes and that count."""
        self._tracker.forget(rows["first"])
        ended = (rows["terminated"] | rows["truncated"]) & (self._left > 0)
        self._left -= ended
        found = self._tracker.update(rows["reward"], rows["first"], ended)
        counted = [Episode(value, int(length)) for value, length in found]
        self.episodes += counted
        return counted
