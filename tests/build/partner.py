"""One of two ranks, and what they compute together: `python -m tests.build.partner` is the other one.

A line of its standard input has the arguments of `meet`, as JSON; a line of its output has what has come of that.
"""

import gc
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from tests.helpers import wait_until
from zerobeast.common.errors import BeastError
from zerobeast.rl.ops import meeting, ranks
from zerobeast.services.learner.coordination import RankCoordinator, Vote


def store() -> Store:
    assert ranks.GROUP.store is not None, "they have met"
    return ranks.GROUP.store


def gradients(own: int, *weight: Tensor) -> list[float]:
    """The mean of 1 and 2, and its gradients with respect to a parameter and to one that is not used."""
    used, unused = (nn.Parameter(torch.ones(1)) for _ in range(2))
    loss = (1.0 + own) * used.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    mean = ranks.mean_gradients([used, unused], loss, *weight)
    return [mean.item(), *(each.grad.item() for each in (used, unused) if each.grad is not None)]


def patience(own: int) -> bool:
    """Whether the other rank has ended its work as well, which begins after this one's."""

    def work() -> None:
        store().set(f"begun {own}", "")
        store().wait([f"begun {1 - own}"])
        store().set(f"done {own}", "")

    ranks.run_patiently(work, "work")
    return bool(store().check([f"done {1 - own}"]))


def agreement(own: int) -> list[Any]:
    """What follows from the votes for 3 and 4 rows, of which that of rank 1 comes after rank 0 has waited for it."""
    together = RankCoordinator()
    if own:
        store().wait(["missing"])
    agreed = together.agree(Vote(rows=3 + own, env=7), 0.0)
    waits = own or (agreed is None and together.votes)
    store().set("missing", "")
    agreed = agreed or wait_until(lambda: together.agree(Vote(), 0.0))
    return [bool(waits), agreed.act, agreed.rows, together.agree(Vote(), 0.0), together.votes]  # it votes no more now


#: by name, what a rank of this number calls
CALLS: dict[str, Callable[[int], Any]] = {
    "total": lambda own: ranks.sum_over_ranks(torch.tensor([1, own]), "total").tolist(),
    "joined": lambda own: ranks.gather(torch.tensor([own]), "joined").tolist(),
    "mean": lambda own: ranks.mean_over_ranks(torch.tensor(1.0 + own), torch.ones(1 + 2 * own), "mean").item(),
    "moments": lambda own: [
        each.tolist()
        for each in ranks.merge_moments(
            torch.tensor([2, own]), torch.tensor([2.0 + 6 * own, 3.0]), torch.tensor([4.0 - 4 * own, 1.0]), "moments"
        )
    ],
    "gradients": gradients,
    "gradients by weight": lambda own: gradients(own, torch.ones(1 + 2 * own)),
    "texts": lambda own: [text.decode() for text in ranks.gather_bytes(b"" if own else b"two", "texts")],
    "of the first": lambda own: ranks.broadcast_first(b"other" if own else b"first", "first").decode(),
    "patience": patience,
    "agreement": agreement,
}


def meet(
    own: int, at: str, calls: Sequence[str] = (), size: int = 2, version: str = "1", secret: str = "s", crowd: int = 0
) -> Any:
    """Join as the rank of this number; the results of these calls, or the name of an error and its sentence."""
    host, _, port = at.removeprefix("tcp://").partition(":")
    _stranger = crowd and TCPStore(host, int(port), is_master=False)
    try:
        meeting.join(own, size, at, 60.0, {"version": version}, secret.encode())
        return [CALLS[name](own) for name in calls]
    except BeastError as error:
        return [type(error).__name__, str(error)]
    finally:
        meeting.leave()
        gc.collect()  # the store of a try that has failed: the next try would take its descriptor for an earlier one


if __name__ == "__main__":
    meeting.LOOK_S, ranks.ALIVE_S = 0.05, 0.0
    for line in sys.stdin:
        print(json.dumps(meet(**json.loads(line))), flush=True)  # noqa: T201
