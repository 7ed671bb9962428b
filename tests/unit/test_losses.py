"""The three loss terms: values, analytic gradients, masks."""

import pytest
import torch
from torch import Tensor

from common.ops.categorical import Categorical
from common.ops.losses import baseline_loss, entropy_loss, masked_reduce, policy_gradient_loss

pytestmark = pytest.mark.unit

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


def test_the_baseline_loss_is_half_the_sum_of_squares_and_its_gradient_the_error(entries: Tensor) -> None:
    values = torch.zeros(T, B, dtype=torch.float64, requires_grad=True)
    loss = baseline_loss(values=values, targets=-entries, mask=ALL, reduction="sum")
    loss.backward()
    torch.testing.assert_close(loss, 0.5 * entries.square().sum())
    torch.testing.assert_close(values.grad, entries)


def test_no_gradient_flows_into_the_baselines_targets(entries: Tensor) -> None:
    targets = entries.clone().requires_grad_()
    values = torch.zeros_like(entries).requires_grad_()
    baseline_loss(values=values, targets=targets, mask=ALL, reduction="sum").backward()
    assert targets.grad is None


def test_the_entropy_loss_is_the_sum_of_p_log_p(logits: Tensor) -> None:
    loss = entropy_loss(entropies=Categorical(logits).entropy(), mask=ALL, reduction="sum")
    loss.backward()
    p = logits.detach().softmax(-1)
    plogp = (p * p.log()).sum(-1, keepdim=True)
    torch.testing.assert_close(loss, plogp.sum())
    torch.testing.assert_close(logits.grad, p * (p.log() - plogp))


def test_the_policy_gradient_is_p_minus_one_hot_times_the_advantage(logits: Tensor, entries: Tensor) -> None:
    loss = policy_gradient(logits, entries)
    loss.backward()
    p, one_hot = logits.detach().softmax(-1), torch.nn.functional.one_hot(ACTIONS, A)
    torch.testing.assert_close(loss, (-one_hot * p.log() * entries.unsqueeze(-1)).sum())
    torch.testing.assert_close(logits.grad, (p - one_hot) * entries.unsqueeze(-1))


def test_no_gradient_flows_into_the_advantages(logits: Tensor, entries: Tensor) -> None:
    advantages = entries.clone().requires_grad_()
    policy_gradient(logits, advantages).backward()
    assert advantages.grad is None


def test_masked_transitions_give_neither_loss_nor_gradient(logits: Tensor, entries: Tensor) -> None:
    soiled = entries.masked_fill(~SOME, torch.nan)
    loss = policy_gradient(logits, soiled, SOME)
    loss.backward()
    torch.testing.assert_close(loss, policy_gradient(logits, entries * SOME))
    assert logits.grad is not None
    assert not logits.grad[~SOME].nan_to_num(0.0).any()
    assert (logits.grad[SOME] != 0).any(-1).all()


def test_a_mean_divides_by_the_number_of_valid_transitions(entries: Tensor) -> None:
    total = masked_reduce(entries, SOME, "sum")
    torch.testing.assert_close(masked_reduce(entries, SOME, "mean"), total / 10)
    torch.testing.assert_close(total, entries[SOME].sum())


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_batch_without_a_valid_transition_has_loss_zero(entries: Tensor, reduction: str) -> None:
    assert masked_reduce(entries, torch.zeros_like(SOME), reduction) == 0.0  # type: ignore[arg-type]


def test_a_valid_transition_that_is_not_a_number_shows(entries: Tensor) -> None:
    entries[0, 1] = torch.nan
    assert SOME[0, 1]
    assert masked_reduce(entries, SOME, "sum").isnan()


def test_a_mask_of_another_shape_is_refused_not_broadcast(entries: Tensor) -> None:
    with pytest.raises(AssertionError, match="one shape"):
        masked_reduce(entries, SOME[:, :1], "sum")
