"""The recurrent core against torch's, and what a reset forgets."""

import pytest
import torch
from torch import Tensor

from zerobeast.rl.nets.lstm import LSTM

T, B, INPUT, H = 7, 3, 5, 4


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def reordered(weight: Tensor) -> Tensor:
    """Of gates in torch's order: input, forget, candidate, output."""
    admit, keep, show, candidate = weight.detach().chunk(4)
    return torch.cat([admit, keep, candidate, show])


def torch_twin(lstm: LSTM) -> torch.nn.LSTM:
    """torch.nn.LSTM with the same weights."""
    twin = torch.nn.LSTM(INPUT, H)
    parts = (lstm.from_input.weight, lstm.from_hidden.weight, lstm.from_input.bias, torch.zeros(4 * H))
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    twin.load_state_dict({name: reordered(part) for name, part in zip(names, parts, strict=True)})
    return twin


def no_resets() -> Tensor:
    return torch.zeros(T, B, dtype=torch.bool)


def test_without_resets_it_and_its_gradients_are_torchs() -> None:
    lstm, x, state = LSTM(INPUT, H), torch.randn(T, B, INPUT), torch.randn(B, 2 * H)
    twin, weights = torch_twin(lstm), torch.randn(T, B, H)
    hidden, cell = (half[None].contiguous() for half in state.chunk(2, dim=-1))
    expected, (last_hidden, last_cell) = twin(x, (hidden, cell))
    outputs, after = lstm(x, no_resets(), state)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(after, torch.cat([last_hidden[0], last_cell[0]], dim=-1))
    for found in (outputs, expected):
        (found * weights).sum().backward()
    assert lstm.from_hidden.weight.grad is not None
    torch.testing.assert_close(reordered(lstm.from_hidden.weight.grad), twin.weight_hh_l0.grad)


def test_a_reset_row_starts_like_a_new_one_without_gradient_and_the_others_go_on() -> None:
    lstm, x, state = LSTM(INPUT, H), torch.randn(T, B, INPUT, requires_grad=True), torch.randn(B, 2 * H)
    first = no_resets()
    first[3, 1] = True
    outputs, after = lstm(x, first, state)
    untouched, untouched_after = lstm(x, no_resets(), state)
    fresh, fresh_after = lstm(x[3:], no_resets()[3:], torch.zeros(B, 2 * H))
    torch.testing.assert_close(outputs[:3], untouched[:3])
    torch.testing.assert_close(outputs[3:, 1], fresh[:, 1])
    torch.testing.assert_close(after[1], fresh_after[1])
    torch.testing.assert_close(outputs[:, [0, 2]], untouched[:, [0, 2]])
    torch.testing.assert_close(after[[0, 2]], untouched_after[[0, 2]])
    outputs[3:].sum().backward()
    assert x.grad is not None
    assert x.grad[:3].any(-1).tolist() == [[True, False, True]] * 3


def test_a_new_one_has_a_long_memory() -> None:
    """Orthogonal recurrence of each gate, and a forget gate that is open at first."""
    lstm = LSTM(INPUT, H)
    for gate in lstm.from_hidden.weight.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(H))
    assert lstm.from_input.bias.tolist() == [0.0] * H + [1.0] * H + [0.0] * 2 * H
