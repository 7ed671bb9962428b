"""Many environments as several vector environments: the same rows, made a part at a time."""

import numpy as np
import pytest

from common.config.tree import EnvConfig, EnvServerConfig
from common.errors import EnvError
from services.envserver import catalogue
from services.envserver.atari import AtariVectorEnv
from services.envserver.catalogue import make_vector_env
from services.envserver.parts import PartsVectorEnv
from services.envserver.vector import VectorEnv

pytestmark = pytest.mark.unit

BREAKOUT = EnvConfig(id="ALE/Breakout-v5", frame_skip=4)


def made(env: VectorEnv) -> VectorEnv:
    while not env.collect():
        pass
    return env


def emulators(n: int, seed: int) -> VectorEnv:
    return AtariVectorEnv("breakout", BREAKOUT, n, seed, threads=1)


def test_rows_and_episodes_are_those_of_one_vector_environment() -> None:
    whole, parts = made(emulators(5, 3)), made(PartsVectorEnv(emulators, 5, 3, most=2))
    assert parts.spec == whole.spec
    generator, ends = np.random.default_rng(0), 0
    for env in (whole, parts):
        env.reset()
        assert env.collect()
        assert not env.collect()
    for _ in range(400):
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


def test_a_part_is_made_in_each_turn() -> None:
    asked = []

    def make(n: int, seed: int) -> VectorEnv:
        asked.append((n, seed))
        return emulators(n, seed)

    env = PartsVectorEnv(make, 5, 10, most=2)
    assert asked == []
    turns = [env.collect() for _ in range(3)]
    assert turns == [False, False, True]
    assert asked == [(2, 10), (2, 12), (1, 14)]
    assert env.rows["obs"].shape == (5, 84, 84)
    env.close()


def test_only_emulators_that_are_many_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MAX_AT_ONCE", 2)
    kinds = {n: type(make_vector_env(BREAKOUT, n, 0, EnvServerConfig())) for n in (2, 3)}
    assert kinds == {2: AtariVectorEnv, 3: PartsVectorEnv}


def test_rows_that_fit_no_message_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.envserver.vector.MAX_ROW_BYTES", 5 * 7104 - 1)
    env = PartsVectorEnv(emulators, 5, 0, most=2)
    with pytest.raises(EnvError, match="5 observations"):
        env.collect()
