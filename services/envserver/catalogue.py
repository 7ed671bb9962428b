"""Makes the vector environment of a session, and single environments: those of backends, and those of references.

A reference is `module:Name` or `folder/script.py:Name`. Name is a class or function of the module, or the id of an
environment that the module registers with gymnasium.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

from zerobeast.common import plugins
from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.text import did_you_mean
from zerobeast.services.envserver import gymnasium_backend
from zerobeast.services.envserver.agents import make_shard, to_parallel
from zerobeast.services.envserver.backend import Backend, VectorRequest, backend_at, is_reference, reference_for
from zerobeast.services.envserver.inline import InlineVectorEnv
from zerobeast.services.envserver.numbers import PLACEHOLDER, fill_number
from zerobeast.services.envserver.padding import Padding, make_padded
from zerobeast.services.envserver.spaces import drop_entries
from zerobeast.services.envserver.vector import VectorEnv
from zerobeast.services.envserver.worker import Wear
from zerobeast.services.envserver.workers import WorkerVectorEnv

NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})


def make_vector_env(
    config: EnvConfig,
    num_envs: int,
    seed: int,
    server: EnvServerConfig,
    *,
    masks: bool = False,
    watch: Callable[[Any], Any] = lambda env: env,
) -> VectorEnv:
    """Choose what steps N environments, which `VectorEnv.collect` then makes: their backend, or single environments.

    Args:
      config: which environment.
      num_envs: N, a multiple of `config.agents`; if these are 0, N is 1, and it may have any number of agents.
      seed: environment i gets seed + i at the first reset.
      server: threads and workers to use.
      masks: whether some may be reset while others play on, which gymnasium's vectorised implementations cannot do.
      watch: takes each single environment that is made in this process, and returns what is stepped in its place.

    Raises:
      EnvError: the id is unknown or its package is not installed. `collect` raises what only making them reveals.
    """
    plugins.start_folder()  # before an environment may change it
    reference, padding, agents, make_part = "", Padding(config.pad_obs, config.pad_actions), config.agents or 1, None
    if not is_reference(config.id):
        reference = reference_for(config.id)
        backend = backend_at(reference, config.id)
        needs_single = config.agent_id or config.leave_out or config.options or PLACEHOLDER in str(config.kwargs)
        if agents == 1 and not needs_single:
            request = VectorRequest(config, num_envs, seed, server.threads or 1, masks)
            if env := _make_by_backend(backend, reference, request, padding):
                return env
            if backend.make_part and not (masks or config.action_mask):
                make_part = partial(backend.make_part, config)
    make = maker(config, reference)
    if server.in_process:  # without isolation: breakpoints work, and one that hangs or crashes takes the server with it
        watched = make_part or partial(make_shard, config.id, lambda: watch(make()), config=config)
        return InlineVectorEnv(partial(make_padded, watched, padding), num_envs, seed, num_envs, agents)
    part = partial(make_padded, make_part or partial(make_shard, config.id, make, config=config), padding)
    together, wear = make_part is not None, Wear(server.max_episodes_per_process, server.max_process_memory_mb << 20)
    workers = server.workers or 1
    return WorkerVectorEnv(config.id, part, num_envs, seed, workers, agents, together=together, wear=wear)


def maker(config: EnvConfig, backend: str, **more: Any) -> Callable[[], Any]:
    """`make_env` for one environment with these settings; `more` are further arguments of its constructor."""
    own = {name: getattr(config, name) for name in config.defaults()}
    known: dict[str, Any] = {"leave_out": config.leave_out, "action_mask": config.action_mask, "own": own}
    return partial(make_env, config.id, {**config.kwargs, **more}, backend, several=True, **known)


def _make_by_backend(backend: Backend, reference: str, request: VectorRequest, padding: Padding) -> VectorEnv | None:
    """The vector environment that a backend has chosen, if any."""
    env_id = request.config.id
    with raise_as(EnvError, f"env.id {env_id!r} cannot be made"):
        env = backend.make_vec(request)
    if isinstance(env, InlineVectorEnv):
        env.make = partial(make_padded, env.make, padding)
    elif env is not None and any(padding):
        raise EnvError(f"env.id {env_id!r}, backend {reference}: its {type(env).__name__} cannot be padded")
    if env is None or isinstance(env, VectorEnv):
        return env
    raise EnvError(f"env.id {env_id!r}, backend {reference}: make_vec returned {env!r:.200}, no VectorEnv")


def make_env(
    env_id: str,
    kwargs: dict[str, Any],
    backend: str = "",
    *,
    several: bool = False,
    leave_out: tuple[str, ...] = (),
    action_mask: str = "",
    own: Mapping[str, Any] = NO_ARGUMENTS,
) -> Any:
    """Make one environment.

    Args:
      env_id: an id or a reference.
      kwargs: of its constructor, with placeholders for its number (`numbers`).
      backend: reference of the backend that the env-server has found; by default it is found here.
      several: whether it may have several agents; then it is one of PettingZoo's parallel ones, or has their methods.
      leave_out: entries that its observation space is to lack; its observations still have them. Those of several
        agents are left out when these are read.
      action_mask: key of action masks, for the environments of a mix; that of others matters when they are read.
      own: settings that backends declare; its own are arguments of the environment too.

    Raises:
      EnvError: it is unknown, its package is missing, its constructor raises or makes something else.
    """
    part = None if is_reference(env_id) else backend_at(backend or reference_for(env_id), env_id)
    with raise_as(EnvError, f"env.id {env_id!r}"):
        defaults = EnvConfig.of({"id": env_id}).defaults()
    kwargs = {name: own.get(name, default) for name, default in defaults.items()} | kwargs
    alone = nullcontext(kwargs) if part and part.mixes else fill_number(kwargs)
    with raise_as(EnvError, f"env.id {env_id!r} cannot be made"), alone as filled:
        import gymnasium

        mixes = part and part.mixes
        passed_on = {"leave_out": leave_out, "action_mask": action_mask, "own": own} if mixes else {}
        env = part.make(env_id, filled, **passed_on) if part else _make_by_reference(env_id, filled)
        kind = type(env).__name__
        if not isinstance(env, gymnasium.Env):
            if several and (found := to_parallel(env)) is not None:
                return found
            wanted = "a gymnasium.Env, or an environment of PettingZoo" if several else "a gymnasium.Env"
            raise EnvError(f"env.id {env_id!r}: expected {wanted}, but what makes it returned {kind}")
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gymnasium.Space):
                raise EnvError(f"env.id {env_id!r}: expected a gymnasium.Space as {name} of {kind}")
        if leave_out and not passed_on:
            env, space = gymnasium.Wrapper(env), drop_entries(env.observation_space, leave_out)
            env.observation_space = space
    return env


def _make_by_reference(env_id: str, kwargs: dict[str, Any]) -> Any:
    import gymnasium

    home, _, name = env_id.rpartition(":")
    module = plugins.module_of(home, f"env.id {env_id!r}")
    found = getattr(module, name, None)
    if callable(found) and name not in gymnasium.registry:  # an id may have the name of its class, and wrappers
        return found(**kwargs)
    if any(re.fullmatch(rf"{re.escape(name)}(-v\d+)?", known) for known in gymnasium.registry):
        return gymnasium_backend.make(name, kwargs)
    if found is not None:
        raise EnvError(f"env.id {env_id!r}: expected a class or function, but {name} is of type {type(found).__name__}")
    hint = did_you_mean(name, [*plugins.public(module), *gymnasium.registry])
    raise EnvError(f"env.id {env_id!r}: {home} has no {name!r} and registers no such id{hint}")
