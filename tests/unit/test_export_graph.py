"""The ONNX graph of a policy's step does what the policy does in a loop of its own, whatever its network takes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from tests.build.batches import NESTED, REACH, VECTORS
from tests.build.folders import policy_run
from tests.build.nets import GRU
from zerobeast.api.export import HOW
from zerobeast.api.saved import load
from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.spaces import ArraySpace, CompositeSpace, Part, mapped
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.exporting import graph
from zerobeast.playing.policy import Policy

CAMERA = Part("camera", ArraySpace.box((10, 10, 2), "|u1", (0.0,), (255.0,)))
WORD = Part("word", replace(ArraySpace.discrete(4), start=(1,)))
FROM_5 = mapped(NESTED.action, lambda array: array if array.kind == "box" else replace(array, start=(5, 0)))
SEEING = replace(NESTED, obs=CompositeSpace("dict", (CAMERA, WORD)), action=FROM_5, frame_stack=2)


def policy_of(folder: Path, algo: str, env: EnvSpec, *flags: str, **settings: Any) -> Policy:
    """A policy with random weights, and with heads that prefer something."""
    policy = load(policy_run(folder, algo, env, *flags), **HOW, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in policy.module.parameters():
            weights += 0.3 * torch.randn(weights.shape, generator=generator)
    return policy


SMALL = ("--net.hidden_size=8",)


def session_of(model: bytes) -> Any:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(("core", "numbers"), [("lstm", 16), (GRU, 8)], ids=["lstm", "gru"])
def test_a_step_with_state_masks_and_stacks_is_that_of_the_policy(tmp_path: Path, core: str, numbers: int) -> None:
    flags = (*SMALL, f"--net.core={core}", "--net.core_width=8", "--net.normalize_obs")
    policy = policy_of(tmp_path, "impala", SEEING, *flags, net={"core": core})
    found = graph.export(policy)
    assert found.difference < graph.TOLERANCE
    assert str(Path(graph.__file__).parent).encode() not in found.model, "a path of this machine"
    assert found.inputs["state"] == found.outputs["next_state"] == f"float32 [B, {numbers}]"
    rng, state, session = np.random.default_rng(3), None, session_of(found.model)
    carried, aimed, went = np.zeros((2, numbers), np.float32), np.zeros((2, 2), np.float32), np.array([[5, 0]] * 2)
    frames = {"camera": np.zeros((2, 2, 10, 10, 2), np.uint8), "word": np.zeros((2, 2), int)}
    for step in range(4):
        obs = {"camera": rng.integers(0, 256, (2, 10, 10, 2)).astype(np.uint8), "word": rng.integers(1, 5, 2)}
        first, reward = np.array([step == 0, step in (0, 2)]), rng.normal(size=2).astype(np.float32)
        for name, frame in obs.items():
            older = [np.where(first.reshape(-1, *[1] * (frame.ndim - 1)), frame, frames[name][:, 1]), frame]
            frames[name] = np.stack(older, 1)
        mask = np.array([[True] * 7, [False, True, True, True, False, True, True]])
        given = {"first": first, "last_reward": reward, "action_mask": mask, "state": carried}
        given |= {f"obs.{name}": stack for name, stack in frames.items()}
        given |= {"last_action.aim": aimed, "last_action.go.0": went}
        outputs = dict(zip(found.outputs, session.run(list(found.outputs), given), strict=True))
        how: dict[str, Any] = {"last_reward": reward, "action_mask": mask}
        aim, go = policy.distribution(obs, state, episode_start=first, **how).parts  # type: ignore[attr-defined]
        for name, values in (("mean.aim", aim.mean), ("stddev.aim", aim.stddev), ("logits.go.0", go.logits)):
            np.testing.assert_allclose(outputs[name], values.detach(), rtol=1e-4, atol=1e-5)
        action, state = policy.predict(obs, state, first, **how)
        carried, aimed, went = (outputs[name] for name in ("next_state", "next_last_action.aim", "action.go.0"))
        np.testing.assert_allclose(outputs["action.aim"], action["aim"], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(went, action["go"][0])
        np.testing.assert_allclose(carried, state.core, rtol=1e-4, atol=1e-5)
        assert not (went[1] == [5, 1]).any(), "forbidden choices"
        assert (went >= [5, 0]).all()


def test_a_step_takes_what_it_needs_of_any_number_of_environments_and_is_of_no_other_policy(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "ppo", VECTORS, *SMALL)
    found = graph.export(policy)
    assert found.inputs == {"obs": "float32 [B, 5]"}
    assert found.outputs == {"action": "int64 [B]", "logits": "float32 [B, 3]"}
    for n in (1, 5):
        obs = np.random.default_rng(n).normal(size=(n, 5)).astype(np.float32)
        action, logits = session_of(found.model).run(["action", "logits"], {"obs": obs})
        np.testing.assert_array_equal(action, policy.predict(obs)[0])
        np.testing.assert_allclose(logits, policy.distribution(obs).logits.detach(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for weights in policy.module.parameters():
            weights *= -1
    with pytest.raises(ConfigError, match="algo ppo"):
        graph.compared(graph.ActingStep(policy), found.model, {"obs"})


def test_a_graph_has_what_actions_are_drawn_by_or_valued_with(tmp_path: Path) -> None:
    dqn = ("--dqn.replay_size=10000", "--dqn.reward_scale=0.1")
    for algo, env, flags in (("dqn", VECTORS, dqn), ("sac", REACH, ()), ("td3", REACH, ())):
        policy, obs = policy_of(tmp_path / algo, algo, env, *SMALL, *flags), np.full((3, 5), 0.5, np.float32)
        step = graph.ActingStep(policy)
        example = dict(zip(step.inputs, step.example(), strict=True)) | {"obs": torch.from_numpy(obs)}
        wanted: dict[str, Any] = {"action": torch.from_numpy(policy.predict(obs)[0])}
        if algo == "dqn":
            wanted["action_values"] = policy.action_values(obs)
        elif algo == "sac":
            drawn: Any = policy.distribution(obs)
            wanted |= {"mean": drawn.mean, "stddev": drawn.stddev}
        torch.testing.assert_close(step.named(*example.values()), wanted)


def test_a_step_that_decides_is_refused_in_a_sentence(tmp_path: Path) -> None:
    policy = load(policy_run(tmp_path, "ppo", VECTORS, *SMALL), **HOW)
    honest = policy.algorithm.act

    def act(net: Any, inputs: Any, core: Any, sampling: Any) -> Any:
        return honest(net, inputs._replace(obs=abs(inputs.obs)) if inputs.obs.sum() > 0 else inputs, core, sampling)

    policy.algorithm.act = act
    with pytest.raises(ConfigError, match="algo ppo") as refused:
        graph.export(policy)
    assert "\n" not in str(refused.value)
