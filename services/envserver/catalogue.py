"""Makes the vector environment of a session: that of the id's backend, or single environments in worker processes."""

from __future__ import annotations

from zerobeast.common.errors import EnvError
from zerobeast.common.plugins import find_own_modules
from zerobeast.common.settings.run import EnvConfig, EnvServerConfig
from zerobeast.services.envserver.backend import VectorRequest, backend_at, reference_for
from zerobeast.services.envserver.local import LocalVectorEnv
from zerobeast.services.envserver.vector import VectorEnv, contained
from zerobeast.services.envserver.workers import WorkerVectorEnv


def make_vector_env(
    config: EnvConfig, num_envs: int, seed: int, server: EnvServerConfig, *, masks: bool = False
) -> VectorEnv:
    """Choose what steps N environments, which `VectorEnv.collect` then makes.

    Args:
      config: which environment.
      num_envs: N.
      seed: environment i gets seed + i at the first reset.
      server: threads and workers to use.
      masks: whether some may be reset while others play on, which gymnasium's vectorised implementations cannot do.

    Raises:
      EnvError: the id is unknown or its package is not installed. `collect` raises what only making them reveals.
    """
    find_own_modules()
    reference = ""
    if ":" not in config.id:
        reference = reference_for(config.id)
        backend = backend_at(reference, config.id)
        with contained(f"env.id {config.id!r} cannot be made"):
            env = backend.make_vec(VectorRequest(config, num_envs, seed, server.threads or 1, masks))
        if isinstance(env, VectorEnv):
            return env
        if env is not None:
            raise EnvError(f"env.id {config.id!r}, backend {reference}: make_vec returned {env!r:.200}, no VectorEnv")
    if server.in_process:
        return LocalVectorEnv(config, num_envs, seed, reference)
    return WorkerVectorEnv(config, num_envs, seed, server.workers or 1, reference)
