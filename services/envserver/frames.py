"""Settings of environments that send the frames of a screen, which several backends have."""

from typing import TypeVar

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig
from zerobeast.common.settings.section import setting

Kind = TypeVar("Kind", bound=EnvConfig)


class StackConfig(EnvConfig):
    """The environment, and how many frames are stacked in an observation."""

    frame_stack: int = setting(4, "Atari, football: number of stacked frames in an observation", ge=1, le=16)


class Frames(StackConfig):
    """The environment, and how its frames are made."""

    noop_max: int = setting(30, "Atari: maximum number of no-ops at a reset (Mnih et al. 2015)", ge=0, le=1000)
    frame_skip: int = setting(4, "Atari: frames per action; the last two are max-pooled", ge=1, le=64)
    frame_size: int = setting(84, "Atari: side of the square greyscale frame, in pixels", ge=16, le=256)
    sticky_actions: float | None = setting(
        None,
        "Atari: probability of repeating the previous action; empty: 0.25 for ALE/<Game>-v5, otherwise 0",
        ge=0,
        le=1,
    )
    episodic_life: bool = setting(
        default=False,
        meaning="Atari: losing a life sets terminated; returns and lengths are still those of whole games",
    )
    fire_reset: bool = setting(False, "Atari: press FIRE at a reset")
    full_action_space: bool = setting(False, "Atari: use all 18 actions instead of the game's minimal set")
    max_episode_frames: int = setting(108_000, "Atari: frames after which an episode is truncated", ge=1, le=10**9)


def frames_of(config: EnvConfig, kind: type[Kind]) -> Kind:
    """Settings as those that a backend declares; EnvError if they are of another one."""
    if isinstance(config, kind):
        return config
    raise EnvError(path="env", value=config.id, expected=f"settings of {kind.__name__}")
