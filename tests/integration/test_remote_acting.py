"""Whole rollouts from a real worker, by a policy of this process."""

import runpy
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.build.learners import FakeActor, run_config
from tests.helpers import ROOT, free_port, in_thread, python, wait_until
from zerobeast import ConfigError, PeerLost, RemoteActing
from zerobeast.common.config.load import load_config
from zerobeast.common.config.process import Instance
from zerobeast.common.service import computation
from zerobeast.common.service.entry import services_of
from zerobeast.common.transport import Context
from zerobeast.rl.algos.policy_gradient.actor_critic import policy_logits

ENVS = 6
SETTINGS = ["--env", "CartPole-v1", "--preset", "classic", "--actor.envs_per_group", "3", "--actor.env_groups", "2"]
SETTINGS += ["--actor.collect_ahead", "false", "--broker.precision", "float32"]


@contextmanager
def acting(*flags: str, apart: bool = True) -> Iterator[RemoteActing]:
    """With one worker, a process or a thread, whose rollouts of one policy version fill a batch."""
    settings = [*SETTINGS, *flags, "--learner.endpoint", f"tcp://127.0.0.1:{free_port(3)}"]
    with ExitStack() as stack:
        if apart:
            worker = stack.enter_context(python("-m", "zerobeast.services.worker", *settings, stdout=None, stderr=None))
            stack.callback(worker.terminate)
        else:
            stack.enter_context(in_thread(*services_of("worker", load_config(settings, {}), Instance())))
        yield stack.enter_context(RemoteActing(load_config([*settings, "--learner.batch_size", str(ENVS)], {})))


def test_every_step_is_whole_and_of_the_policy_that_was_given_or_the_one_before() -> None:
    with acting() as env:
        policy = env.policy()
        batches = []
        for version in range(4):
            batch = env.step(policy)
            newest = batch.policy_version == version
            assert (newest | (batch.policy_version == version - 1)).all(), "weights may be later than credit"
            found, expected = batch.extras["logits"][newest], policy_logits(policy, batch)[newest]
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
            batches.append(batch.copy())
            with torch.no_grad():
                for weights in policy.parameters():
                    weights.add_(0.1 * torch.randn_like(weights))
        for before, after in pairwise(batches):
            ends = {tuple(obs.tolist()) for obs in before.obs[-1]}
            assert ends == {tuple(obs.tolist()) for obs in after.obs[0]}, "nothing is missing between two batches"
        assert env.versions == 4
        assert env.syncs > 1
        with pytest.raises(ConfigError, match="CartPole-v1"):
            env.step(torch.nn.Linear(2, 3))
        env.step(policy)
        assert env.versions == 5


def test_estimates_of_the_example_end_where_an_environment_was_replaced_in_the_middle_of_an_episode() -> None:
    example = runpy.run_path(str(ROOT / "docs/examples/remote_acting.py"))
    no = torch.zeros(4, 1, dtype=torch.bool)
    mask = torch.tensor([[True], [False], [True]])  # the second action was ignored
    batch = SimpleNamespace(reward=torch.tensor([[0.0], [3.0], [0.0], [5.0]]), terminated=no, truncated=no, mask=mask)
    values = torch.tensor([[1.0], [20.0], [300.0], [7.0]])
    scale, discount = example["REWARD_SCALE"], example["DISCOUNT"]
    expected = [3 * scale + discount * 20 - 1, 0.0, 5 * scale + discount * 7 - 300]
    assert example["advantages"](batch, values)[:, 0].tolist() == pytest.approx(expected)


def test_exploration_follows_the_steps_of_the_run_whatever_weights_act() -> None:
    """The policy prefers the last action so much that it takes another one only to explore."""
    flags = ["--dqn.exploration_steps", "100", "--dqn.exploration_final", "0", "--sync.rule", "never"]
    with acting("--algo", "dqn", "--learner.unroll_length", "10", *flags, apart=False) as env:
        policy = env.policy()
        with torch.no_grad():
            last = [bias for name, bias in policy.named_parameters() if name.endswith("bias")][-1]
            last.copy_(torch.tensor([0.0, 50.0]))
        preferred = [(env.step(policy).last_action[1:] >= 1).float().mean() for _ in range(6)]
        assert env.agent_steps == policy.agent_steps + 60 == 360
        assert preferred[0] < 0.9
        assert preferred[-1] == 1.0
        policy.agent_steps += 10_000  # as if it were another, saved one
        env.step(policy)
        assert env.agent_steps == policy.agent_steps + 60 == 10_360


def test_workers_get_answers_during_a_step(tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computation, "LASTING_S", 0.05)
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    first, late = (FakeActor(context, config.learner.endpoint) for _ in range(2))
    with closing(first), closing(late), ThreadPoolExecutor(1) as pool:
        opening = pool.submit(RemoteActing, config)
        wait_until(lambda: (first.turn(time.monotonic()), opening.done())[1])
        with opening.result():
            wait_until(lambda: (late.turn(time.monotonic()), late.stream.open)[1])


def test_without_workers_it_does_not_wait_for_ever() -> None:
    config = load_config([*SETTINGS, "--learner.endpoint", f"tcp://127.0.0.1:{free_port(3)}"], {})
    with pytest.raises(PeerLost, match="tcp:"):
        RemoteActing(config, timeout_s=0.5)
