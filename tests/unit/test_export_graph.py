"""The ONNX graph of a policy's step does what the policy does in a loop of its own, whatever its network takes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from tests.algo_fakes import NESTED, REACH, VECTORS
from tests.unit.test_policy import STACKED, saved
from zerobeast.api.export import HOW
from zerobeast.api.saved import load
from zerobeast.clients.policy import Policy
from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.exporting import comparison, graph

PIXELS = EnvSpec("Pixels-v0", ArraySpace.box((12, 12, 3), "|u1", (0.0,), (255.0,)), ArraySpace.discrete(4))


def policy_of(folder: Path, algo: str, env: EnvSpec, *flags: str) -> Policy:
    """A policy with random weights, and with heads that prefer something."""
    policy = load(saved(folder, algo, env, *flags), **HOW)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in policy.module.parameters():
            weights += 0.3 * torch.randn(weights.shape, generator=generator)
    return policy


def session_of(model: bytes) -> Any:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def test_a_recurrent_step_with_masks_and_parts_is_that_of_the_policy(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "impala", NESTED, "--net.use_lstm", "--net.lstm_size=8", "--net.normalize_obs")
    found = graph.export(policy)
    assert found.difference < graph.TOLERANCE
    assert str(Path(graph.__file__).parent).encode() not in found.model, "a path of this machine"
    assert len(found.model) < 80_000, "weights that several methods use are there once"
    assert found.inputs["state"] == found.outputs["next_state"] == "float32 [B, 16]"
    rng, state, session = np.random.default_rng(3), None, session_of(found.model)
    core, aimed, went = np.zeros((2, 16), np.float32), np.zeros((2, 2), np.float32), np.zeros((2, 2), int)
    for step in range(4):
        obs = {"camera": rng.normal(size=(2, 6, 8)).astype(np.float32), "word": rng.integers(0, 4, 2)}
        first, reward = np.array([step == 0, step in (0, 2)]), rng.normal(size=2).astype(np.float32)
        mask = np.array([[True] * 7, [False, True, True, True, False, True, True]])
        given = {"first": first, "last_reward": reward, "action_mask": mask, "state": core}
        given |= {f"obs.{name}": part for name, part in obs.items()}
        given |= {"last_action.aim": aimed, "last_action.go.0": went}
        outputs = dict(zip(found.outputs, session.run(list(found.outputs), given), strict=True))
        action, state = policy.predict(obs, state, first, last_reward=reward, action_mask=mask)
        core, aimed, went = (outputs[name] for name in ("next_state", "next_last_action.aim", "action.go.0"))
        np.testing.assert_allclose(outputs["action.aim"], action["aim"], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(went, action["go"][0])
        np.testing.assert_allclose(core, state.core, rtol=1e-4, atol=1e-5)
        assert np.exp(outputs["log_probs.go.0.1"])[1, 1] == 0, "a choice that is forbidden"


@pytest.mark.parametrize(
    ("algo", "env", "flags", "inputs", "outputs"),
    [
        ("ppo", STACKED, ["--net.normalize_obs"], ["obs"], ["action", "log_probs", "value"]),
        ("c51", PIXELS, ["--c51.replay_size=10000"], ["obs"], ["action", "q_values", "value"]),
        ("sac", REACH, ["--sac.replay_size=10000"], ["obs"], ["action", "pre_tanh_mean", "pre_tanh_log_std"]),
    ],
)
def test_a_step_has_what_the_algorithm_has_for_any_number_of_environments(
    tmp_path: Path, algo: str, env: EnvSpec, flags: list[str], inputs: list[str], outputs: list[str]
) -> None:
    policy = policy_of(tmp_path, algo, env, *flags)
    found = graph.export(policy)
    assert (list(found.inputs), list(found.outputs)) == (inputs, outputs)
    session, rng = session_of(found.model), np.random.default_rng(2)
    for n, k in ((1, env.frame_stack), (5, env.frame_stack)):
        frames = rng.integers(0, 255, (k, n, *env.obs.shape)).astype(env.obs.dtype)
        state: Any = None
        for frame in frames:  # the first one fills the stack, as where an episode begins
            action, state = policy.predict(frame, state)
        given = np.stack([*frames], 1) if k > 1 else frames[0]
        got = dict(zip(outputs, session.run(outputs, {"obs": given}), strict=True))
        np.testing.assert_allclose(got["action"], action, rtol=1e-4, atol=1e-5)
        if "value" in got and k == 1:
            np.testing.assert_allclose(got["value"], policy.value(frames[0]).detach(), rtol=1e-4, atol=1e-5)


def test_differences_are_in_units_of_the_largest_number_and_of_huge_ones_in_their_own() -> None:
    ours = np.array([-1e30, 100.0, 0.0])
    assert comparison._difference(ours, ours + np.array([1e24, 0.0, 0.0])) == pytest.approx(1e-6)
    assert comparison._difference(ours, ours + np.array([0.0, 0.0, 0.01])) == pytest.approx(1e-4)
    assert comparison._difference(ours[2:], ours[2:] + 0.01) == pytest.approx(0.01)
    assert np.isnan(comparison._difference(np.array([np.nan, 1.0]), np.array([np.nan, 1.0])))


@pytest.mark.parametrize("flaw", ["decides", "draws"])
def test_a_step_that_is_no_graph_or_another_one_is_refused_in_a_sentence(tmp_path: Path, flaw: str) -> None:
    policy = load(saved(tmp_path, "ppo", VECTORS), **HOW)
    honest, draws = policy.algorithm.act, np.random.default_rng(0)

    def act(net: Any, inputs: Any, core: Any, sampling: Any) -> Any:
        answer, core = honest(net, inputs, core, sampling)
        if flaw == "decides" and inputs.obs.sum() > 0:
            return answer._replace(action=0 * answer.action), core
        return answer._replace(action=answer.action + int(draws.integers(9))), core

    policy.algorithm.act = act
    sentence = {
        "decides": "is no graph of tensors: .*ata-dependent",
        "draws": "that gives the same as torch: .* choices",
    }
    with pytest.raises(ConfigError, match=f"^algo ppo: its acting step .*{sentence[flaw]}") as refused:
        graph.export(policy)
    assert "\n" not in str(refused.value)
