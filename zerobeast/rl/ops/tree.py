"""Named tensors as one value: a tensor, a dict of trees by name, a named tuple of trees, or None.

Observations with several parts, outputs of a policy, batches and whatever is kept for later are such trees, and one
function cuts, joins and copies them.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor


def tree_map(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Apply a function to each tensor of a tree, or to those at the same place in several trees of one structure.

    Raises:
      KeyError, ValueError: the structures differ.
    """
    if first is None:
        return None
    if isinstance(first, dict):
        return {name: tree_map(function, entry, *[other[name] for other in others]) for name, entry in first.items()}
    if isinstance(first, tuple) and hasattr(first, "_make"):
        return first._make([tree_map(function, *entries) for entries in zip(first, *others, strict=True)])
    return function(first, *others)


def first_rows(tree: Any) -> Callable[[int], Any]:
    """n -> the first n rows of each tensor of a tree of [rows, ...].

    These views are made once for each n: slicing costs as much as a small layer.
    """
    return cache(lambda n: tree_map(lambda entry: entry[:n], tree))


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in order."""
    found: list[Tensor] = []
    tree_map(found.append, tree)
    return found
