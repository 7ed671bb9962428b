"""What decides whether a run under faults was in order: the accounts of its rollouts."""

from dataclasses import replace
from typing import Any

import pytest

from zerobeast_tools.chaos import verdict
from zerobeast_tools.chaos.balance import Balance, RolloutAudit

ROWS = 3  #: rollouts in a message


def actor(sender: int, *seqs: int, cut: int = 0) -> dict[str, Any]:
    return {
        "role": "actor",
        "sender": sender,
        "envs": ROWS * len(seqs),
        "streams": [[slot, ROWS, seq, 0] for slot, seq in enumerate(seqs)],
        "rollouts_cut_by_peer": {"envserver": 0, "broker": cut},
    }


def learner(epoch: int, streams: dict[tuple[int, int], tuple[int, int, int]], **fates: int) -> dict[str, Any]:
    """streams: (received, consumed, begun) by (sender, slot)."""
    queued = fates.pop("queued", 0)
    return {
        "role": "learner",
        "epoch": epoch,
        "streams": [[*stream, ROWS, *entry] for stream, entry in streams.items()],
        "rollouts_by_fate": {"used": 0, "skipped": 0, "refused": 0, "undone": 0} | fates,
        "queue_rows": queued,
        "agent_steps": 0,
    }


def audit_of(*pages: tuple[str, dict[str, Any]]) -> RolloutAudit:
    audit = RolloutAudit()
    for name, page in pages:
        audit.note(name, page)
    return audit


def test_rollouts_without_deaths_are_used_queued_on_their_way_skipped_or_refused_and_any_others_are_a_gap() -> None:
    streams = {(7, 0): (5, 4, 0), (7, 1): (3, 3, 0)}
    pages = [("actor 0", actor(7, 5, 4)), ("learner 0", learner(1, streams, used=21, queued=3))]
    assert audit_of(*pages).balance() == Balance(27, 21, 3, 3, {}, 0, {"envserver": 0, "broker": 0, "actor": 0}, 1)
    for used, gap in ((18, 3), (24, -3)):
        pages[1] = ("learner 0", learner(1, streams, used=used, queued=3))
        assert audit_of(*pages).balance().gap == gap
    fates = learner(1, {(7, 0): (9, 9, 0)}, used=12, skipped=12, refused=3)
    found = audit_of(("actor 0", actor(7, 9, cut=6)), ("learner 0", fates)).balance()
    assert (found.gap, found.dropped) == (0, {"update was not finite": 12, "refused": 3})
    assert found.cut["broker"] == 6


CLOSED = Balance(100, 90, 4, 0, {"actor died": 6}, 0, {}, 1)


@pytest.mark.parametrize("change", [{}, {"gap": 3}, {"waiting": 3}, {"most_waiting": 3}, {"used": 91}])
def test_accounts_that_close_are_in_order_and_all_others_are_not(change: dict[str, int]) -> None:
    assert len(list(verdict.accounts(replace(CLOSED, **change), window=2, steps=450, unroll_length=5))) == len(change)
