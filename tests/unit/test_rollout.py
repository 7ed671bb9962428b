"""Rollout assembly against a simulation that keeps whole histories and knows nothing of buffers."""

import numpy as np
import pytest

from zerobeast.common.wire.records import act_record, step_record
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.actor.rollout import RolloutBuilder

N, T, CORE = 3, 5, 4
POLICY = PolicySpec(logits_and_value(2), CORE)


def env_spec(stack: int) -> EnvSpec:
    return EnvSpec("Counter", ArraySpace.box((2,), "|u1"), ArraySpace.discrete(2), frame_stack=stack)


class Simulation:
    """N environments whose frame is a running number; env i's episode takes 3 + i steps, then NEXT_STEP autoreset."""

    def __init__(self, spec: EnvSpec) -> None:
        self.rows = np.zeros(N, step_record(spec).dtype)
        self.count = np.zeros(N, int)
        self.in_episode = np.zeros(N, int)
        self.stacks: list[list[list[int]]] = []  # [time][env][k]
        self.k = spec.frame_stack

    def step(self, *, reset: bool = False) -> np.ndarray:
        for env in range(N):
            row, length = self.rows[env], 3 + env
            first = reset or self.in_episode[env] == length
            self.in_episode[env] = 0 if first else self.in_episode[env] + 1
            self.count[env] += 1
            done = self.in_episode[env] == length
            row["obs"] = self.count[env] % 256
            row["reward"] = 0 if first else self.count[env] / 10
            row["terminated"], row["truncated"], row["first"] = done and env != 1, done and env == 1, first
        self._stack()
        return self.rows

    def _stack(self) -> None:
        now = []
        for env in range(N):
            frame = int(self.rows["obs"][env, 0])
            fresh = bool(self.rows["first"][env]) or not self.stacks
            now.append([frame] * self.k if fresh else [*self.stacks[-1][env][1:], frame])
        self.stacks.append(now)


def play(stack: int, rollouts: int) -> tuple[list[np.ndarray], Simulation, list[np.ndarray]]:
    spec = env_spec(stack)
    builder, world = RolloutBuilder(spec, POLICY, T, N), Simulation(spec)
    answers = np.zeros(N, act_record(spec, POLICY).dtype)
    taken, seen, t = [], [], 0
    builder.restart(world.step(reset=True))
    seen.append(world.rows.copy())
    while len(taken) < rollouts:
        if builder.complete:
            taken.append(builder.take())
        answers["action"] = t % 2
        answers["logits"], answers["value"] = t, -t
        core = np.full((N, CORE), t, np.float32) if builder.at_start else None
        assert list(builder.act(answers, t, core)) == [t % 2] * N
        builder.observe(world.step())
        seen.append(world.rows.copy())
        t += 1
    return taken, world, seen


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_every_entry_is_what_the_simulation_showed(stack: int) -> None:
    taken, world, seen = play(stack, 4)
    for number, rollout in enumerate(taken):
        for env in range(N):
            assert rollout["obs"][env, :stack, 0].tolist() == world.stacks[number * T][env], "what the policy saw"
        assert number == 0 or (rollout["last_action"][:, 0] == (number * T - 1) % 2).all()
        for t in range(T + 1):
            arrival = seen[number * T + t]
            for name in ("first", "reward", "terminated", "truncated"):
                np.testing.assert_array_equal(rollout[name][:, t], arrival[name], err_msg=f"{name} at {t}")
            np.testing.assert_array_equal(rollout["obs"][:, stack - 1 + t], arrival["obs"])
            if t < T:
                step = number * T + t
                assert (rollout["policy_version"][:, t] == step).all()
                assert (rollout["logits"][:, t] == step).all()
                assert (rollout["value"][:, t] == -step).all()
                assert (rollout["last_action"][:, t + 1] == step % 2).all()
        assert (rollout["core_state"] == number * T).all(), "the state before the rollout's first observation"


def test_restart_drops_the_unroll_and_a_recycled_array_is_fully_overwritten() -> None:
    spec = env_spec(3)
    builder, world = RolloutBuilder(spec, POLICY, T, N), Simulation(spec)
    builder.recycle(used := play(3, 1)[0][0])
    answers, core = np.ones(N, act_record(spec, POLICY).dtype), np.zeros((N, CORE), np.float32)
    builder.restart(world.step(reset=True))
    for _ in range(3):
        builder.act(answers, 0, core)
        builder.observe(world.step())
    rows = world.step()
    builder.restart(rows)
    assert builder.at_start
    frame = rows["obs"][:, 0].copy()
    rollouts = []
    for _ in range(2):
        for _ in range(T):
            builder.act(answers, 7, core)
            builder.observe(world.step())
        rollouts.append(builder.take())
    assert rollouts[0]["first"][:, 0].all()
    assert (rollouts[0]["last_action"][:, 0] == 0).all()
    assert (rollouts[0]["obs"][:, :3, 0] == frame[:, None]).all()
    assert rollouts[1] is used
    assert (used["policy_version"] == 7).all()
    assert (used["logits"] == 1).all()


@pytest.mark.parametrize("stack", [1, 3])
def test_parts_of_observations_and_actions_are_laid_out_like_the_whole_and_so_are_masks(stack: int) -> None:
    parts = (Part("one", ArraySpace.box((2,), "|u1")), Part("two", ArraySpace.discrete(256)))
    hybrid = CompositeSpace("dict", (Part("go", ArraySpace.discrete(2)), Part("aim", ArraySpace.box((1,)))))
    spec = EnvSpec("Parts", CompositeSpace("dict", parts), hybrid, frame_stack=stack, action_mask=True)
    taken, _, seen = play(stack, 3)
    builder, rows = RolloutBuilder(spec, POLICY, T, N), np.zeros(N, step_record(spec).dtype)
    answers = np.zeros(N, act_record(spec, POLICY).dtype)
    found: list[np.ndarray] = []
    for t, plain in enumerate(seen):
        for name in ("reward", "terminated", "truncated", "first"):
            rows[name] = plain[name]
        rows["obs"]["one"], rows["obs"]["two"] = plain["obs"], plain["obs"][:, 0]
        rows["action_mask"][:, 0], rows["action_mask"][:, 1] = True, plain["obs"][:, 0] % 2
        if t:
            builder.observe(rows)
        else:
            builder.restart(rows)
        if builder.complete:
            found.append(builder.take())
        answers["action"]["go"], answers["action"]["aim"][:, 0] = t % 2, t
        builder.act(answers, t, None)
    for mine, whole in zip(found, taken, strict=True):
        np.testing.assert_array_equal(mine["obs"]["one"], whole["obs"])
        np.testing.assert_array_equal(mine["obs"]["two"], whole["obs"][..., 0])
        np.testing.assert_array_equal(mine["action_mask"][..., 1], whole["obs"][:, stack - 1 :, 0] % 2)
        np.testing.assert_array_equal(mine["last_action"]["go"], whole["last_action"])
        np.testing.assert_array_equal(mine["last_action"]["aim"][..., 0] % 2, whole["last_action"])
