"""What there is to see of an environment: a picture, its pace, and what its choices are called.

It is sent as a map {picture: bytes, shape: [height, width], fps, names}, beside the rows of a step.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.wire import short

USUAL_FPS = 15.0  #: of an environment that has no frame rate of its own
MAX_FPS = 1e6
MAX_SIDE = 4096


class Scene(NamedTuple):
    """One moment."""

    picture: NDArray[np.uint8]  #: [height, width, 3]
    fps: float  #: moments per second
    names: Sequence[str]  #: of the choices of a single discrete action, if they have names


def pack_scene(picture: NDArray[np.uint8], fps: Any, names: Iterable[str]) -> dict[str, Any]:
    """A moment as it is sent; `fps` may come from an environment, which may give anything."""
    known = isinstance(fps, int | float) and 0 < fps < MAX_FPS  # which NaN is not
    pace = float(fps) if known else USUAL_FPS
    return {"picture": picture.tobytes(), "shape": list(picture.shape[:2]), "fps": pace, "names": list(names)}


def unpack_scene(sent: Mapping[str, Any]) -> Scene:
    """Inverse of `pack_scene`."""
    picture = np.frombuffer(sent["picture"], np.uint8).reshape(*sent["shape"], 3)
    return Scene(picture, sent["fps"], sent["names"])


def draw_env(env: Any, env_id: str) -> NDArray[np.uint8]:
    """What `env.render()` draws, as a picture: [height, width, 3], from numbers up to 255, or reals up to 1.

    Raises:
      EnvError: it draws none.
    """
    with raise_as(EnvError, f"env.id {env_id!r} cannot be drawn"):
        found = env.render()
    picture: NDArray[Any] = found if isinstance(found, np.ndarray) else np.zeros(0)
    shape, kind = tuple[int, ...](picture.shape), picture.dtype.kind
    if len(shape) != 3 or shape[2] not in (3, 4) or kind not in "fu" or not all(0 < n <= MAX_SIDE for n in shape[:2]):
        raise EnvError(f"env.id {env_id!r} cannot be rendered: render() returned {short(found)}, expected an RGB array")
    if kind == "f":
        picture = np.clip(picture, 0.0, 1.0) * 255
    return np.ascontiguousarray(picture[..., :3], np.uint8)


def names_of(env: Any) -> list[str]:
    """The names of an environment's choices, if it has a single discrete action and names them."""
    base = getattr(env, "unwrapped", env)
    meanings, members = getattr(base, "get_action_meanings", None), getattr(base, "actions", None)
    try:
        names = list(meanings()) if callable(meanings) else [member.name for member in members or ()]
        return [str(name) for name in names] if len(names) == int(env.action_space.n) else []
    except Exception:  # foreign code, and nothing depends on it
        return []
