"""What ale-py's vector environment does not have is refused with what does, which then works."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.vector import VectorEnv

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()


def made(env_id: str, **kwargs: Any) -> VectorEnv:
    env = make_vector_env(EnvConfig(id=env_id, kwargs=kwargs), 1, 0, EnvServerConfig(in_process=True))
    while not env.collect():
        pass
    return env


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("ALE/Pong-v5", {"mode": 1}),
        ("PongNoFrameskip-v4", {"difficulty": 1}),
        ("ALE/Pong-v5", {"obs_type": "ram"}),
        ("ALE/Pong-ram-v5", {}),
        ("Pong-ram-v4", {}),
    ],
)
def test_modes_difficulties_and_ram_are_refused_with_the_id_that_takes_them(
    env_id: str, kwargs: dict[str, Any]
) -> None:
    with pytest.raises(EnvError, match="--env ale_py:") as refusal:
        made(env_id, **kwargs)
    way_out = re.search(r"--env (\S+)", str(refusal.value))
    assert way_out
    env = made(way_out[1], **kwargs or {"obs_type": "ram"})
    assert env.spec.obs.arrays[0].shape == ((128,) if "-ram" in env_id or "obs_type" in kwargs else (210, 160, 3))


def test_the_file_of_the_page_gives_a_game_in_another_mode_the_usual_frames(tmp_path: Path) -> None:
    pytest.importorskip("cv2", reason="gymnasium's frames of Atari's games need opencv")
    (code,) = re.findall(r"```python\n(import ale_py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "atari_modes.py").write_text(code)
    env = made(f"{tmp_path}/atari_modes.py:make", game="ALE/Freeway-v5", mode=1, difficulty=1)
    assert (env.spec.obs.arrays[0].shape, env.spec.obs.arrays[0].image_size) == ((4, 84, 84), (84, 84))
    env.reset()
    while not env.collect():
        pass
    env.step(np.zeros(1, np.int64))
    while not env.collect():
        pass
    assert env.rows["obs"].any()
