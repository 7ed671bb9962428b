"""Trees of tensors: each tensor is reached by its name, as a view of rows, and one that is not finite is found."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.build.batches import NESTED
from zerobeast.common.wire.records import step_record
from zerobeast.rl.learning.gradient_descent import squares_finite
from zerobeast.rl.ops.columns import columns
from zerobeast.rl.ops.tree import leaves, tree_map


class Pair(NamedTuple):
    one: dict[str, Tensor]
    two: Tensor | None


def test_a_function_reaches_every_tensor_and_keeps_the_names() -> None:
    tree = Pair({"a": torch.tensor(1), "b": torch.tensor(2)}, None)
    double = tree_map(lambda x, y: x + y, tree, tree)
    assert double == Pair({"a": torch.tensor(2), "b": torch.tensor(4)}, None)
    assert leaves(tree) == [torch.tensor(1), torch.tensor(2)]
    with pytest.raises(KeyError):
        tree_map(torch.add, {"a": torch.ones(1)}, {"b": torch.ones(1)})


def test_columns_are_views_of_the_rows_by_the_names_that_numpy_has() -> None:
    dtype = step_record(NESTED).dtype
    rows = np.zeros(3, dtype)
    rng = np.random.default_rng(0)
    rows["obs"]["camera"], rows["obs"]["word"] = rng.normal(size=(3, 6, 8)), rng.integers(0, 4, 3)
    rows["reward"], rows["first"], rows["action_mask"][:, ::2] = [1, 2, 3], [True, False, True], True
    found = columns(torch.from_numpy(rows.view(np.uint8).reshape(3, -1)), dtype)
    assert found.keys() == set(dtype.names)
    for ours, theirs in ((found["obs"], rows["obs"]), (found, rows)):
        for name in ours.keys() - {"obs"}:
            np.testing.assert_array_equal(ours[name], theirs[name])
    found["obs"]["word"].fill_(9)
    assert (rows["obs"]["word"] == 9).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, torch.finfo(torch.float32).max ** 0.5 * 1.001])
@pytest.mark.parametrize("at", [0, 9999])
def test_one_bad_entry_of_ten_thousand_is_found(bad: float, at: int) -> None:
    entries = torch.full((10_000,), torch.finfo(torch.float32).max ** 0.5 * 0.999)
    assert squares_finite([torch.ones(2), -entries, torch.empty(0)])
    entries[at] = bad
    assert not squares_finite([torch.ones(2), entries.view(100, 100), torch.zeros(())])
    assert squares_finite([])
