"""The rules of a signal of rarity.

    @pytest.mark.parametrize("rule", memory.RULES, ids=str)
    def test_contract(rule):
        rule("my_package.memory:oldest")

The reference is one that `net.memory` takes.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from zerobeast.rl.memory.rarity import Familiar, signal_of
from zerobeast.testing.rules import rule, rules_in

MIN_ENTRIES = 2  #: entries of which rarity is measured
COUNTS = (MIN_ENTRIES, 3, 40, 1500)


def make_entries(n: int) -> Familiar:
    """Random entries, the oldest first."""
    g = torch.Generator().manual_seed(n)
    keys, returns = normalize(torch.randn(n, 6, generator=g), dim=-1), torch.randn(n, generator=g)
    losses, td_errors = torch.rand(2, n, generator=g)
    return Familiar(losses, keys, td_errors, returns, torch.arange(n) // 2)


def make_equal_entries(n: int) -> Familiar:
    """Entries of which each is as the others are."""
    numbers = torch.zeros(n)
    return Familiar(numbers, normalize(torch.ones(n, 6), dim=-1), numbers, numbers, numbers.long())


def _scores(signal: str, known: Familiar) -> Tensor:
    found = signal_of(signal)(known)
    assert isinstance(found, Tensor), f"returned {type(found).__name__}, expected a tensor"
    return found


@rule
def each_entry_gets_one_number(signal: str) -> None:
    """Priorities belong to entries by their place, however few entries there are yet."""
    for n in COUNTS:
        found = _scores(signal, make_entries(n))
        assert found.shape == (n,), f"returned {list(found.shape)} for {n} entries"


@rule
def numbers_are_finite(signal: str) -> None:
    """Priorities are computed from the mean and the largest of them, which one number alone would spoil."""
    for known in (*map(make_entries, COUNTS), *map(make_equal_entries, COUNTS)):
        assert _scores(signal, known).isfinite().all(), f"not finite with {len(known.losses)} entries"


@rule
def what_is_given_stays_as_it_is(signal: str) -> None:
    """The keys and numbers of the entries are stored, and a signal reads them again after the next batches."""
    known, before = make_entries(40), make_entries(40)
    _scores(signal, known)
    for name, one, two in zip(Familiar._fields, known, before, strict=True):
        assert torch.equal(one, two), f"{name} changed"


RULES = rules_in(globals())
