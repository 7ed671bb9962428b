"""What a client sees, through real sockets: rows in order, true last observations, whole episodes."""

from typing import Any

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv as Reference

from tests.build.envs import COUNTER, STRANGE
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


def test_frames_of_atari_are_the_emulators_own(context: Context, endpoint: str) -> None:
    reference = Reference("pong", 4, stack_num=1, reward_clipping=False, use_fire_reset=False, num_threads=1)
    frames, _ = reference.reset(seed=np.array([5, 6, 7, 8]))
    generator = np.random.default_rng(0)
    with running(endpoint), EnvClient(context, endpoint, {"id": "PongNoFrameskip-v4"}, 4, seed=5) as client:
        assert (client.spec.frame_stack, client.spec.frame_skip, client.spec.obs.shape) == (4, 4, (84, 84))
        rows = client.reset()
        assert (rows["obs"] == frames[:, 0]).all()
        for _ in range(100):
            actions = generator.integers(0, 6, 4)
            frames, reward, *_ = reference.step(actions)
            rows, *_ = client.step(actions)
            assert (rows["obs"] == frames[:, 0]).all()
            assert (rows["reward"] == reward).all()


def test_the_same_seed_gives_the_same_game_to_another_session(context: Context, ipc: str) -> None:
    def play(client: EnvClient) -> bytes:
        client.reset()
        return b"".join(client.step([t % 6, 2])[0].tobytes() for t in range(50))

    env = {"id": "ALE/Pong-v5"}
    with running(ipc):
        with EnvClient(context, ipc, env, 2, seed=1) as one, EnvClient(context, ipc, env, 2, seed=1) as two:
            assert play(one) == play(two)
        with EnvClient(context, ipc, env, 2, seed=2) as other, EnvClient(context, ipc, env, 2, seed=1) as one:
            assert play(one) != play(other)


def shown(obs: np.ndarray) -> Any:
    """The observation of two environments, which must be the same."""
    if obs.dtype.names:
        return {name: shown(obs[name]) for name in obs.dtype.names}
    assert (obs[0] == obs[1]).all()
    return obs[0].tolist()


@pytest.mark.parametrize(
    ("kind", "obs"),
    [
        ("strided", [[0, 6, 12, 18], [2, 8, 14, 20], [4, 10, 16, 22]]),
        ("discrete", 4),
        ("dict", {"a": [0.5, -0.25], "b": 2}),
    ],
)
def test_observations_of_every_layout_arrive_right(context: Context, ipc: str, kind: str, obs: Any) -> None:
    env = {"id": STRANGE, "kwargs": {"kind": kind}}
    with running(ipc), EnvClient(context, ipc, env, 2, seed=0) as client:
        assert shown(client.reset()["obs"]) == obs
        rows, *_ = client.step([[5.0, 5.0], [-0.05, 0.0]])
        assert shown(rows["obs"]) == obs
        assert rows["reward"].tolist() == pytest.approx([0.2, -0.05])


def test_minatar_plays_whole_episodes(context: Context, ipc: str) -> None:
    with running(ipc), EnvClient(context, ipc, {"id": "MinAtar/Breakout-v1"}, 4, seed=0) as client:
        assert (client.spec.obs.shape, client.spec.obs.dtype) == ((10, 10, 4), "|b1")
        rows, finished, returns = client.reset(), [], np.zeros(4)
        expected = []
        for t in range(100):
            rows, episodes, _ = client.step([t % 3] * 4)
            finished += [value for value, _ in episodes]
            returns += rows["reward"]
            for i in np.flatnonzero(rows["terminated"] | rows["truncated"]):
                expected.append(returns[i])
                returns[i] = 0
    assert finished == expected
    assert len(finished) >= 4
