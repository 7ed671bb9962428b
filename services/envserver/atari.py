"""Atari through ale-py's C++ vector environment: many games in one call, outside Python's lock.

Only the newest frame is sent: frames are stacked where the policy is. Rewards are sent unclipped. The id determines the
game, and whether actions are sticky if the settings leave that open; everything else is a setting of `EnvConfig`.
"""

import math
import re
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import EnvSeeds
from zerobeast.common.wire.seeds import list_seeds
from zerobeast.services.envserver.backend import Backend, VectorRequest, refuse_arguments, unknown_id_error
from zerobeast.services.envserver.frames import Frames, frames_of
from zerobeast.services.envserver.infos import extract_numbers
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.scenes import pack_scene
from zerobeast.services.envserver.spaces import env_spec
from zerobeast.services.envserver.vector import EnvMask

SINGLE_ENV_KWARGS = ("mode", "difficulty", "obs_type")  #: arguments that only gymnasium's single environments take
SINGLE_ENV_HINT = "makes single games, with raw frames or RAM (docs/environments.md shows the usual preprocessing)"
KWARGS = ("continuous", "continuous_action_threshold", "grayscale", "maxpool")
V5_STICKY_ACTIONS = 0.25  #: Machado et al. 2018, "Revisiting the Arcade Learning Environment"
MAX_SEED = 2**31  # the emulator takes 31 bits
HEIGHT, WIDTH, FRAMES_PER_S = 210, 160, 60  #: of a television set with NTSC
COUNTS = ("lives", "frame_number", "episode_frame_number")  #: infos of the emulator
KEEP_SEED = -1  # in place of a seed: the generator goes on
EMULATORS_AT_ONCE = 4  #: made in a turn of the loop, 0.3 s; emulators made one by one take a tenth longer to step
MULTIPLAYER = {"combat", "joust", "maze_craze", "warlords"}
_RAW_ID = re.compile(r"(?:ALE/)?(?P<game>[A-Za-z0-9]+?)(?:-ram|Deterministic|NoFrameskip)*-v[045]")


def make_vec(request: VectorRequest) -> InlineVectorEnv:
    """The emulator's vector environments, in parts that are stepped side by side.

    Raises:
      EnvError: there is no such game.
    """
    config, num_envs = frames_of(request.config, Frames), request.num_envs
    rom = rom_of(config.id)
    most = min(num_envs, EMULATORS_AT_ONCE)
    threads = math.ceil(request.threads * most / num_envs)  # of a part
    make = partial(AtariVectorEnv, rom, config, threads=threads)
    return InlineVectorEnv(make, num_envs, request.seed, most)


def rom_of(env_id: str) -> str:
    """The name of a game's ROM. Raises EnvError if there is none."""
    rom = games().get(env_id)
    if rom is None:
        refuse_raw(env_id)
        raise unknown_id_error(env_id, "there is no such Atari game")
    return rom


def games() -> dict[str, str]:
    """ROM names of the games for one player, by their ids here. Raises ImportError without the emulator."""
    from ale_py import roms

    names = {rom.title().replace("_", ""): rom for rom in sorted(set(roms.get_all_rom_ids()) - MULTIPLAYER)}
    return {env_id: rom for name, rom in names.items() for env_id in (f"ALE/{name}-v5", f"{name}NoFrameskip-v4")}


def refuse_raw(env_id: str) -> None:
    """Refuse ids of gymnasium's that decide what settings of `env` do here. Raises EnvError with those to use."""
    match = _RAW_ID.fullmatch(env_id)
    with suppress(ImportError):
        if match and f"ALE/{(game := match['game'])}-v5" in games():
            if "-ram" in env_id:
                one = f"--env ale_py:ALE/{game}-v5 --env.kwargs '{{obs_type: ram}}'"
                raise EnvError(f"env.id {env_id!r}: ale-py's vector environment sends no RAM: {one} {SINGLE_ENV_HINT}")
            ours = f"ALE/{game}-v5 or {game}NoFrameskip-v4"
            why = "whose frame skip, sticky actions and action set are settings of env"
            raise EnvError(f"env.id {env_id!r}: expected {ours}, {why}")


class AtariVectorEnv(InlineEnvs):
    """N copies of one game.

    Lost lives are handled here and not by ale-py (0.12.1), which would restart the whole game at each: with
    `episodic_life` the row is terminated, the next row is the first of an episode, and the game goes on with a no-op
    (FIRE if `fire_reset` is set), as in Mnih et al. 2015. Statistics still cover whole games.

    Args:
      rom: snake_case name of the game's ROM.
      config: settings, among them how frames are made.
      num_envs: N.
      seed: environment i gets seed + i at its first reset.
      threads: C++ threads.

    Raises:
      EnvError: a kwarg is unknown.
    """

    takes_options = False

    def __init__(self, rom: str, config: Frames, num_envs: int, seed: int, threads: int) -> None:
        from gymnasium import spaces

        self._env = _make_emulator(rom, config, num_envs, threads)
        stack, action = self._env.single_observation_space, self._env.single_action_space  # a stack of one
        frame = spaces.Box(stack.low[0], stack.high[0], dtype=stack.dtype)
        spec = env_spec(config.id, frame, action, stack=config.frame_stack, skip=config.frame_skip)
        super().__init__(spec, num_envs)
        self._seed: int | None = seed
        self._episodic_life = config.episodic_life
        self._resume_action = _resume_action(self._env, config)
        self._lives = np.zeros(num_envs, np.int64)
        self._life_lost = np.zeros(num_envs, np.bool_)  #: a lost life ended the episode, and the game goes on
        self._game_over = np.zeros(num_envs, np.bool_)  #: the emulator's next step is a reset

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        del options  # the emulator's only option is the mask
        chosen = np.ones(self.num_envs, np.bool_) if only is None else only
        seeds = list_seeds(self._seed if seed is None else seed, self.num_envs)
        self._seed = None
        due = [each for each, is_chosen in zip(seeds, chosen, strict=True) if is_chosen]
        numbers = np.array([KEEP_SEED if each is None else each % MAX_SEED for each in due])
        obs, info = self._env.reset(seed=numbers, options={"reset_mask": chosen})
        self._keep(info, chosen)
        self._life_lost[chosen] = self._game_over[chosen] = False
        self._lives[:] = info["lives"]
        self.fill_first(obs[:, 0], chosen)

    def begin_step(self, actions: NDArray[Any]) -> None:
        actions[self._life_lost] = self._resume_action
        self._env.send(actions)

    def finish_step(self) -> None:
        obs, reward, terminated, truncated, info = self._env.recv()
        self._keep(info)
        first = self._life_lost | self._game_over
        self._game_over = terminated | truncated
        if self._episodic_life:
            lost = (info["lives"] < self._lives) & (info["lives"] > 0) & ~self._game_over & ~first
            self._lives[:] = info["lives"]
            self._life_lost = lost
            terminated = terminated | lost
        self.statistics.whole = self._game_over.tolist()
        self.episodes = self.statistics.update(
            reward, first, terminated | truncated, partial(extract_numbers, self.infos)
        )
        self.fill(obs[:, 0], reward, terminated, truncated, first)

    def _keep(self, info: dict[str, Any], chosen: EnvMask = None) -> None:
        self.infos = {name: values for name, values in info.items() if name != "env_id"}  # env_id counts from 0 here
        if chosen is not None:
            self.infos = {name: np.where(chosen, values, 0) for name, values in self.infos.items()}
            self.infos |= {f"_{name}": chosen for name in self.infos}

    def close(self) -> None:
        """Drop the emulator; its threads end with it."""
        del self._env


def _make_emulator(rom: str, config: Frames, num_envs: int, threads: int, **frames: Any) -> Any:
    """The emulator's vector environment; `frames` are settings of its frames in place of those of `config`."""
    from ale_py.vector_env import AtariVectorEnv as Emulator

    kwargs: dict[str, Any] = dict(config.kwargs)
    if config.action_mask:
        raise EnvError(f"env.action_mask {config.action_mask!r}: expected none, because Atari games allow every action")
    if found := [name for name in SINGLE_ENV_KWARGS if name in kwargs]:
        what = f"env.kwargs: ale-py's vector environment, which makes {config.id}, has no {found[0]!r}"
        raise EnvError(f"{what}: --env ale_py:{config.id} takes it, and {SINGLE_ENV_HINT}")
    refuse_arguments(kwargs, KWARGS, "Atari")
    usual = V5_STICKY_ACTIONS if config.id.startswith("ALE/") else 0.0  # gymnasium's default for the id
    with raise_as(EnvError, f"env.id {config.id!r} cannot be made"):
        return Emulator(
            rom,
            num_envs,
            num_threads=threads,
            max_num_frames_per_episode=config.max_episode_frames,  # raw frames, counted from the reset's last no-op
            repeat_action_probability=usual if config.sticky_actions is None else config.sticky_actions,
            full_action_space=config.full_action_space,
            stack_num=1,
            frameskip=config.frame_skip,
            noop_max=config.noop_max,
            reward_clipping=False,
            use_fire_reset=config.fire_reset,
            **{"img_height": config.frame_size, "img_width": config.frame_size, **kwargs, **frames},
        )


def _resume_action(env: Any, config: Frames) -> Any:
    """The action that begins a new life: an index into the game's action set, or a centred stick."""
    if config.kwargs.get("continuous"):
        return np.array([0, 0, config.fire_reset], np.float32)
    names = [action.name for action in env.ale.get_action_set()]
    return names.index("FIRE") if config.fire_reset and "FIRE" in names else names.index("NOOP")


class RenderedAtari(AtariVectorEnv):
    """One game that is shown in colour and in the emulator's own size, while the policy gets what it always gets.

    The pictures are those of a second emulator, which has the same seed, settings and actions.

    Args: see `AtariVectorEnv`.

    Raises:
      EnvError: as `make_vec`.
    """

    def __init__(self, config: EnvConfig, seed: int) -> None:
        rom, settings = rom_of(config.id), frames_of(config, Frames)
        super().__init__(rom, settings, 1, seed, threads=1)
        self.twin = _make_emulator(rom, settings, 1, 1, img_height=HEIGHT, img_width=WIDTH, grayscale=False)
        self._names = [action.name for action in self._env.ale.get_action_set()]
        self._fps = FRAMES_PER_S / settings.frame_skip

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        first = self._seed if seed is None else list_seeds(seed, 1)[0]
        super().reset(seed, options, only)
        obs, info = self.twin.reset(seed=np.array([KEEP_SEED if first is None else first % MAX_SEED]))
        self._see(obs, info)

    def begin_step(self, actions: NDArray[Any]) -> None:
        own = actions.copy()
        super().begin_step(own)
        self.twin.send(own)

    def finish_step(self) -> None:
        super().finish_step()
        obs, reward, terminated, truncated, info = self.twin.recv()
        same = self.rows["first"] | (self.rows["reward"] == reward)
        self._see(obs, info, alike=bool(same[0] and self._game_over[0] == (terminated | truncated)[0]))

    def scene(self) -> dict[str, Any]:
        return pack_scene(self._picture, self._fps, self._names)

    def _see(self, obs: NDArray[Any], info: dict[str, Any], *, alike: bool = True) -> None:
        assert isinstance(self.infos, dict), "which `_keep` has made"
        if not alike or any(info[name][0] != self.infos[name][0] for name in COUNTS):
            raise EnvError(
                f"env.id {self.spec.env_id!r}: two emulators with the same seed differ, so it cannot be rendered"
            )
        self._picture = obs[0, -1]

    def close(self) -> None:
        del self.twin
        super().close()


BACKEND = Backend(make_vec=make_vec, ids=games, make_rendered=RenderedAtari)
