import gymnasium
import numpy as np
import pytest

from zerobeast.common.settings import EnvConfig
from zerobeast.services.envserver.gymnasium_backend import NativeVectorEnv


def cartpole(num_envs: int, seed: int = 0) -> NativeVectorEnv:
    env = NativeVectorEnv(EnvConfig(id="CartPole-v1"), num_envs, seed)
    env.reset()
    return env


def step(env: NativeVectorEnv, actions: np.ndarray) -> np.ndarray:
    env.begin_step(actions)
    env.finish_step()
    return env.rows


def test_every_step_is_what_the_single_environment_does() -> None:
    env = cartpole(1, seed=7)
    single = gymnasium.make("CartPole-v1").unwrapped
    single.reset()
    single.state = env.rows["obs"][0].astype(np.float64)
    for t in range(200):
        rows = step(env, np.array([t % 2]))
        obs, reward, terminated, _, _ = single.step(t % 2)
        np.testing.assert_allclose(rows["obs"][0], obs, rtol=1e-4, atol=1e-5)
        assert (rows["reward"][0], rows["terminated"][0], rows["first"][0]) == (reward, terminated, False)
        if terminated:
            return
    pytest.fail("the pole has to fall")


def test_an_episode_ends_at_500_truncated_and_its_next_row_is_first() -> None:
    env = cartpole(2)
    lengths, previous, started = [], env.rows.copy(), 0  # of environment 0, which a simple controller balances
    for t in range(1, 1200):
        _, velocity, angle, spin = env.rows["obs"][0]
        rows = step(env, np.array([int(angle + 0.3 * spin + 0.03 * velocity > 0), 0])).copy()
        over = previous["terminated"] | previous["truncated"]
        assert (rows["first"] == over).all()
        assert not (rows["reward"] * rows["first"]).any()
        assert not ((rows["terminated"] | rows["truncated"]) & rows["first"]).any()
        assert (np.abs(rows["obs"][rows["first"]]) <= 0.05).all(), "a first observation is a start"
        if rows["truncated"][0]:
            lengths.append(t - started)
            assert [500.0, 500] in env.episodes
            started = t + 1
        previous = rows
    assert lengths == [500, 500]


def test_a_seed_decides_the_first_reset_and_later_ones_differ() -> None:
    one, same, other = cartpole(3, seed=5), cartpole(3, seed=5), cartpole(3, seed=6)
    start = one.rows["obs"].copy()
    assert (start == same.rows["obs"]).all()
    assert (start != other.rows["obs"]).any()
    one.reset()
    assert (start != one.rows["obs"]).any()
    assert one.rows["first"].all()
