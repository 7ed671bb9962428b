"""Environments in the env-server's own process give the rows that worker processes give."""

import select

import numpy as np

from tests.build.envs import COUNTER
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.vector import VectorEnv

N, STEPS = 3, 120
CONFIG = EnvConfig(id="gymnasium.envs:CartPole-v1", kwargs={"max_episode_steps": 12})
LOCAL, WORKERS = EnvServerConfig(in_process=True), EnvServerConfig(workers=2)


def collected(env: VectorEnv) -> VectorEnv:
    while not env.collect():
        select.select(env.files, (), (), 0.1)
    return env


def test_rows_and_episodes_are_those_of_worker_processes() -> None:
    local, workers = (make_vector_env(CONFIG, N, 5, server) for server in (LOCAL, WORKERS))
    try:
        assert collected(local).spec == collected(workers).spec
        for env in (local, workers):
            env.reset()
        episodes = 0
        generator = np.random.default_rng(1)
        for _ in range(STEPS):
            assert collected(local).rows.tobytes() == collected(workers).rows.tobytes()
            assert local.episodes == workers.episodes
            episodes += len(local.episodes)
            actions = generator.integers(2, size=N)
            for env in (local, workers):
                env.step(actions.copy())
        assert episodes > N
    finally:
        for env in (local, workers):
            collected(env)
            env.close()
            while not env.closed(force=True):
                pass


def test_an_environment_that_raises_is_counted_and_made_anew() -> None:
    env = make_vector_env(EnvConfig(id=COUNTER, kwargs={"raise_at": 2}), 2, 1, LOCAL)
    collected(env).reset()
    for _ in range(2):
        assert collected(env).rows["first"].all() or env.errors == 0
        env.step(np.zeros(2, np.int64))
    assert collected(env).errors == 2
    assert env.rows["first"].all(), "both begin another episode"
    env.close()
