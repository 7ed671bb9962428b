"""The accounts of a run: every rollout that was completed was used once, or dropped for a reason, or is under way.

Pages in, sums out; no sockets, no clock. The audit reads pages while the run lasts, because a process that is killed
takes its page with it. What is known about dead processes:

- What an actor sent is known exactly: the learner's page has the newest number received of each stream.
- What an actor completed but never sent is known from its last page, at most half a second before its death. What it
  completed after that page and did not send was never reported, so it counts as neither made nor lost. That is at most
  a window of messages for each env group.
- What a learner had used after its last checkpoint is known exactly from the next learner, which compares the first
  number that an actor can still send with the last one that the checkpoint counts. If that actor is dead as well, it
  sends no such number; then the next learner's page is compared with that of the learner before.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Stream = tuple[int, int]  #: sender, slot


@dataclass
class Account:
    """What is known of one stream."""

    rows: int  #: rollouts in a message
    made: int = 0  #: newest message number that the actor is known to have completed
    delivered: int = 0  #: rollouts that the learner's accounts contain now
    reached: int = 0  #: the most that they ever contained


@dataclass(frozen=True)
class Balance:
    """Rollouts, over the whole run."""

    made: int  #: completed by actors
    used: int  #: learned from, by updates that the current policy contains
    queued: int  #: in the learner's queue
    waiting: int  #: in outboxes of living actors, or on their way
    dropped: dict[str, int]  #: by reason
    gap: int  #: what is not accounted for; 0 if the accounts close
    cut: dict[str, int]  #: never completed, by the peer whose end cut them short
    most_waiting: int  #: most messages of one stream that were completed and not delivered

    @property
    def lost(self) -> int:
        """All rollouts that were begun and will never be learned from."""
        return sum(self.dropped.values()) + sum(self.cut.values())


@dataclass
class RolloutAudit:
    """Reads pages, and keeps those of dead processes."""

    accounts: dict[Stream, Account] = field(default_factory=dict)
    _learner: Mapping[str, Any] = field(default_factory=dict)  #: newest page, of all ranks together
    _ranks: dict[int, Mapping[str, Any]] = field(default_factory=dict)  #: newest page of each rank
    _actors: dict[int, Mapping[str, Any]] = field(default_factory=dict)  #: newest page of each, by sender
    _alive: dict[str, int] = field(default_factory=dict)  #: actor -> sender

    @property
    def steps(self) -> int:
        """Agent steps that the newest learner has learned from."""
        return int(self._learner.get("agent_steps", 0))

    def note(self, name: str, page: Mapping[str, Any]) -> None:
        """Read the page of a service."""
        if page.get("role") == "actor":
            self._note_actor(name, page)
        elif page.get("role") == "learner" and page.get("epoch"):
            self._note_learner(page)

    def actor_ended(self, name: str) -> None:
        """Note that an actor has ended."""
        self._alive.pop(name, None)

    def balance(self) -> Balance:
        """The current sums. They close if no message is on its way and every page is newer than the last event."""
        ledger, queued = Counter(self._learner.get("rollouts_by_fate", {})), self._learner.get("queue_rows", 0)
        living, made, waiting, dropped = set(self._alive.values()), 0, 0, Counter[str]()
        for (sender, _), account in self.accounts.items():
            completed = max(account.made * account.rows, account.reached)
            made += completed
            if sender in living:
                waiting += completed - account.delivered
            else:
                dropped["actor died"] += completed - account.reached
                dropped["actor and learner died"] += account.reached - account.delivered
        dropped["learner died after its checkpoint"] = ledger["undone"]
        dropped["refused"] = ledger["refused"]
        dropped["policy too old"] = ledger["stale"]
        dropped["update was not finite"] = ledger["skipped"]
        cut = Counter({"actor": 0})
        for sender, page in self._actors.items():
            cut.update(page["rollouts_cut_by_peer"])
            cut["actor"] += 0 if sender in living else page["envs"]  # it was assembling one rollout of each env
        accounted = ledger["used"] + queued + waiting + dropped.total()
        return Balance(
            made=made,
            used=ledger["used"],
            queued=queued,
            waiting=waiting,
            dropped={reason: count for reason, count in dropped.items() if count},
            gap=made - accounted,
            cut=dict(cut),
            most_waiting=max(
                (each.made - each.reached // each.rows for each in self.accounts.values() if each.rows), default=0
            ),
        )

    def _note_actor(self, name: str, page: Mapping[str, Any]) -> None:
        sender = self._alive[name] = page["sender"]
        self._actors[sender] = page
        for slot, rows, seq, _ in page["streams"]:
            account = self.accounts.setdefault((sender, slot), Account(rows))
            account.made = max(account.made, seq)

    def _note_learner(self, page: Mapping[str, Any]) -> None:
        rank = page.get("rank", 0)
        if not rank and page["epoch"] != self._ranks.get(0, page)["epoch"]:
            self._ranks.clear()  # all ranks have started anew, and the first one has the sums of all
        self._ranks[rank] = page
        page = merge_pages(self._ranks)
        streams = {(sender, slot): entry for sender, slot, *entry in page["streams"]}
        if page["epoch"] != self._learner.get("epoch"):
            for sender, slot, *_ in self._learner.get("streams", []):
                if (sender, slot) not in streams:  # the checkpoint is older than the stream
                    self.accounts[sender, slot].delivered = 0
        self._learner = page
        for stream, (rows, received, consumed, begun) in streams.items():
            account = self.accounts.setdefault(stream, Account(rows))
            account.delivered = received * rows + (begun if received == consumed else 0)
            account.reached = max(account.reached, account.delivered)


def merge_pages(ranks: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The page of a learner alone, from those of its ranks; each has the streams of others as of the checkpoint."""
    first = ranks.get(0, next(iter(ranks.values())))
    fates, streams = Counter[str](), dict[Stream, list[int]]()
    for page in ranks.values():
        fates.update(page["rollouts_by_fate"])
        for sender, slot, *entry in page["streams"]:
            known = streams.get((sender, slot), entry)
            streams[sender, slot] = max(known, entry, key=lambda each: (each[2], each[3], each[1]))
    return {
        **first,
        "rollouts_by_fate": fates,
        "queue_rows": sum(page.get("queue_rows", 0) for page in ranks.values()),
        "streams": [[*stream, *entry] for stream, entry in streams.items()],
    }
