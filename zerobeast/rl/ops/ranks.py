"""Several learners that learn as one: what their processes, the ranks, have to agree on.

Ranks are processes of `torch.distributed`, by gloo on CPUs and by NCCL on GPUs. Each computes its own part of every
batch; `meeting.join` makes the functions of this module act over all of them. A process that has not joined is rank 0
of 1, and for it they do nothing. All ranks call the same functions in the same order, so what decides about a call must
be the same on all of them.

    loss.backward()                                     # of this rank's part of the batch
    ranks.mean_gradients(parameters, loss, weight)      # now the gradient of the whole batch

Every collective has a name, which the error of a lost or hanging rank gives.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed import DistNetworkError, Store  # type: ignore[attr-defined]

from zerobeast.common.errors import PeerLost
from zerobeast.common.process.threads import run_in_thread

R = TypeVar("R")
NAMING_S = 3.0  #: after a failure, how long ranks wait for a sign of life of each other
ALIVE_S = 1.0  #: between signs of life of a rank that works for long
ANSWER_S = 3.0  #: for the store's answer to a request that it has no reason to wait with


class Group:
    """The ranks of this process's run."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.store: Store | None = None
        self.failures = 0


GROUP = Group()


def rank() -> int:
    """The number of this process, 0 if it is alone."""
    return GROUP.rank


def size() -> int:
    """How many ranks there are."""
    return GROUP.size


def rank_seed(of_run: int) -> int:
    """A seed of this rank's own for what ranks draw independently of each other; that of rank 0 is the run's."""
    return of_run + 1_000_003 * GROUP.rank


@torch.no_grad()
def sum_over_ranks(values: Tensor, name: str) -> Tensor:
    """The sum of each entry over all ranks, without gradient. `values` has the same shape on all of them."""
    if GROUP.size == 1:
        return values.detach()
    summed = values.detach().clone().contiguous()
    _reduce(summed, name)
    return summed


@torch.no_grad()
def gather(values: Tensor, name: str) -> Tensor:
    """[N, *shape]: `values` of all N ranks in order, without gradient; they have the same shape on all of them."""
    if GROUP.size == 1:
        return values.detach().unsqueeze(0)
    parts = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(GROUP.size)]
    with explain_failures(name):
        distributed.all_gather(parts, values.detach().contiguous())
    return torch.stack(parts)


@torch.no_grad()
def mean_over_ranks(value: Tensor, weight: Tensor, name: str) -> Tensor:
    """The mean of all ranks' `value` [], without gradient; `weight` as for `mean_gradients`. 0 if all weigh 0."""
    if GROUP.size == 1:
        return value.detach()
    own = weight.sum().float()
    summed = sum_over_ranks(torch.stack([own * value, own]), name)
    return summed[0] / summed[1].clamp(min=torch.finfo(torch.float32).tiny)


@torch.no_grad()
def merge_moments(count: Tensor, mean: Tensor, variance: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Those of all ranks' entries together, from those of each rank's own.

    Args:
      count: [*lead] how many entries; if there are none, mean and variance may be anything.
      mean, variance: [*lead, *shape] float32, of these entries.
      name: of the collective.
    """
    if GROUP.size == 1:
        return count, mean, variance
    sizes = [count.numel(), mean.numel(), mean.numel()]
    flat = torch.cat([count.to(mean).flatten(), mean.flatten(), variance.flatten()])
    counts, means, variances = torch.split(gather(flat, name), sizes, dim=1)
    counts = counts.view(-1, *count.shape, *[1] * (mean.ndim - count.ndim))
    means, variances = (each.view(-1, *mean.shape).where(counts > 0, 0.0) for each in (means, variances))
    whole = counts.sum(0)
    shares = counts / whole.clamp(min=1)
    centre = (shares * means).sum(0)
    # a difference of second moments would cancel
    return whole.view_as(count), centre, (shares * (variances + (means - centre).square())).sum(0)


@torch.no_grad()
def mean_gradients(parameters: Sequence[nn.Parameter], loss: Tensor, weight: Tensor | None = None) -> Tensor:
    """Make every gradient the mean of all ranks'; returns the mean of their losses [].

    A parameter without gradient has one of 0 afterwards if there are several ranks: on another rank it may have one.

    Args:
      parameters: with gradients of `loss`.
      loss: [] of this rank's part of the batch.
      weight: of this rank in the means, of which the sum is taken: the mask of valid transitions if its loss is a mean
        over them; None: all ranks weigh the same. It is 0 on a rank whose part is empty.
    """
    if GROUP.size == 1:
        return loss.detach()
    gradients: list[Tensor] = []
    for weights in parameters:
        if weights.grad is None:
            weights.grad = torch.zeros_like(weights)
        gradients.append(weights.grad)
    first = torch.stack([torch.ones_like(loss), loss])
    flat = torch.cat([first, *(gradient.flatten() for gradient in gradients)])
    if weight is not None:
        flat *= weight.sum()
    _reduce(flat, "gradients")
    flat /= flat[0].clamp(min=torch.finfo(torch.float32).tiny)
    parts = torch.split(flat[2:], [gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view_as(each) for part, each in zip(parts, gradients, strict=True)])
    return flat[1]


def gather_bytes(mine: bytes, name: str) -> list[bytes]:
    """Bytes of all ranks, in order."""
    if GROUP.size == 1:
        return [mine]
    sizes = gather(torch.tensor(len(mine)), f"{name}: sizes").tolist()
    padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
    padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else padded[:0]
    return [bytes(row[:size].numpy()) for row, size in zip(gather(padded, name), sizes, strict=True)]


def broadcast_first(mine: bytes, name: str) -> bytes:
    """The bytes that rank 0 has."""
    if GROUP.size == 1:
        return mine
    size = sum_over_ranks(torch.tensor(0 if GROUP.rank else len(mine)), f"{name}: size")
    content = torch.zeros(int(size), dtype=torch.uint8)
    if not GROUP.rank:
        content = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    with explain_failures(name):
        distributed.broadcast(content, 0)
    return bytes(content.numpy())


def run_patiently(work: Callable[[], R], name: str) -> R:
    """Do what may take longer than a collective waits, such as reading or writing a file; returns once all ranks have.

    Each goes on with signs of life while it waits for its own work or for that of others.
    """
    if GROUP.size == 1:
        return work()
    with ThreadPoolExecutor(1) as pool:
        own = pool.submit(work)
        while wait([own], ALIVE_S) and sum_over_ranks(torch.tensor(int(not own.done())), name):
            pass
    return own.result()


class Round:
    """Numbers of all ranks, gathered while this one goes on.

    Args:
      mine: [k] integers.
      name: of the collective.
    """

    def __init__(self, mine: Sequence[int], name: str) -> None:
        self._name = name
        own = torch.tensor(mine, dtype=torch.int64)
        self._parts = [torch.empty_like(own) for _ in range(GROUP.size)]
        with explain_failures(name):
            self._work = distributed.all_gather(self._parts, own, async_op=True)

    def result(self, wait_s: float) -> list[list[int]] | None:
        """The numbers of all ranks, or None if some are still missing after `wait_s`."""
        if not self._work.is_completed():
            with contextlib.suppress(RuntimeError):  # not yet; an error of the collective comes from the next `wait`
                self._work.wait(timedelta(seconds=wait_s))
        if not self._work.is_completed():
            return None
        with explain_failures(self._name):
            self._work.wait()
        return [part.tolist() for part in self._parts]


def _reduce(values: Tensor, name: str) -> None:
    with explain_failures(name):
        distributed.all_reduce(values)


@contextlib.contextmanager
def explain_failures(name: str) -> Iterator[None]:
    """Turn the failure of a collective into a sentence.

    Raises:
      PeerLost: some rank has ended, or does not answer.
    """
    try:
        yield
    except RuntimeError as error:
        who = _find_missing()
        raise PeerLost(f"rank {GROUP.rank}: the collective {name!r} failed: {who}: {first_line(error)}") from error


def _find_missing() -> str:
    """The ranks that show no sign of life, as far as that can be found out."""
    store, GROUP.failures = GROUP.store, GROUP.failures + 1
    if store is None:
        return "another rank has ended"
    try:
        request_store(partial(store.set, f"alive/{GROUP.rank}/{GROUP.failures}", ""))
        keys = {other: f"alive/{other}/{GROUP.failures}" for other in range(GROUP.size) if other != GROUP.rank}
        lost = [other for other, key in keys.items() if not wait_for_key(store, key, NAMING_S)]
    except RuntimeError:
        lost = [0]  # the store is in its process
    return f"rank {', '.join(map(str, lost))} has ended, hangs or is cut off" if lost else "a connection was lost"


def wait_for_key(store: Store, key: str, seconds: float) -> bool:
    """Wait for a key; returns whether it is there. Raises RuntimeError if the store does not answer at all."""

    try:
        request_store(partial(store.wait, [key], timedelta(seconds=seconds)), seconds + ANSWER_S)
    except DistNetworkError:
        raise
    except RuntimeError:  # its answer
        return False
    return True


def request_store(request: Callable[[], R], seconds: float = ANSWER_S) -> R:
    """The result of a request to the store, which by itself waits for ever if its connection is cut.

    Raises:
      RuntimeError: there is no answer in time, or the request raises it.
    """
    try:
        return run_in_thread(request).result(seconds)
    except TimeoutError:
        raise DistNetworkError(f"no answer from rank 0 within {seconds:g} s") from None


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].strip()[:200]
