"""Many environments as several vector environments: the same rows, made a part at a time."""

import numpy as np
import pytest

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.envserver import atari
from zerobeast.services.envserver.atari import AtariVectorEnv
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.gymnasium_backend import NativeVectorEnv
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.vector import rows_for

BREAKOUT = EnvConfig(id="ALE/Breakout-v5", frame_skip=4)


def test_each_turn_makes_a_part_or_resets_it_and_the_rows_are_those_of_one_vector_environment() -> None:
    asked = []

    def make(n: int, seed: int) -> InlineEnvs:
        asked.append((n, seed))
        return AtariVectorEnv("breakout", BREAKOUT, n, seed, threads=1)

    whole, parts = InlineVectorEnv(make, 5, 3, 5), InlineVectorEnv(make, 5, 3, most=2)
    turns = [(parts.collect(), len(asked)) for _ in range(6)]
    assert turns == [(False, 1), (False, 1), (False, 2), (False, 2), (False, 3), (True, 3)]
    assert asked == [(2, 3), (2, 5), (1, 7)]
    while not whole.collect():
        pass
    assert parts.spec == whole.spec
    generator, ends = np.random.default_rng(0), 0
    for t in range(400):
        if t % 300 == 0:
            for env in (whole, parts):
                env.reset()  # of which the first is the one that has seeded them
                assert env.collect()
                assert not env.collect()
        assert (parts.rows == whole.rows).all()
        assert parts.episodes == whole.episodes
        ends += len(whole.episodes)
        actions = generator.integers(0, 4, 5)
        for env in (whole, parts):
            env.step(actions.copy())
            assert env.collect()
    assert ends > 0
    parts.close()
    whole.close()


def test_an_observed_choice_out_of_range_is_refused() -> None:
    env = NativeVectorEnv(EnvConfig(id="CartPole-v1"), 2, 0)
    env.spec = env.own = EnvSpec("Choice-v0", ArraySpace.discrete(5), ArraySpace.discrete(2))
    env.write_to(rows_for(env.spec, 2))
    env.fill_first(np.array([4, 0]))
    with pytest.raises(EnvError, match="the choice 5"):
        env.fill_first(np.array([0, 5]))
    env.close()


@pytest.mark.parametrize(
    ("num_envs", "threads", "parts"),
    [(16, 2, [(4, 1)] * 4), (16, 6, [(4, 2)] * 4), (6, 3, [(4, 2), (2, 2)])],
)
def test_the_threads_of_a_session_are_shared_out_over_its_parts(
    monkeypatch: pytest.MonkeyPatch, num_envs: int, threads: int, parts: list[tuple[int, int]]
) -> None:
    asked = []

    def emulator(_rom: str, _config: EnvConfig, n: int, seed: int, threads: int) -> InlineEnvs:
        asked.append((n, threads))
        return NativeVectorEnv(EnvConfig(id="CartPole-v1"), n, seed)

    monkeypatch.setattr(atari, "AtariVectorEnv", emulator)
    env = make_vector_env(BREAKOUT, num_envs, 0, EnvServerConfig(threads=threads))
    while not env.collect():
        pass
    env.close()
    assert asked == parts
