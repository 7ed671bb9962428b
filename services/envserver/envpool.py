"""EnvPool's environments, many of them in one C++ object, by the ids envpool/<id>.

They step in worker processes, each of which has a pool with one thread, and not in threads of the env-server: what
crashes or hangs in C++ then ends with its worker, and with that the processes that ViZDoom starts.
"""

import secrets
import sys
import warnings
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import EnvSeeds
from zerobeast.common.wire.seeds import list_seeds
from zerobeast.services.envserver.backend import Backend, refuse_arguments, unknown_id_error
from zerobeast.services.envserver.frames import Frames, StackConfig, frames_of
from zerobeast.services.envserver.gymnasium_backend import GymVectorEnvs, warn_once
from zerobeast.services.envserver.minigrid import WITHOUT_MISSION
from zerobeast.services.envserver.scenes import draw_env, pack_scene
from zerobeast.services.envserver.spaces import Adapter, action_adapter, env_spec, obs_adapter
from zerobeast.services.envserver.vector import EnvMask

PREFIX, FOOTBALL = "envpool/", "gfootball/"
MAX_SEED = 2**31  # a pool takes 31 bits
#: options of a pool that are not the user's: rewards are sent as they are, and a life is no episode
OWN_OPTIONS = {
    *("num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path"),
    *("seed", "env_seed", "env_name", "gym_reset_return_info"),
    *("episodic_life", "reward_clip", "zero_discount_on_life_loss"),
}
PIXELS = {"from_pixels", "render_width", "render_height", "render_camera_id"}  #: options that a pool does not list
#: options of text that are words of a list; others may name files and programs
CHOICES = {"reward_type": ("dense", "sparse"), "obstacle_type": ("wall", "lava"), "rules": ("chinese", "pgx")}
STACK_OPTION = "stack_num"  #: an option of what sends screens, Atari's games and ViZDoom's maps
LEFT_OUT_INFOS = ("env_id", "players", "elapsed_step")  #: of the infos


class PoolEnvs(GymVectorEnvs):
    """A pool of n environments. It is seeded when it is made, so that a reset with a seed makes another.

    Args:
      config: which environment, and how.
      num_envs: n.
      seed: environment i gets seed + i at its first reset; None: any.
      draws: whether `scene` has a picture.
      wants_infos: as in `InlineEnvs`; other keywords of `Shard` have no effect.

    Raises:
      EnvError: it cannot be made.
    """

    takes_options = False
    stacked: ClassVar[bool] = False  #: whether policies get `env.frame_stack` observations even if these are no screens

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        seed: int | None,
        *,
        draws: bool = False,
        wants_infos: bool = False,
        **_others: Any,
    ) -> None:
        self._draws, self._seeds, self._is_new = draws, list_seeds(seed, num_envs), True
        with raise_as(EnvError, f"env.id {config.id!r} cannot be made"):
            self._task = self.task_of(config.id)
            self._options = _options(config, self._task)
            pool = self._make_pool()
            (obs, adapt_obs), action = self.adapt_space(pool.observation_space), _action_space(pool.action_space)
            skip = int(self._options.get("frame_skip", 1))
            stack = frames_of(config, StackConfig).frame_stack if self.stacked or STACK_OPTION in self._options else 1
            spec = env_spec(config.id, obs, action, stack=stack, skip=skip)
        super().__init__(pool, spec, adapt_obs, action_adapter(action), num_envs)
        self.wants_infos = wants_infos

    def task_of(self, env_id: str) -> str:
        """EnvPool's id. Raises EnvError if it has no such environment."""
        if env_id not in ids():
            raise unknown_id_error(env_id, "EnvPool has no such environment")
        return env_id.removeprefix(PREFIX)

    def adapt_space(self, space: Any) -> tuple[Any, Adapter]:
        """The space that is sent of an observation, and what converts to it: all but the text of a mission."""
        from gymnasium import spaces

        if isinstance(space, spaces.Dict) and "mission" in space.spaces:
            warn_once(f"{PREFIX}{self._task}: {WITHOUT_MISSION}")
            space = spaces.Dict({name: part for name, part in space.items() if name != "mission"})
        return space, obs_adapter(space)

    def select_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        """All but what describes the pool."""
        return {name: values for name, values in infos.items() if name not in LEFT_OUT_INFOS}

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        """Begin new episodes; as `VectorEnv.reset`, without options and masks."""
        del options, only  # which are refused before
        wanted = self._seeds if seed is None else list_seeds(seed, self.num_envs)
        if seed is not None and not (self._is_new and wanted == self._seeds):
            self._env.close()
            self._seeds = wanted
            self._env = self._make_pool()
        self._is_new = False
        self.begin_episodes(*self._env.reset())

    def scene(self) -> dict[str, Any]:
        """What EnvPool draws of the first environment, if it is to be drawn."""
        if not self._draws:
            return {}
        first = SimpleNamespace(render=lambda: self._env.render()[0])
        return pack_scene(draw_env(first, self.spec.env_id), None, ())

    def _make_pool(self) -> Any:
        import envpool

        seeds = [secrets.randbelow(MAX_SEED) if seed is None else seed % MAX_SEED for seed in self._seeds]
        options = self._options | ({"render_mode": "rgb_array"} if self._draws else {})
        pool = envpool.make_gymnasium(self._task, num_envs=len(seeds), num_threads=1, env_seed=seeds, **options)
        with warnings.catch_warnings(action="ignore"):  # of bounds that lose digits as float32
            _ = pool.observation_space, pool.action_space  # which it makes now and keeps
        return pool


def _options(config: EnvConfig, task: str) -> dict[str, Any]:
    """What a pool is made with besides its size and seeds.

    Raises:
      EnvError: an option or a setting is not for this task.
    """
    import envpool

    defaults = envpool.make_spec(task).config._asdict()
    if (players := defaults["max_num_players"]) > 1:
        raise EnvError(f"env.id {config.id!r}: expected an environment for one player, it is for {players}")
    options: dict[str, Any] = {}
    if STACK_OPTION in defaults:
        frames = frames_of(config, Frames)
        if frames.episodic_life:
            raise EnvError(f"env.episodic_life true: expected false for {config.id}, ids such as ALE/Pong-v5 have it")
        size, skip = frames.frame_size, frames.frame_skip
        options = {STACK_OPTION: 1, "frame_skip": skip, "img_height": size, "img_width": size}
    if "noop_max" in defaults:
        if frames.noop_max == 0:
            raise EnvError(f"env.noop_max 0: expected at least 1 for {config.id}")
        options |= {
            "noop_max": frames.noop_max,
            "use_fire_reset": frames.fire_reset,
            "full_action_space": frames.full_action_space,
            "repeat_action_probability": frames.sticky_actions or 0.0,
            "max_episode_steps": frames.max_episode_frames // skip,
        }
    refuse_arguments(config.kwargs, {*defaults, *PIXELS} - OWN_OPTIONS - options.keys(), config.id)
    return options | config.kwargs


def _action_space(space: Any) -> Any:
    """The space of actions, in which 0 is the bound of ViZDoom's buttons and not the smallest positive number."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and (space.low == np.finfo(np.float64).tiny).all():
        return spaces.Box(0.0, np.inf, space.shape, np.float64)
    return space


def ids() -> list[str]:
    import envpool

    return [f"{PREFIX}{task}" for task in envpool.list_all_envs() if not task.startswith(FOOTBALL)]


def _make_rendered(config: EnvConfig, seed: int) -> PoolEnvs:
    """One environment that is drawn once now: some end their process if there is no library for graphics."""
    envs = PoolEnvs(config, 1, seed, draws=True)
    envs.reset()
    envs.scene()
    return envs


def _ids_if_loaded() -> list[str]:
    """The ids; none in an env-server, which would load 130 MB of simulators to suggest one for another id."""
    return ids() if "envpool" in sys.modules else []


#: what sends no screens has no settings of frames, but only a pool knows
BACKEND = Backend(make_part=PoolEnvs, make_rendered=_make_rendered, ids=_ids_if_loaded, choices=CHOICES)
