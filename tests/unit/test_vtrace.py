"""V-trace against the paper's sum, and the other terms of losses."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.build.batches import generator
from zerobeast.rl.algos.impala.config import SPEC
from zerobeast.rl.learning.returns import shape_rewards
from zerobeast.rl.ops import losses
from zerobeast.rl.ops.vtrace import VTrace, vtrace

CLIPS = {"rho_bar": 1.5, "c_bar": 0.8, "pg_rho_bar": 1.2, "trace_decay": 0.9}


def definition(
    *, log_rhos: np.ndarray, discounts: np.ndarray, rewards: np.ndarray, values: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 1 as a plain sum, in O(T^2), under CLIPS; a void transition ends the sum."""
    rho_bar, c_bar, pg_rho_bar, decay = CLIPS.values()
    rhos, vs = np.exp(log_rhos), values.copy()
    n_steps, n_rows = rewards.shape
    for b in range(n_rows):
        for s in range(n_steps):
            weight = 1.0
            for t in range(s, n_steps):
                if not mask[t, b]:
                    break
                delta = rewards[t, b] + discounts[t, b] * values[t + 1, b] - values[t, b]
                vs[s, b] += weight * min(rho_bar, rhos[t, b]) * delta
                weight *= discounts[t, b] * decay * min(c_bar, rhos[t, b])
    beyond = decay * vs[1:] + (1 - decay) * values[1:]
    advantages = np.minimum(pg_rho_bar, rhos) * (rewards + discounts * beyond - values[:-1])
    return vs[:-1], np.where(mask, advantages, 0.0)


def random_inputs(seed: int, n_steps: int = 12, n_rows: int = 6) -> dict[str, np.ndarray]:
    """Random unrolls whose episodes terminate or are truncated, with the void transition after each end."""
    rng = np.random.default_rng(seed)
    ends = rng.random((n_steps, n_rows)) < 0.25
    mask = np.ones((n_steps, n_rows), bool)
    for t in range(1, n_steps):
        ends[t] &= ~ends[t - 1]
        mask[t] = ~ends[t - 1]
    return {
        "log_rhos": rng.normal(0, 1, (n_steps, n_rows)),
        "discounts": 0.9 * ~(ends & (rng.random(ends.shape) < 0.5)),
        "rewards": rng.normal(0, 1, (n_steps, n_rows)),
        "values": rng.normal(0, 1, (n_steps + 1, n_rows)),
        "mask": mask,
    }


def torched(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def pg_advantages(result: VTrace) -> Tensor:
    """The weights of the log-probabilities in the policy gradient of the paper's section 4.2."""
    return result.weights * result.advantages


@pytest.mark.parametrize("seed", range(4))
def test_the_recursion_equals_the_papers_sum_across_ends_of_episodes(seed: int) -> None:
    inputs = random_inputs(seed)
    result = vtrace(**torched(inputs), **CLIPS)
    vs, advantages = definition(**inputs)
    np.testing.assert_allclose(result.vs, vs, atol=1e-12)
    np.testing.assert_allclose(pg_advantages(result), advantages, atol=1e-12)


def test_what_stands_in_a_void_transition_does_not_matter() -> None:
    inputs = torched(random_inputs(1))
    wrong = {"rewards": torch.inf, "log_rhos": torch.nan, "discounts": torch.nan}
    soil = {name: inputs[name].masked_fill(~inputs["mask"], value) for name, value in wrong.items()}
    clean, soiled = vtrace(**inputs), vtrace(**inputs | soil)
    assert torch.equal(clean.vs, soiled.vs)
    assert torch.equal(pg_advantages(clean), pg_advantages(soiled))


def test_enormous_ratios_stay_finite() -> None:
    inputs = torched(random_inputs(1))
    result = vtrace(**inputs | {"log_rhos": 900 * inputs["log_rhos"].sign()})
    assert result.vs.isfinite().all()
    assert pg_advantages(result).isfinite().all()


def test_results_carry_no_gradient_and_keep_float32() -> None:
    inputs = torched(random_inputs(1))
    inputs = {name: tensor if name == "mask" else tensor.float() for name, tensor in inputs.items()}
    inputs["values"].requires_grad_()
    result = vtrace(**inputs)
    assert not result.vs.requires_grad
    assert not pg_advantages(result).requires_grad
    assert result.vs.dtype == pg_advantages(result).dtype == torch.float32


STEPS, ROWS = 5, 3


@pytest.fixture
def entries() -> Tensor:
    return torch.randn(STEPS, ROWS, generator=generator(2), dtype=torch.float64)


SOME = (torch.arange(STEPS * ROWS).view(STEPS, ROWS) % 3) > 0


def test_masked_transitions_give_neither_loss_nor_gradient(entries: Tensor) -> None:
    log_probs = torch.zeros(STEPS, ROWS, requires_grad=True)
    soiled = entries.masked_fill(~SOME, torch.nan).requires_grad_()
    loss = losses.policy_gradient_loss(log_probs=log_probs, advantages=soiled, mask=SOME, reduction="sum")
    loss.backward()
    assert soiled.grad is None, "advantages are data"
    assert log_probs.grad is not None
    torch.testing.assert_close(log_probs.grad.nan_to_num(), (-entries * SOME).float())


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_batch_without_a_valid_transition_has_loss_zero(entries: Tensor, reduction: str) -> None:
    assert losses.masked_reduce(entries, torch.zeros_like(SOME), reduction) == 0.0  # type: ignore[arg-type]


def test_a_clipped_value_counts_where_it_is_worse() -> None:
    values = torch.tensor([[0.0, 0.5, 1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    before, targets = torch.full_like(values, 1.0), torch.full_like(values, 2.0)
    mask = torch.ones(1, 4, dtype=torch.bool)
    given: dict[str, Any] = {"values": values, "targets": targets, "mask": mask, "reduction": "sum"}
    loss = losses.clipped_baseline_loss(before=before, clip=0.25, **given)
    # kept within 0.75 to 1.25: errors 1.25, 1.25, 1, 0.75 instead of 2, 1.5, 1, 1
    torch.testing.assert_close(loss.item(), 0.5 * (4.0 + 2.25 + 1.0 + 1.0))
    loss.backward()
    assert values.grad.tolist() == [[-2.0, -1.5, -1.0, 1.0]]
    wide = losses.clipped_baseline_loss(before=before, clip=9.0, **given)
    torch.testing.assert_close(wide, losses.baseline_loss(**given))


def test_normalised_entries_have_mean_0_and_deviation_1_where_they_count(entries: Tensor) -> None:
    soiled = entries.masked_fill(~SOME, 1e9)
    valid = losses.standardize(soiled, SOME)[SOME]
    assert valid.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert valid.std(correction=0).item() == pytest.approx(1.0, abs=1e-6)
    assert not losses.standardize(torch.full_like(entries, 3.0), SOME)[SOME].any(), "nothing to tell apart"


@pytest.mark.parametrize("clipping", ["none", "abs_one", "soft_asymmetric"])
def test_rewards_are_scaled_then_clipped(clipping: str) -> None:
    rewards, scale = [-200.0, -3.0, -0.01, 0.0, 0.01, 3.0, 200.0], 2.0
    by_hand = {
        "none": [scale * r for r in rewards],
        "abs_one": [max(-1.0, min(1.0, scale * r)) for r in rewards],
        "soft_asymmetric": [(5.0 if r > 0 else 1.5) * math.tanh(scale * r / 5.0) for r in rewards],
    }
    settings = SPEC.settings.model_validate({"reward_clipping": clipping, "reward_scale": scale})
    torch.testing.assert_close(shape_rewards(torch.tensor(rewards), settings), torch.tensor(by_hand[clipping]))
