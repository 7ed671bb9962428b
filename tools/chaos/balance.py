"""The accounts of a run: every rollout that was completed was used once, or dropped for a reason, or is under way.

Pages in, sums out; no sockets, no clock. The journal reads pages while the run lasts, because a process that is killed
takes its page with it. What it can tell of the dead:

- What an actor sent is known exactly: the learner's page says up to which number it received each stream.
- What an actor completed and never sent is known from its last page, half a second before its death at most. What it
  completed after that page and did not send was never seen, and is neither made nor lost here. It is at most a
  window of messages for each env group.
- What a learner had used after its last checkpoint is known exactly from the next one, which compares the first number
  that an actor can still send with the last one that the checkpoint knows. Where that actor is dead as well, nobody
  says so; then the next learner's page is compared with the last one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Stream = tuple[int, int]  #: sender, slot


@dataclass
class Account:
    """What is known of one stream."""

    rows: int  #: rollouts in a message
    made: int = 0  #: newest number that the actor is known to have completed
    delivered: int = 0  #: rollouts that the learner's accounts contain now
    reached: int = 0  #: the most that they contained ever


@dataclass(frozen=True)
class Balance:
    """Rollouts, over the whole run."""

    made: int  #: completed by actors
    used: int  #: learned from, by updates that the policy of now contains
    queued: int  #: in the learner's queue
    waiting: int  #: in outboxes of living actors, or on their way
    dropped: dict[str, int]  #: by reason
    gap: int  #: what is not accounted for; 0 where the accounts close
    cut: dict[str, int]  #: never completed, by the peer whose end cut them off
    most_waiting: int  #: messages of one stream that were completed and not delivered, at most

    @property
    def lost(self) -> int:
        """Everything that was begun and not learned from, and will not be."""
        return sum(self.dropped.values()) + sum(self.cut.values())


@dataclass
class RolloutAudit:
    """Reads pages, and remembers what the dead have said."""

    accounts: dict[Stream, Account] = field(default_factory=dict)
    ledger: Counter[str] = field(default_factory=Counter)  #: of the newest learner
    queued: int = 0
    epoch: int = 0  #: of the newest learner
    steps: int = 0  #: that it has learned from
    _listed: set[Stream] = field(default_factory=set)  #: streams of its newest page
    _cuts: dict[int, Mapping[str, int]] = field(default_factory=dict)  #: by sender
    _alive: dict[str, int] = field(default_factory=dict)  #: actor -> sender
    _assembling: dict[int, int] = field(default_factory=dict)  #: sender -> rollouts in assembly
    _died: int = 0  #: rollouts that were in assembly when their actor died

    def note(self, name: str, page: Mapping[str, Any]) -> None:
        """Read the page of a service."""
        if page.get("role") == "actor":
            self._note_actor(name, page)
        elif page.get("role") == "learner" and page.get("epoch"):
            self._note_learner(page)

    def actor_ended(self, name: str) -> None:
        """An actor has ended."""
        sender = self._alive.pop(name, 0)
        self._died += self._assembling.pop(sender, 0)

    def balance(self) -> Balance:
        """The sums now. They close where no message is on its way, and every page is newer than the last event."""
        ledger, dropped = self.ledger, Counter[str]()
        living, made, waiting = set(self._alive.values()), 0, 0
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
        cut = Counter({"actor": self._died})
        for cuts in self._cuts.values():
            cut.update(cuts)
        accounted = ledger["used"] + self.queued + waiting + dropped.total()
        return Balance(
            made=made,
            used=ledger["used"],
            queued=self.queued,
            waiting=waiting,
            dropped={reason: count for reason, count in dropped.items() if count},
            gap=made - accounted,
            cut=dict(cut),
            most_waiting=max((self._unsent(account) for account in self.accounts.values()), default=0),
        )

    def _note_actor(self, name: str, page: Mapping[str, Any]) -> None:
        sender = page["sender"]
        self._alive[name] = sender
        self._cuts[sender] = page["rollouts_cut_by_peer"]
        self._assembling[sender] = page["envs"]
        for slot, rows, seq, _ in page["streams"]:
            account = self.accounts.setdefault((sender, slot), Account(rows))
            account.made = max(account.made, seq)

    def _note_learner(self, page: Mapping[str, Any]) -> None:
        streams = {(sender, slot): entry for sender, slot, *entry in page["streams"]}
        if page["epoch"] != self.epoch:
            self.epoch = page["epoch"]
            for stream in self._listed - streams.keys():  # the checkpoint is older than they are
                self.accounts[stream].delivered = 0
        self._listed = set(streams)
        for stream, (rows, received, consumed, begun) in streams.items():
            account = self.accounts.setdefault(stream, Account(rows))
            account.delivered = received * rows + (begun if received == consumed else 0)
            account.reached = max(account.reached, account.delivered)
        self.ledger = Counter(page["rollouts_by_fate"])
        self.queued, self.steps = page["queue_rows"], page["agent_steps"]

    @staticmethod
    def _unsent(account: Account) -> int:
        return account.made - account.reached // account.rows if account.rows else 0
