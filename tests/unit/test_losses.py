"""The terms of losses: values, analytic gradients, masks."""

import pytest
import torch
from torch import Tensor

from zerobeast.rl.ops.distributions import Categorical
from zerobeast.rl.ops.losses import (
    baseline_loss,
    clipped_baseline_loss,
    masked_reduce,
    normalized,
    policy_gradient_loss,
)

T, B, A = 5, 3, 4


@pytest.fixture
def logits() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(T, B, A, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.fixture
def entries() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(T, B, generator=generator, dtype=torch.float64)


ACTIONS = torch.arange(T * B).view(T, B) % A
ALL = torch.ones(T, B, dtype=torch.bool)
SOME = (torch.arange(T * B).view(T, B) % 3) > 0


def policy_gradient(logits: Tensor, advantages: Tensor, mask: Tensor = ALL) -> Tensor:
    log_probs = Categorical(logits).log_prob(ACTIONS)
    return policy_gradient_loss(log_probs=log_probs, advantages=advantages, mask=mask, reduction="sum")


def test_masked_transitions_give_neither_loss_nor_gradient(logits: Tensor, entries: Tensor) -> None:
    soiled = entries.masked_fill(~SOME, torch.nan).requires_grad_()
    loss = policy_gradient(logits, soiled, SOME)
    loss.backward()
    assert soiled.grad is None, "advantages are data"
    torch.testing.assert_close(loss, policy_gradient(logits, entries * SOME))
    assert not logits.grad[~SOME].nan_to_num(0.0).any()
    assert (logits.grad[SOME] != 0).any(-1).all()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_batch_without_a_valid_transition_has_loss_zero(entries: Tensor, reduction: str) -> None:
    assert masked_reduce(entries, torch.zeros_like(SOME), reduction) == 0.0  # type: ignore[arg-type]


def test_a_clipped_value_counts_where_it_is_worse() -> None:
    values = torch.tensor([[0.0, 0.5, 1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    before, targets = torch.full_like(values, 1.0), torch.full_like(values, 2.0)
    mask = torch.ones(1, 4, dtype=torch.bool)
    loss = clipped_baseline_loss(values=values, before=before, targets=targets, clip=0.25, mask=mask, reduction="sum")
    # kept within 0.75 to 1.25: errors 1.25, 1.25, 1, 0.75 instead of 2, 1.5, 1, 1
    torch.testing.assert_close(loss.item(), 0.5 * (4.0 + 2.25 + 1.0 + 1.0))
    loss.backward()
    assert values.grad.tolist() == [[-2.0, -1.5, -1.0, 1.0]]
    wide = clipped_baseline_loss(values=values, before=before, targets=targets, clip=9.0, mask=mask, reduction="sum")
    torch.testing.assert_close(wide, baseline_loss(values=values, targets=targets, mask=mask, reduction="sum"))


def test_normalised_entries_have_mean_0_and_deviation_1_where_they_count(entries: Tensor) -> None:
    soiled = entries.masked_fill(~SOME, 1e9)
    valid = normalized(soiled, SOME)[SOME]
    assert valid.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert valid.std(correction=0).item() == pytest.approx(1.0, abs=1e-6)
    assert not normalized(torch.full_like(entries, 3.0), SOME)[SOME].any(), "nothing to tell apart"
