"""Which backend an environment id belongs to, and the error for an id that belongs to none.

ALE/<Game>-v5, <Game>NoFrameskip-v4   the emulator's vector environment (`atari`)
ids with a vectorised implementation  gymnasium's own (`native`)
everything else                       single environments in worker processes (`workers`): any gymnasium id,
                                      MinAtar/<Game>, and module:Id, which imports that module first
"""

from __future__ import annotations

import math
import re
from functools import partial

from zerobeast.common.errors import EnvError
from zerobeast.common.plugins import find_own_modules
from zerobeast.common.settings.run import EnvConfig, EnvServerConfig
from zerobeast.common.text.suggest import did_you_mean
from zerobeast.services.envserver.atari import AtariVectorEnv
from zerobeast.services.envserver.inline import InlineVectorEnv
from zerobeast.services.envserver.local import LocalVectorEnv
from zerobeast.services.envserver.native import NativeVectorEnv, has_native
from zerobeast.services.envserver.vector import VectorEnv
from zerobeast.services.envserver.workers import WorkerVectorEnv

_ATARI = re.compile(r"ALE/(?P<v5>[^/:]*)-v5|(?P<v4>[^/:]*)NoFrameskip-v4")
_RAW_ATARI = re.compile(r"(?:ALE/)?(?P<game>[A-Za-z0-9]+?)(?:-ram|Deterministic|NoFrameskip)*-v[045]")
MINATAR = "MinAtar/"
EMULATORS_AT_ONCE = 4  #: made in a turn of the loop, 0.3 s; emulators made one by one take a tenth longer to step


def make_vector_env(
    config: EnvConfig, num_envs: int, seed: int, server: EnvServerConfig, *, masks: bool = False
) -> VectorEnv:
    """Choose the backend for N environments, which `VectorEnv.collect` then makes.

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
    match = _ATARI.fullmatch(config.id)
    if match:
        rom = _rom(config.id, match["v5"] if match["v5"] is not None else match["v4"])
        most = min(num_envs, EMULATORS_AT_ONCE)
        threads = math.ceil((server.threads or 1) * most / num_envs)  # of a part: parts are stepped side by side
        return InlineVectorEnv(partial(AtariVectorEnv, rom, config, threads=threads), num_envs, seed, most)
    plain = ":" not in config.id and not config.id.startswith(MINATAR)
    if plain and _has_native(config.id) and not (config.action_mask or masks):
        return InlineVectorEnv(partial(NativeVectorEnv, config), num_envs, seed, num_envs)
    if server.in_process:
        return LocalVectorEnv(config, num_envs, seed)
    return WorkerVectorEnv(config, num_envs, seed, server.workers or 1)


def games() -> dict[str, str]:
    """ROM names of the games for one player, by the CamelCase names in ids; empty without the emulator."""
    try:
        from ale_py import roms
    except ImportError:
        return {}
    multiplayer = {"combat", "joust", "maze_craze", "warlords"}
    return {rom.title().replace("_", ""): rom for rom in sorted(roms.get_all_rom_ids()) if rom not in multiplayer}


def _rom(env_id: str, game: str) -> str:
    known = games()
    if game in known:
        return known[game]
    if not known:
        raise EnvError(f'env.id {env_id!r} needs ale-py, which is not installed: pip install "zerobeast[envserver]"')
    ids = (f"ALE/{name}-v5" if env_id.startswith("ALE/") else f"{name}NoFrameskip-v4" for name in known)
    raise EnvError(f"env.id {env_id!r}: there is no Atari game {game!r}{did_you_mean(env_id, ids)}")


def _has_native(env_id: str) -> bool:
    """Whether gymnasium has a vectorised implementation of an id.

    Raises:
      EnvError: gymnasium does not know the id, or it is of a game whose settings it decides.
    """
    try:
        import gymnasium
    except ImportError as error:
        needs = 'needs gymnasium, which is not installed: pip install "zerobeast[envserver]"'
        raise EnvError(f"env.id {env_id!r} {needs}") from error
    if (match := _RAW_ATARI.fullmatch(env_id)) and (game := match["game"]) in games():
        raise EnvError(
            f"env.id {env_id!r}: expected ALE/{game}-v5 or {game}NoFrameskip-v4, whose frame skip, sticky actions and "
            "action set are settings of env"
        )
    try:
        return has_native(env_id)
    except gymnasium.error.Error as error:
        reason = " ".join(str(error).split())
        raise EnvError(f"env.id {env_id!r} is unknown{did_you_mean(env_id, _all_ids()) or ': ' + reason}") from error


def _all_ids() -> list[str]:
    import gymnasium

    others = [name for name, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py")]
    minatar = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
    atari = [name for game in games() for name in (f"ALE/{game}-v5", f"{game}NoFrameskip-v4")]
    return [*others, *atari, *(f"{MINATAR}{game}-v1" for game in minatar)]
