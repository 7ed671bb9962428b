"""The episodic memory on the side of the learner: what to keep, what to evict, and what to replay."""

from collections.abc import Iterable

import torch
from torch import Tensor

from zerobeast.rl.memory.entries import Entry
from zerobeast.rl.nets.episodic import Contents


class Memory:
    """Keeps the entries of highest priority, whose images and rollouts stay here; the rest is in `contents`.

    Args:
      contents: of the network; emptied, since a network that was trained before has no images here.
      decay: factor on all priorities whenever an entry is offered, so that what is new has a chance.
    """

    def __init__(self, contents: Contents, decay: float) -> None:
        self.entries: list[Entry] = []  #: by place
        self.contents, self._decay = contents, decay
        contents.clear()

    def write(self, entry: Entry) -> int | None:
        """Keep an entry, in place of the most familiar one if there is no room; returns its place.

        Returns None if it is itself the most familiar one.
        """
        contents, place = self.contents, len(self.entries)
        contents.priorities.mul_(self._decay)
        if place == len(contents.keys):
            place = self.evict()
            if contents.priorities[place] >= entry.priority:
                return None
            self.entries[place] = entry
        else:
            self.entries.append(entry)
        assert entry.key is not None, "its rarity was measured"
        contents.keys[place] = entry.key
        contents.states[place] = entry.step.state
        contents.priorities[place] = entry.priority
        contents.versions[place] = entry.step.version
        contents.absent[place] = 0.0
        contents.written.add_(1)
        return place

    def evict(self) -> int:
        """The place of the most familiar entry."""
        return int(self.contents.priorities[: len(self.entries)].argmin())

    def rekey(self, keys: Tensor) -> None:
        """Replace the keys of all entries, [n, K], in the order of their places."""
        self.contents.keys[: len(keys)] = keys

    def draw(self, n: int) -> list[Entry]:
        """n entries, with replacement, by priority."""
        weights = self.contents.priorities[: len(self.entries)].clamp(min=torch.finfo(torch.float32).tiny)
        return [self.entries[place] for place in torch.multinomial(weights, n, replacement=True).tolist()]

    def restore(self, entries: Iterable[Entry]) -> None:
        """Continue with the entries of a checkpoint, whose network has the rest."""
        self.entries = list(entries)
        self.contents.clear(len(self.entries))
