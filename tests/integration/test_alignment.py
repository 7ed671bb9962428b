"""What reaches the learner is what the environment showed and the policy answered, through the real services.

The environment counts its steps, the policy counts in its recurrent state: any slip of one entry shows.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.build.alignment import CountingAlgorithm, StackAlgorithm, StubLearner, T, play
from tests.build.envs import Clock
from zerobeast.rl.ops.frames import stack_frames
from zerobeast.services.broker import sessions as sessions


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> StubLearner:
    folder = tmp_path_factory.mktemp("counter")
    return play(folder, {"id": "tests.build.envs:Clock"}, CountingAlgorithm)


def test_the_learner_rebuilds_the_very_stacks_that_the_policy_got(tmp_path: Path) -> None:
    short = {"id": "PongNoFrameskip-v4", "max_episode_frames": 40, "frame_stack": 4}  # truncated every 10 steps
    rollouts = play(tmp_path, short, StackAlgorithm).each
    assert sum(rollout["truncated"].sum() for rollout in rollouts) > 10
    for rollout in rollouts:
        obs = torch.from_numpy(rollout["obs"].copy())
        stacks = stack_frames(obs, torch.from_numpy(rollout["first"].copy()), 4)
        sums = stacks.flatten(3).sum(-1).float()[:T, :, [0, 1, -1]].transpose(0, 1)
        np.testing.assert_array_equal(rollout["logits"], sums.numpy())


def test_every_rollout_continues_the_one_before_it(learner: StubLearner) -> None:
    for rollouts in learner.rollouts.values():
        for before, after in pairwise(rollouts):
            for name in ("first", "reward", "terminated", "truncated", "last_action"):
                np.testing.assert_array_equal(before[name][:, T], after[name][:, 0])
            np.testing.assert_array_equal(before["obs"][:, -1], after["obs"][:, -T - 1])


def test_answers_belong_to_the_observation_beside_them_and_rewards_to_the_action_before(learner: StubLearner) -> None:
    for rollout in learner.each:
        obs = rollout["obs"][:, -T - 1 :, 0].astype(np.float32)
        np.testing.assert_array_equal(rollout["core_state"][:, 0], obs[:, 0], "the state before the first observation")
        shown, first, last_action = rollout["logits"], rollout["first"], rollout["last_action"]
        np.testing.assert_array_equal(shown[:, :, 0], obs[:, :T])
        np.testing.assert_array_equal(rollout["value"], obs[:, :T])
        np.testing.assert_array_equal(shown[:, :, 2], rollout["reward"][:, :T])
        np.testing.assert_array_equal(last_action[:, 1:], (obs[:, :T].astype(int) + 1) % 3)
        np.testing.assert_array_equal(rollout["reward"][:, 1:], np.where(first, 0, last_action)[:, 1:])
        np.testing.assert_array_equal(rollout["terminated"] | rollout["truncated"], obs == Clock.LENGTH)
        np.testing.assert_array_equal(first, obs == 0)


def test_episodes_are_whole_and_their_returns_exact(learner: StubLearner) -> None:
    expected = sum((step + 1) % 3 for step in range(Clock.LENGTH))
    assert {tuple(episode) for episode in learner.episodes} == {(float(expected), Clock.LENGTH)}
