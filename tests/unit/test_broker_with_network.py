"""The broker's inference gives the real network what the learner will give it: same logits, values and states."""

from typing import NoReturn

import numpy as np
import pytest
import torch

from tests.build.batches import PANEL, REACH, VECTORS
from tests.build.brokers import EchoAlgorithm, ask, serving
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, act_record, step_record
from zerobeast.rl.factory import make_algorithm
from zerobeast.rl.nets.network import StepInput
from zerobeast.rl.ops.tree import tree_map

STEPS, ENVS = 9, 4
FRAMES = EnvSpec("Frames-v0", ArraySpace.box((84, 84), "|u1"), ArraySpace.discrete(6), frame_stack=4)


def episode(env: EnvSpec) -> np.ndarray:
    """Random step records [STEPS, ENVS] in which several episodes begin."""
    rng = np.random.default_rng(3)
    rows = np.zeros((STEPS, ENVS), step_record(env).dtype)
    rows["obs"] = rng.integers(0, 200, rows["obs"].shape)
    rows["first"] = rng.random((STEPS, ENVS)) < 0.3
    rows["first"][0] = True
    rows["reward"] = np.where(rows["first"], 0, rng.normal(size=(STEPS, ENVS)))
    return rows


def stacks(rows: np.ndarray, k: int) -> torch.Tensor:
    """The stacks [STEPS, ENVS, k, ...] of single frames, by definition."""
    obs = rows["obs"]
    if k == 1:
        return torch.from_numpy(obs.copy())
    begin = np.maximum.accumulate(np.where(rows["first"], np.arange(STEPS)[:, None], 0))
    steps = np.maximum(np.arange(STEPS)[:, None, None] - np.arange(k - 1, -1, -1), begin[:, :, None])
    return torch.from_numpy(obs[steps, np.arange(ENVS)[:, None]])


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("env", [VECTORS, FRAMES, PANEL, REACH], ids=["vectors", "frames", "panel", "reach"])
def test_step_by_step_inference_agrees_with_one_unroll(env: EnvSpec, *, lstm: bool) -> None:
    config = RunConfig.model_validate({"net": {"core": "lstm" if lstm else "none", "core_width": 8}})
    algorithm = make_algorithm(config, env)
    rows = episode(env)
    inference = serving(algorithm)
    answers = np.zeros((STEPS, ENVS), act_record(env, algorithm.policy).dtype)
    cores = np.zeros((STEPS, ENVS, algorithm.policy.core_size), np.float32)
    orders = ([[0, 1, 2, 3]], [[2, 0], [3, 1]], [[1], [3], [0, 2]])  # batches of varying composition
    for t in range(STEPS):
        for order in orders[t % 3]:
            answers[t, order] = ask(inference, rows[t, order], [9 - 2 * b for b in order])
            cores[t, order] = inference.cores[: len(order)]

    last_action = torch.from_numpy(np.concatenate([np.zeros_like(answers["action"][:1]), answers["action"][:-1]]))
    first = torch.from_numpy(rows["first"].copy())
    inputs = StepInput(stacks(rows, env.frame_stack), last_action, torch.from_numpy(rows["reward"].copy()), first)
    net = algorithm.network().eval()
    with torch.no_grad():
        output, after = net(inputs, net.initial_state(ENVS))
    torch.testing.assert_close(torch.from_numpy(answers["logits"].copy()), output.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.from_numpy(answers["value"].copy()), output.value, rtol=1e-4, atol=1e-5)
    assert not cores[rows["first"]].any(), "a state before an episode is zero"
    if lstm:
        middle = 5
        half = tree_map(lambda entry: entry[middle:], inputs)
        with torch.no_grad():
            again, end = net(half, torch.from_numpy(cores[middle]))
        torch.testing.assert_close(again.logits, output.logits[middle:], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(end, after, rtol=1e-4, atol=1e-5)


def test_no_number_affects_other_rows_and_any_byte_counts_as_a_flag() -> None:
    inference = serving(make_algorithm(RunConfig.model_validate({"net": {"core": "lstm", "core_width": 8}}), VECTORS))
    rows = episode(VECTORS)[0]
    good = ask(inference, rows, list(range(ENVS)))
    rows["first"].view(np.uint8)[:] = 255
    assert (ask(inference, rows, list(range(ENVS)))["logits"] == good["logits"]).all(), "its memory ends here too"
    rows["obs"][0], rows["reward"][1], rows["obs"][2] = np.nan, np.inf, 3e38
    acts = ask(inference, rows, list(range(ENVS)))
    np.testing.assert_allclose(acts["logits"][3], good["logits"][3], rtol=1e-5)
    assert set(acts["action"]) <= {0, 1, 2}


def test_two_batches_take_turns_and_a_network_that_cannot_act_fails_at_once() -> None:
    class Broken(EchoAlgorithm):
        def act(self, *_args: object) -> NoReturn:
            raise RuntimeError

    inference = serving(EchoAlgorithm())
    batches = []
    for _ in range(3):
        batches.append(inference.batch)
        inference.submit(1, with_cores=True)
    assert batches[0] is batches[2] is not batches[1], "one collects while the other is computed"
    with pytest.raises(RuntimeError):
        serving(Broken())
