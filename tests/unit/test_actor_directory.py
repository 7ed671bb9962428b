"""Which of several servers each env group uses."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from zerobeast.services.actor.directory import Directory

A, B, C = "tcp://10.0.0.1:5550", "tcp://10.0.0.2:5550", "tcp://10.0.0.3:5550"


def directory(slots: int = 2, first: int = 0, *, spread: bool = True) -> Directory:
    return Directory(slots, first, spread=spread)


def test_groups_of_different_actors_begin_at_different_servers() -> None:
    chosen = Counter(directory(1, first).update([C, A, B])[0] for first in range(9))
    assert chosen == {A: 3, B: 3, C: 3}


def test_groups_stay_until_a_new_server_takes_some_from_the_fullest_whatever_the_order_of_the_addresses() -> None:
    d = directory(4)
    assert d.update([A]) == {0: A, 1: A, 2: A, 3: A}
    assert d.update([A, B]) == {2: B, 3: B}
    assert d.update([B, A]) == d.update([]) == d.update([B]) == {}, "one that is missing may still answer"
    assert d.elsewhere(0) == B


def test_a_single_server_leaves_no_alternative() -> None:
    d = directory()
    d.update([A])
    assert d.elsewhere(0) is None
    assert d.choice == {0: A, 1: A}


def test_a_group_that_leaves_goes_to_the_server_with_the_fewest() -> None:
    d = directory(3)
    d.update([A, B, C])
    d.choice.update({0: A, 1: B, 2: B})
    assert d.elsewhere(0) == C


def test_no_group_goes_back_to_a_server_that_it_left_until_that_is_forgiven_or_new_or_there_is_no_other() -> None:
    d = directory(2)
    d.update([A, B])
    assert d.elsewhere(1) == A
    assert d.update([A, B]) == {}
    d.forgive()
    assert d.update([A, B]) == {1: B}
    assert d.elsewhere(1) == A
    d.update([A])
    assert d.update([A, B]) == {1: B}
    assert [d.elsewhere(0), d.elsewhere(0)] == [B, A]


def test_groups_that_do_not_spread_stay_with_the_server_of_their_number() -> None:
    d = directory(3, first=1, spread=False)
    assert d.update([B, A]) == {0: A, 1: B, 2: A}
    assert d.update([C, A]) == {}
    assert d.elsewhere(0) is None
    assert d.elsewhere(1) == C, "which is where its server is now"


@given(
    st.integers(1, 8),
    st.integers(0, 100),
    st.lists(st.sets(st.sampled_from([f"tcp://10.0.0.{i}:1" for i in range(6)]), min_size=1), min_size=1),
)
def test_groups_are_never_uneven_by_more_than_one(slots: int, first: int, lookups: list[set[str]]) -> None:
    d = directory(slots, first)
    for addresses in lookups:
        d.update(sorted(addresses))
        for slot in range(slots):  # groups whose server has gone find out
            if d.choice[slot] not in addresses:
                d.elsewhere(slot)
        d.forgive()
        d.update(sorted(addresses))
        users = Counter({address: 0 for address in addresses}) + Counter(d.choice.values())
        counts = [users.get(address, 0) for address in addresses]
        assert max(counts) - min(counts) <= 1
        assert set(d.choice.values()) <= addresses
