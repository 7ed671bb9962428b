"""The recurrent core against torch's, and what a reset forgets."""

import pytest
import torch
from torch import Tensor

from zerobeast.rl.nets.lstm import LSTM

T, B, INPUT, H = 7, 3, 5, 4


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(1)


def torch_twin(lstm: LSTM) -> torch.nn.LSTM:
    """torch.nn.LSTM with the same weights; its gates are in the order input, forget, candidate, output."""

    def reordered(weight: Tensor) -> Tensor:
        admit, keep, show, candidate = weight.detach().chunk(4)
        return torch.cat([admit, keep, candidate, show])

    twin = torch.nn.LSTM(INPUT, H)
    twin.load_state_dict(
        {
            "weight_ih_l0": reordered(lstm.from_input.weight),
            "weight_hh_l0": reordered(lstm.from_hidden.weight),
            "bias_ih_l0": reordered(lstm.from_input.bias),
            "bias_hh_l0": torch.zeros(4 * H),
        }
    )
    return twin


def no_resets() -> Tensor:
    return torch.zeros(T, B, dtype=torch.bool)


def test_without_resets_it_is_torchs_lstm() -> None:
    lstm, x, state = LSTM(INPUT, H), torch.randn(T, B, INPUT), torch.randn(B, 2 * H)
    hidden, cell = state.chunk(2, dim=-1)
    expected, (last_hidden, last_cell) = torch_twin(lstm)(x, (hidden[None].contiguous(), cell[None].contiguous()))
    outputs, after = lstm(x, no_resets(), state)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(after, torch.cat([last_hidden[0], last_cell[0]], dim=-1))


def test_its_gradients_are_torchs() -> None:
    lstm, x = LSTM(INPUT, H), torch.randn(T, B, INPUT)
    twin = torch_twin(lstm)
    weights = torch.randn(T, B, H)
    (lstm(x, no_resets(), torch.zeros(B, 2 * H))[0] * weights).sum().backward()
    (twin(x)[0] * weights).sum().backward()
    admit, keep, show, candidate = lstm.from_hidden.weight.grad.chunk(4)  # type: ignore[union-attr]
    torch.testing.assert_close(torch.cat([admit, keep, candidate, show]), twin.weight_hh_l0.grad)


def test_a_reset_row_starts_like_a_new_one_and_the_others_go_on() -> None:
    lstm, x, state = LSTM(INPUT, H), torch.randn(T, B, INPUT), torch.randn(B, 2 * H)
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


def test_no_gradient_crosses_a_reset() -> None:
    lstm, x = LSTM(INPUT, H), torch.randn(T, B, INPUT, requires_grad=True)
    first = no_resets()
    first[4] = True
    lstm(x, first, torch.zeros(B, 2 * H))[0][4:].sum().backward()
    assert not x.grad[:4].any()
    assert x.grad[4:].any()


def test_a_reset_also_drops_what_is_not_a_number() -> None:
    state = torch.full((B, 2 * H), torch.nan)
    outputs, after = LSTM(INPUT, H)(torch.randn(T, B, INPUT), torch.ones(T, B, dtype=torch.bool), state)
    assert outputs.isfinite().all()
    assert after.isfinite().all()
