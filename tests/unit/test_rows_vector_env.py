"""A vector environment over a source with scripted answers."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from zerobeast.clients.env_session import EnvAnswer
from zerobeast.clients.remote.vector_env import RowsVectorEnv
from zerobeast.common.wire.records import step_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec


class Script:
    """A source of two environments that gives scripted answers to whatever it is asked for."""

    spec = EnvSpec("Script-v0", ArraySpace.box((), "|u1"), ArraySpace.discrete(2))

    def __init__(self, *answers: EnvAnswer) -> None:
        self._answers: Iterator[EnvAnswer] = iter(answers)

    def begin_reset(self, seed: int | None, options: dict[str, Any] | None, mask: Any) -> None: ...
    def begin_step(self, actions: Any) -> None: ...
    def close(self) -> None: ...

    def finish(self) -> EnvAnswer:
        return next(self._answers)


def answer(obs: list[int], lost: list[bool], **flags: list[bool]) -> EnvAnswer:
    rows = np.zeros(2, step_record(Script.spec).dtype)
    rows["obs"], rows["reward"] = obs, np.not_equal(obs, 0)
    for name, values in flags.items():
        rows[name] = values
    return EnvAnswer(rows, {}, [], np.array(lost))


def test_an_environment_that_is_back_while_others_reset_is_shown_and_not_reported_lost() -> None:
    no, yes = False, True
    script = Script(
        answer([0, 0], [no, no], first=[yes, yes]),
        answer([1, 0], [no, yes]),
        answer([2, 0], [no, yes], terminated=[yes, no]),
        answer([0, 0], [no, no], first=[yes, yes]),  # answers the reset of the first environment
        answer([1, 1], [no, no]),
    )
    with closing(RowsVectorEnv(lambda *_: script, "Script-v0", 2, None, AutoresetMode.SAME_STEP, None)) as envs:
        envs.reset()
        seen = [envs.step(np.zeros(2, int)) for _ in range(3)]
    assert [obs.tolist() for obs, *_ in seen] == [[1, 0], [0, 0], [1, 1]]
    assert [terminated.tolist() for _, _, terminated, _, _ in seen] == [[no, no], [yes, no], [no, no]]
    assert [truncated.tolist() for _, _, _, truncated, _ in seen] == [[no, yes], [no, no], [no, no]]
    assert [infos["lost"].tolist() if "lost" in infos else None for *_, infos in seen] == [[no, yes], None, None]
