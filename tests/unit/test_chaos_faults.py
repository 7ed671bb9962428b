"""Which faults are drawn, how they are reported, and when a promise counts as broken."""

from collections import Counter
from dataclasses import replace
from itertools import islice

from zerobeast.tools.chaos import table, verdict
from zerobeast.tools.chaos.balance import Balance
from zerobeast.tools.chaos.faults import STOPS_S, FaultKind, ServiceFault, draw
from zerobeast.tools.chaos.inject import Event

NAMES = ("learner 0", "broker 0", "broker 1", "envserver 0", "actor 0", "actor 1", "actor 2")
CLOSED = Balance(100, 90, 4, 0, {"actor died": 6}, 0, {}, 1)


def event(title: str, recovery_s: float | None = 1.0, lost: int = 0, broken: str = "") -> Event:
    kind, target = title.split(" ", 1)
    back = None if recovery_s is None else 20.0 + recovery_s
    return Event(ServiceFault(FaultKind(kind), (target,), 1.0), 10.0, 15.0, 20.0, back, 80.0, lost, broken)


def test_the_same_seed_draws_the_same_faults_and_another_one_others() -> None:
    first, again, other = (list(islice(draw(seed, NAMES), 50)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_every_role_and_kind_of_fault_is_drawn_and_no_fault_hits_a_service_twice() -> None:
    drawn = list(islice(draw(1, NAMES), 2000))
    singles = Counter(fault.title for fault in drawn if len(fault.targets) == 1)
    assert len(singles) == 12
    assert min(singles.values()) > max(singles.values()) / 2
    assert {name for fault in drawn for name in fault.targets} == set(NAMES)
    assert all(len(set(fault.targets)) == len(fault.targets) for fault in drawn)
    assert 0.15 < sum(len(fault.targets) == 2 for fault in drawn) / len(drawn) < 0.25
    stops = [fault.pause_s for fault in drawn if fault.kind is FaultKind.STOP]
    shortest, longest = STOPS_S
    assert shortest <= min(stops) < 2 * shortest
    assert longest / 2 < max(stops) <= longest


def test_faults_of_a_sort_make_one_row() -> None:
    events = [event("SIGKILL learner 0", 1.0, 30), event("SIGKILL learner 0", 4.0, 10), event("SIGSTOP actor 2")]
    events.append(Event(ServiceFault(FaultKind.KILL, ("actor 0", "broker 1"), 1.0), 10.0, 15.0, 20.0, None, None))
    rows = table.of_services(events)
    assert table.markdown(rows).splitlines()[2:4] == [
        "| SIGKILL learner | 2 | 5.0 s | 2.5 s, 4.0 s | 20, 30 | held |",
        "| SIGKILL two at once | 1 | 5.0 s | nothing to recover | 0, 0 | held |",
    ], "the second was never in peace before"
    assert [row["fault"] for row in rows] == ["SIGKILL learner", "SIGKILL two at once", "SIGSTOP actor"]


def test_a_row_names_the_guarantee_that_broke() -> None:
    (row,) = table.of_services([event("SIGKILL actor 0"), event("SIGKILL actor 0", None, broken="not back")])
    assert row["verdict"] == "1 times: not back"
    assert row["recovery (median, worst)"] == "1.0 s, 1.0 s"


def test_accounts_that_close_are_in_order_and_all_others_are_not() -> None:
    assert list(verdict.accounts(CLOSED, 2, 450, 5)) == []
    for change, word in (
        (replace(CLOSED, gap=3), "accounted"),
        (replace(CLOSED, waiting=3), "on their way"),
        (replace(CLOSED, most_waiting=3), "window is 2"),
    ):
        (sentence,) = verdict.accounts(change, 2, 450, 5)
        assert word in sentence
    (sentence,) = verdict.accounts(CLOSED, 2, 455, 5)
    assert "counted 455 steps" in sentence


def test_a_service_that_grows_is_named_and_a_young_one_is_not() -> None:
    flat = [(float(second), float(second), 100.0 + second % 3) for second in range(200)]
    growing = [(float(second), float(second), 100.0 + second) for second in range(200)]
    young = [(float(second), float(second % 10), 100.0 + second) for second in range(200)]
    (sentence,) = verdict.memory({"a": flat, "b": growing, "c": young, "d": growing[:30]})
    assert sentence == "b grew from 145 to 269 MiB"


def test_bad_messages_and_raising_environments_are_strange_and_lost_sessions_are_not() -> None:
    assert list(verdict.strangeness({"session": 5}, 0)) == []
    assert len(list(verdict.strangeness({"payload": 1, "kind": 2}, 3))) == 3


def test_weights_may_go_back_once_for_every_group_at_every_start_of_the_learner() -> None:
    assert list(verdict.versions(epochs=3, starts=2, drops=8, groups=4)) == []
    (sentence,) = verdict.versions(epochs=3, starts=2, drops=9, groups=4)
    assert "backwards 9 times, expected at most 8" in sentence
    for epochs in (0, 4):
        (sentence,) = verdict.versions(epochs, starts=2, drops=0, groups=4)
        assert f"from {epochs} starts" in sentence
