"""Rollout assembly against a simulation that keeps whole histories and knows nothing of buffers."""

from typing import Any

import numpy as np
import pytest

from zerobeast.common.wire import EnvSpec, PolicySpec, act_record, step_record
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.actor.rollout import RolloutBuilder

N, T, CORE = 3, 5, 4
POLICY = PolicySpec(logits_and_value(2), CORE)
PARTS = CompositeSpace("dict", (Part("one", ArraySpace.box((2,), "|u1")), Part("two", ArraySpace.discrete(256))))
HYBRID = CompositeSpace("dict", (Part("go", ArraySpace.discrete(2)), Part("aim", ArraySpace.box((1,)))))


def env_spec(stack: int) -> EnvSpec:
    return EnvSpec("Counter", PARTS, HYBRID, frame_stack=stack, action_mask=True)


class Simulation:
    """N environments whose frame is a running number; env i's episode takes 3 + i steps, then NEXT_STEP autoreset."""

    def __init__(self, spec: EnvSpec) -> None:
        self.seen: list[np.ndarray] = []  #: step records of each time
        self.in_episode = np.zeros(N, int)
        self.stacks: list[list[list[int]]] = []  # [time][env][k]
        self.spec, self.k = spec, spec.frame_stack

    def step(self, *, reset: bool = False) -> np.ndarray:
        rows = np.zeros(N, step_record(self.spec).dtype)
        frame = len(self.seen) + 1
        for env in range(N):
            row, length = rows[env], 3 + env
            first = reset or self.in_episode[env] == length
            self.in_episode[env] = 0 if first else self.in_episode[env] + 1
            done = self.in_episode[env] == length
            row["obs"]["one"] = row["obs"]["two"] = frame
            row["action_mask"] = [True, frame % 2]
            row["reward"] = 0 if first else frame / 10
            row["terminated"], row["truncated"], row["first"] = done and env != 1, done and env == 1, first
        before = self.stacks[-1] if self.stacks else [[frame] * self.k] * N
        fresh = zip(before, rows["first"], strict=True)
        self.stacks.append([[frame] * self.k if first else [*stack[1:], frame] for stack, first in fresh])
        self.seen.append(rows)
        return rows.copy()


class Play:
    """A builder that is given the steps of a simulation, and at time t the action t % 2 and answers that tell t."""

    def __init__(self, stack: int) -> None:
        self.world, self.t = Simulation(env_spec(stack)), 0
        self.builder = RolloutBuilder(self.world.spec, POLICY, T, N)
        self.answers = np.zeros(N, act_record(self.world.spec, POLICY).dtype)
        self.builder.restart(self.world.step(reset=True))

    def step(self) -> None:
        self.answers["action"]["go"], self.answers["action"]["aim"] = self.t % 2, self.t
        self.answers["logits"], self.answers["value"] = self.t, -self.t
        core = np.full((N, CORE), self.t, np.float32) if self.builder.at_start else None
        taken: Any = self.builder.act(self.answers, self.t, core)
        assert list(taken["go"]) == [self.t % 2] * N
        self.builder.observe(self.world.step())
        self.t += 1

    def rollout(self) -> np.ndarray:
        for _ in range(T):
            self.step()
        assert self.builder.complete
        return self.builder.take()


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_every_entry_is_what_the_simulation_showed(stack: int) -> None:
    play = Play(stack)
    for number in range(4):
        rollout, start, seen = play.rollout(), number * T, play.world.seen
        for env in range(N):
            assert rollout["obs"]["two"][env, :stack].tolist() == play.world.stacks[start][env], "what the policy saw"
        for t in range(T + 1):
            for name in ("first", "reward", "terminated", "truncated", "action_mask"):
                np.testing.assert_array_equal(rollout[name][:, t], seen[start + t][name], err_msg=f"{name} at {t}")
            for name in ("one", "two"):
                np.testing.assert_array_equal(rollout["obs"][name][:, stack - 1 + t], seen[start + t]["obs"][name])
            before = start + t - 1
            assert (rollout["last_action"]["go"][:, t] == max(before, 0) % 2).all()
            assert (rollout["last_action"]["aim"][:, t] == max(before, 0)).all()
        steps = np.arange(start, start + T)
        assert (rollout["policy_version"] == steps).all()
        assert (rollout["logits"] == steps[:, None]).all()
        assert (rollout["value"] == -steps).all()
        assert (rollout["core_state"] == start).all(), "the state before the rollout's first observation"


def test_restart_drops_the_unroll_and_a_recycled_array_is_fully_overwritten() -> None:
    play = Play(3)
    play.builder.recycle(used := Play(3).rollout())
    for _ in range(3):
        play.step()
    rows = play.world.step()
    play.builder.restart(rows)
    assert play.builder.at_start
    first, second = play.rollout(), play.rollout()
    assert first["first"][:, 0].all()
    assert (first["last_action"]["aim"][:, 0] == 0).all()
    assert (first["obs"]["two"][:, :3] == rows["obs"]["two"][:, None]).all()
    assert second is used
    assert (used["policy_version"] == np.arange(3 + T, 3 + 2 * T)).all()
    assert (used["logits"][..., 0] == used["policy_version"]).all()
