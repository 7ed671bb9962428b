"""What a client sees, through real sockets: rows in order, true last observations, whole episodes."""

import numpy as np
import pytest

from tests.build.envs import COUNTER
from tests.build.envservers import running
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.transport import Context


def told(row: np.void) -> tuple[int, float, str]:
    """A counter's row as (count, reward, flags)."""
    return (
        int(row["obs"][0]),
        float(row["reward"]),
        "".join(letter for letter, name in (("F", "first"), ("T", "terminated"), ("U", "truncated")) if row[name]),
    )


@pytest.mark.parametrize(("ending", "letter", "workers"), [("truncated", "U", 1), ("terminated", "T", 2)])
def test_the_exact_sequence_of_an_episode_and_the_next(
    context: Context, ipc: str, ending: str, letter: str, workers: int
) -> None:
    env = {"id": COUNTER, "kwargs": {"length": 5, "ending": ending}}
    with running(ipc, workers=workers), EnvClient(context, ipc, env, 3, seed=7) as client:
        rows = client.reset()
        assert rows["obs"].tolist() == [[0, 7], [0, 8], [0, 9]]
        seen, finished = [told(rows[1])], []
        for t in range(1, 13):
            rows, episodes, _ = client.step([0, t % 10, 2])
            seen.append(told(rows[1]))
            finished += [(t, *episode) for episode in episodes]
    assert seen == [
        (0, 0.0, "F"),
        (1, 1.0, ""),
        (2, 2.0, ""),
        (3, 3.0, ""),
        (4, 4.0, ""),
        (5, 5.0, letter),  # the true last observation
        (0, 0.0, "F"),  # action 6 was ignored
        (1, 7.0, ""),
        (2, 8.0, ""),
        (3, 9.0, ""),
        (4, 0.0, ""),
        (5, 1.0, letter),
        (0, 0.0, "F"),
    ]
    assert finished == [(5, 0.0, 5), (5, 15.0, 5), (5, 10.0, 5), (11, 0.0, 5), (11, 25.0, 5), (11, 10.0, 5)]


def test_a_reset_cuts_episodes_off_and_their_returns_never_show(context: Context, ipc: str) -> None:
    with running(ipc), EnvClient(context, ipc, {"id": COUNTER}, 1, seed=0) as client:
        client.reset()
        client.step([9])
        assert told(client.reset()[0]) == (0, 0.0, "F")
        finished = [episode for _ in range(5) for episode in client.step([1])[1]]
    assert finished == [(5.0, 5)]
