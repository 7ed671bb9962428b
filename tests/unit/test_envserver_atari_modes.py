"""What ale-py's vector environment does not have is refused with what does, which then works."""

import re
from pathlib import Path
from typing import Any

import pytest

from zerobeast.common.errors import EnvError
from zerobeast.testing.sessions import Session

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("ALE/Pong-v5", {"mode": 1}),
        ("PongNoFrameskip-v4", {"obs_type": "ram"}),
        ("ALE/Pong-ram-v5", {}),
    ],
)
def test_modes_difficulties_and_ram_are_refused_with_the_id_that_takes_them(
    env_id: str, kwargs: dict[str, Any]
) -> None:
    with pytest.raises(EnvError) as refusal:
        Session(env_id, {"kwargs": kwargs}, envs=1)
    way_out = re.search(r"--env (ale_py:\S+)", str(refusal.value))
    assert way_out
    env = Session(way_out[1], {"kwargs": kwargs or {"obs_type": "ram"}}, envs=1).env
    assert env.spec.obs.arrays[0].shape == ((128,) if "-ram" in env_id or "obs_type" in kwargs else (210, 160, 3))


def test_the_file_of_the_page_gives_a_game_in_another_mode_the_usual_frames(tmp_path: Path) -> None:
    pytest.importorskip("cv2", reason="gymnasium's frames of Atari's games need opencv")
    (code,) = re.findall(r"```python\n(import ale_py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "atari_modes.py").write_text(code)
    asked = {"game": "ALE/Freeway-v5", "mode": 1, "difficulty": 1}
    session = Session(f"{tmp_path}/atari_modes.py:make", {"kwargs": asked}, envs=1)
    assert (session.env.spec.obs.arrays[0].shape, session.env.spec.obs.arrays[0].image_size) == ((4, 84, 84), (84, 84))
    session.reset()
    assert session.step()["obs"].any()
