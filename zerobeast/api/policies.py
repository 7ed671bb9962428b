"""Saved policies: `load` one to act with it, `evaluate` one over whole episodes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from zerobeast.common.config import remarks, trust
from zerobeast.common.config.env_argument import resolve_env
from zerobeast.common.config.layers import GivenValue, read_yaml, select_file_values
from zerobeast.common.config.load import Request, resolve
from zerobeast.common.config.plain_values import plain_values
from zerobeast.common.config.settings_table import LEVELS
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.plugins import refuse_imported, reread
from zerobeast.common.settings import NO_RUN, RunConfig
from zerobeast.common.wire.seeds import MAX_ENV_SEED, hash_seed
from zerobeast.exporting.weights import is_export, read_export
from zerobeast.launcher.env_server import env_server
from zerobeast.plan.run_folder import has_checkpoint
from zerobeast.playing.evaluation import Evaluation
from zerobeast.playing.play import Watch, play_each
from zerobeast.services.envserver.levels import evaluation_envs

log = logging.getLogger(__name__)

if TYPE_CHECKING:  # torch is loaded with the first policy
    from zerobeast.playing.policy import Policy


def load(run: str | os.PathLike[str], *, algo: Any = None, **settings: Any) -> Policy:
    """Load the policy of a run.

    Args:
      run: the name of a run below `root`, its folder, a checkpoint file, a `Run`, or a folder of `beast export`.
      algo: the algorithm, if it is not an installed one: a file names it, but only a call imports it.
      settings: to use instead of those that it was trained with, as for `zerobeast.train`: `broker={"device": "cpu"}`;
        `env_kwargs` are added to those of the training.

    Raises:
      ConfigError: there is no such run, it has no checkpoint yet, or its algorithm is not installed.
      CheckpointError: the checkpoint is damaged or of another architecture.

    Examples:
      >>> import numpy as np
      >>> import zerobeast as zb
      >>> policy = zb.load("cart")
      >>> action, state = policy.predict(np.zeros(4, np.float32))
      >>> int(action) in (0, 1)
      True
    """
    known: Mapping[str, Any] = getattr(run, "decided", {}) or {"algo": algo}
    reread()
    request = Request.of_values({**known, **settings}, os.environ)
    return open_policy(find_policy(run, request.value("root")), request, read_only=True)


def find_policy(run: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a run that has a checkpoint, or a checkpoint: a file, or one of RUN:best and RUN:AGENT_STEPS.

    Args:
      run: as for `load`.
      root: the folder of all runs; None: `BEAST_ROOT`, or else `runs`.

    Raises:
      ConfigError: there is none.
    """
    if not isinstance(run, str | os.PathLike):
        raise ConfigError(argument="run", value=run, expected="a run, its name or folder, or a checkpoint")
    if not isinstance(root, str | os.PathLike | None):
        raise ConfigError(argument="root", value=root, expected="the folder that contains the run folders")
    among = run_files.root_of(root)
    if (first := run_files.find_first(os.fspath(run), among, is_export)) and is_export(first):
        return first.resolve()
    place = run_files.find_run_or_checkpoint(os.fspath(run), among)
    if place.is_dir() and not has_checkpoint(place):
        raise ConfigError(
            f"run {os.fspath(run)!r} has no checkpoint yet: let it train for a while", path="run", value=run
        )
    return place


def open_policy(place: Path, request: Request, *, read_only: bool = False) -> Policy:
    """The policy of a run under a request. Its file decides nothing about peers, and imports nothing.

    Args:
      place: the folder of the run, or a checkpoint.
      request: settings to use instead of its own.
      read_only: no environment will be made.

    Raises:
      BeastError: see `load`.
    """
    home = run_files.folder_of(place)
    request = request.with_defaults({**trust.SAFE_VALUES, **({"root": str(home.parent)} if home else {})}, "its folder")
    exported = is_export(place)
    file = place / run_files.CONFIG if place.is_dir() and not exported else place
    label = f"file {file}"
    if folder := file != place:  # mistakes are reported before torch is loaded
        loaded = resolve(request.of_run(label, read_yaml(file, label)), read_only=read_only)
    from zerobeast.playing.policy import Policy
    from zerobeast.services.learner.checkpoint import Checkpoints, load_checkpoint

    saved = Checkpoints(place).load() if folder else read_export(place) if exported else load_checkpoint(place)
    assert saved is not None, "find_policy has found one"
    if not folder:
        loaded = resolve(request.of_run(label, saved["config"]), read_only=read_only)
    for note in loaded.notes:
        if note.startswith(remarks.EXPLICIT_ORIGINS):  # others are on how it trains
            log.warning("%s", note)
    loaded = loaded.for_its_env(label)
    policy = Policy(loaded.config, saved, place / run_files.CHECKPOINT if folder else place, loaded.in_files)
    if remark := evaluations.best_in_training(policy.checkpoint, policy.agent_steps):
        log.warning("%s: %s", place, remark)
    return policy


def reseed_evaluations(policy: Policy) -> RunConfig:
    """Its settings with a seed for evaluations that are asked for, unless a flag or an argument has given one.

    It follows from that of the run's own evaluations and differs from it: episodes that chose a policy do not score it.
    """
    config, path = policy.config, "evaluate.seed"
    if config.evaluate.seed is not None and path not in {one.path for one in policy.in_files}:
        return config
    seed = hash_seed(config.evaluation_seed, 1) % (MAX_ENV_SEED + 1)
    return config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"seed": seed})})


def load_opponent_policy(config: RunConfig, request: Request) -> Policy | None:
    """The policy that `env.opponent` names, under this request for an evaluation; None if it names none.

    Raises:
      BeastError: see `load`, or they name none that can be loaded.
    """
    name = config.env.opponent
    if name and name in NO_RUN and request.value("env.opponent") is not None:
        raise ConfigError(path="env.opponent", value=name, expected="a run", cause=f"{name} is for training")
    return None if name in NO_RUN else open_policy(find_policy(name, config.root), request, read_only=True)


@overload
def evaluate(
    run: Policy | str | os.PathLike[str],
    env: Any = None,
    episodes: int | None = None,
    deterministic: bool | None = None,  # noqa: FBT001
    *,
    levels: None = None,
    **more: Any,
) -> Evaluation: ...


@overload
def evaluate(
    run: Policy | str | os.PathLike[str],
    env: None = None,
    episodes: int | None = None,
    deterministic: bool | None = None,  # noqa: FBT001
    *,
    levels: str | Sequence[str],
    **more: Any,
) -> list[Evaluation]: ...


def evaluate(
    run: Policy | str | os.PathLike[str],
    env: Any = None,
    episodes: int | None = None,
    deterministic: bool | None = None,  # noqa: FBT001 - as in Stable-Baselines3
    *,
    levels: str | Sequence[str] | None = None,
    seed: int | None = None,
    max_steps: int | None = None,
    algo: Any = None,
    **settings: Any,
) -> Evaluation | list[Evaluation]:
    """Play whole episodes, without episodic life, in environments that an env-server steps.

    Args:
      run: a policy, or what `load` takes.
      env: as for `zerobeast.train`; None: the environment in which the settings of the run evaluate.
      episodes: how many, at least 1.
      deterministic: take the likeliest or best actions, or draw them, as in training; None: as `evaluate.actions` of
        the run, which is the former unless it was asked otherwise.
      levels: as `evaluate.levels`, or a list of names; then there is a result for each environment, in that order.
        None: those of the run, unless `env` is given; they must be of one environment.
      seed: of environments and actions; by default one of the run that its own evaluations, which have chosen "best",
        were not played with.
      max_steps: agent steps after which an episode is cut off and counted.
      algo, settings: as for `load`; if `run` is a policy, none but `env_kwargs`.

    What is not given is as in `evaluate` of the settings of the run.

    Raises:
      BeastError: the policy cannot be loaded, does not fit the environment, or the environment cannot be made.

    Examples:
      >>> import zerobeast as zb
      >>> result = zb.evaluate("cart", episodes=3)
      >>> len(result.returns), result.mean > 0
      (3, True)
    """
    refuse_imported("evaluates a policy")
    from zerobeast.playing.policy import Policy

    added_arguments = settings.pop("env_kwargs", None)
    if isinstance(run, Policy) and (given := plain_values({"algo": algo, **settings})):
        raise ConfigError(
            f"{', '.join(dict(given))}: expected no settings for a loaded policy; pass them to load",
            path=given[0][0],
            expected="no settings",
        )
    policy = run if isinstance(run, Policy) else load(run, algo=algo, **settings)
    actions = None if deterministic is None else "greedy" if deterministic else "sampled"
    names = (None if env is None else "") if levels is None else levels if isinstance(levels, str) else ",".join(levels)
    asked = ("episodes", episodes), ("levels", names), ("seed", seed), ("max_steps", max_steps), ("actions", actions)
    own = {name: value for name, value in asked if value is not None}
    env_id, arguments = (None, {}) if env is None else resolve_env(env)
    arguments |= added_arguments or {}
    checked = resolve(Request.of_values({"evaluate": own, "env_kwargs": arguments})).config
    how = reseed_evaluations(policy).evaluate.model_copy(update={name: getattr(checked.evaluate, name) for name in own})
    added, before = (GivenValue("env.kwargs", each.env.kwargs, "") for each in (checked, policy.config))
    made = policy.config.env.model_copy(update={"kwargs": added.over(before).value})
    config = policy.config.model_copy(
        update={"evaluate": how, "env": made if env_id is None else made.for_task(env_id)}
    )
    anew = [GivenValue(path, value, "") for path, value in (("env.id", env_id), (LEVELS, names)) if value is not None]
    in_files = select_file_values([*policy.in_files, added, *anew])
    if refusals := trust.refusals_of(config, in_files):
        raise ConfigError.of(refusals.values())
    tasks = evaluation_envs(config)
    if levels is None and len(tasks) > 1:
        raise ConfigError(argument="env", value=env, expected=f"one of {', '.join(tasks)}; levels may name several")
    found = [
        *play_evaluations(policy, config, Request.of_values({"broker": {"device": config.broker.device}}, os.environ))
    ]
    return found[0] if levels is None else found


def play_evaluations(
    policy: Policy, config: RunConfig, request: Request, watch: Callable[[], Watch] = lambda: lambda _, __: None
) -> Iterator[Evaluation]:
    """As `evaluate`, of a policy that is loaded: an evaluation for each environment of these settings, as it comes.

    Args:
      policy, config, watch: as for `play_each`.
      request: as for `load_opponent_policy`.
    """
    opponent = load_opponent_policy(config, request)
    with env_server(config) as endpoint:
        yield from (found for _, found in play_each(policy, config, endpoint, opponent=opponent, watch=watch))
