"""Several learners that learn as one: what their processes, the ranks, have to agree on.

Ranks are processes of `torch.distributed`, by gloo on CPUs and by NCCL on GPUs. Each computes its own part of every
batch; `join` makes the functions of this module act over all of them. A process that has not joined is rank 0 of 1,
and for it they do nothing. All ranks call the same functions in the same order, so what decides about a call must be
the same on all of them.

    loss.backward()                                     # of this rank's part of the batch
    ranks.mean_gradients(parameters, loss, weight)      # now the gradient of the whole batch

Every collective has a name, which the error of a lost or hanging rank gives.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from zerobeast.common.errors import ConfigError, PeerLost

LOOK_S = 1.0  #: between two looks for the others
NAMING_S = 3.0  #: after a failure, how long ranks wait for a sign of life of each other


class _Group:
    """The ranks of this process's run."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.store: Store | None = None
        self.failures = 0


_group = _Group()


def rank() -> int:
    """The number of this process, 0 if it is alone."""
    return _group.rank


def size() -> int:
    """How many ranks there are."""
    return _group.size


def join(
    rank: int,
    size: int,
    meeting: str,
    timeout_s: float,
    identity: Mapping[str, str],
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Become one of several ranks; returns once all of them are there.

    Args:
      rank: of this process.
      size: of all.
      meeting: file://path, or tcp://host:port, where rank 0 listens.
      timeout_s: how long to wait for the others, here and in every collective.
      identity: by name, what has to be the same on all ranks.
      stopped: whether to give up.

    Raises:
      ConfigError: there are two ranks of this number, ranks differ, or rank 0 cannot listen.
      PeerLost: some rank does not come.
    """
    deadline = timedelta(seconds=timeout_s)
    until = time.monotonic() + timeout_s
    while (store := _claimed(rank, size, meeting, deadline)) is None:  # perhaps one that has not ended yet
        if time.monotonic() > until:
            raise ConfigError(f"rank {rank} of {size}: another process at {meeting} has this number")
        time.sleep(LOOK_S)
    with _named("first meeting"):
        store.set(f"identity/{rank}", "\n".join(f"{name} {value}" for name, value in identity.items()))
    for other in range(size):
        while not _waits(store, f"identity/{other}", LOOK_S):
            if stopped() or time.monotonic() > until:
                raise PeerLost(f"rank {other} of {size} did not come to {meeting} within {timeout_s:g} s")
            time.sleep(0.01)
        with _named("first meeting"):
            theirs = store.get(f"identity/{other}").decode()
        _compare(identity, theirs, rank, other)
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # so that its timeout is an error here, not an abort
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with _named("first meeting"):
        distributed.init_process_group(
            backend, store=PrefixStore("group", store), rank=rank, world_size=size, timeout=deadline
        )
    _group.rank, _group.size, _group.store = rank, size, store


def seed(of_run: int) -> int:
    """A seed of this rank's own for what ranks draw independently of each other; that of rank 0 is the run's."""
    return of_run + 1_000_003 * _group.rank


def leave() -> None:
    """Be alone again."""
    if _group.size > 1:
        distributed.destroy_process_group()
        _group.rank, _group.size, _group.store = 0, 1, None


@torch.no_grad()
def total(values: Tensor, name: str) -> Tensor:
    """The sum of each entry over all ranks, without gradient. `values` has the same shape on all of them."""
    if _group.size == 1:
        return values.detach()
    summed = values.detach().clone().contiguous()
    _reduce(summed, name)
    return summed


@torch.no_grad()
def joined(values: Tensor, name: str) -> Tensor:
    """[N, *shape]: `values` of all N ranks in order, without gradient; they have the same shape on all of them."""
    if _group.size == 1:
        return values.detach().unsqueeze(0)
    parts = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(_group.size)]
    with _named(name):
        distributed.all_gather(parts, values.detach().contiguous())
    return torch.stack(parts)


@torch.no_grad()
def mean(value: Tensor, weight: Tensor, name: str) -> Tensor:
    """The mean of all ranks' `value` [], without gradient; `weight` as for `mean_gradients`. 0 if all weigh 0."""
    if _group.size == 1:
        return value.detach()
    own = weight.sum().float()
    summed = total(torch.stack([own * value, own]), name)
    return summed[0] / summed[1].clamp(min=torch.finfo(torch.float32).tiny)


@torch.no_grad()
def moments(count: Tensor, mean: Tensor, variance: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Those of all ranks' entries together, from those of each rank's own.

    Args:
      count: [*lead] how many entries; if there are none, mean and variance may be anything.
      mean, variance: [*lead, *shape] float32, of these entries.
      name: of the collective.
    """
    if _group.size == 1:
        return count, mean, variance
    sizes = [count.numel(), mean.numel(), mean.numel()]
    flat = torch.cat([count.to(mean).flatten(), mean.flatten(), variance.flatten()])
    counts, means, variances = torch.split(joined(flat, name), sizes, dim=1)
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
    if _group.size == 1:
        return loss.detach()
    for weights in parameters:
        if weights.grad is None:
            weights.grad = torch.zeros_like(weights)
    gradients = [_grad(weights) for weights in parameters]
    first = torch.stack([torch.ones_like(loss), loss])
    flat = torch.cat([first, *(gradient.flatten() for gradient in gradients)])
    if weight is not None:
        flat *= weight.sum()
    _reduce(flat, "gradients")
    flat /= flat[0].clamp(min=torch.finfo(torch.float32).tiny)
    parts = torch.split(flat[2:], [gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view_as(each) for part, each in zip(parts, gradients, strict=True)])
    return flat[1]


def texts(mine: bytes, name: str) -> list[bytes]:
    """Bytes of all ranks, in order."""
    if _group.size == 1:
        return [mine]
    sizes = joined(torch.tensor(len(mine)), f"{name}: sizes").tolist()
    padded = torch.zeros(max(1, *sizes), dtype=torch.uint8)
    padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8) if mine else padded[:0]
    return [bytes(row[:size].numpy()) for row, size in zip(joined(padded, name), sizes, strict=True)]


def of_the_first(mine: bytes, name: str) -> bytes:
    """The bytes that rank 0 has."""
    if _group.size == 1:
        return mine
    size = total(torch.tensor(0 if _group.rank else len(mine)), f"{name}: size")
    content = torch.zeros(int(size), dtype=torch.uint8)
    if not _group.rank:
        content = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    with _named(name):
        distributed.broadcast(content, 0)
    return bytes(content.numpy())


class Round:
    """Numbers of all ranks, gathered while this one goes on.

    Args:
      mine: [k] integers.
      name: of the collective.
    """

    def __init__(self, mine: Sequence[int], name: str) -> None:
        self._name = name
        own = torch.tensor(mine, dtype=torch.int64)
        self._parts = [torch.empty_like(own) for _ in range(_group.size)]
        with _named(name):
            self._work = distributed.all_gather(self._parts, own, async_op=True)

    def result(self, wait_s: float) -> list[list[int]] | None:
        """The numbers of all ranks, or None if some are still missing after `wait_s`."""
        if not self._work.is_completed() and not self._done(wait_s):
            return None
        with _named(self._name):
            self._work.wait()
        return [part.tolist() for part in self._parts]

    def _done(self, wait_s: float) -> bool:
        with contextlib.suppress(RuntimeError):  # not yet; an error of the collective comes from the next `wait`
            self._work.wait(timedelta(seconds=wait_s))
        return bool(self._work.is_completed())


def _grad(weights: nn.Parameter) -> Tensor:
    assert weights.grad is not None, "which it has been given"
    return weights.grad


def _reduce(values: Tensor, name: str) -> None:
    with _named(name):
        distributed.all_reduce(values)


def _store(rank: int, size: int, meeting: str, deadline: timedelta) -> Store:
    """Where ranks find each other. Those of a launcher such as torchrun, which may restart them, share one."""
    scheme, _, place = meeting.partition("://")
    if scheme == "file":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
        return FileStore(str(Path(place)), size)
    host, _, port = place.rpartition(":")
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    listens = rank == 0 and not hosted
    try:
        store = TCPStore(host, int(port), size, listens, deadline, wait_for_workers=False)
    except RuntimeError as error:
        if listens:
            raise ConfigError(f"{meeting}: rank 0 cannot listen there: {_first_line(error)}") from error
        raise PeerLost(f"rank 0 does not answer at {meeting}: {_first_line(error)}") from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"zerobeast/{attempt}", store)


def _claimed(rank: int, size: int, meeting: str, deadline: timedelta) -> Store | None:
    """The store, with the number of this rank claimed; None if another process has it."""
    store = _store(rank, size, meeting, deadline)
    try:
        return store if store.add(f"claim/{rank}", 1) == 1 else None
    except RuntimeError:  # the first rank has just ended
        return None


def _compare(mine: Mapping[str, str], text: str, rank: int, other: int) -> None:
    theirs = dict(line.partition(" ")[::2] for line in text.splitlines())
    for name in dict.fromkeys([*mine, *theirs]):
        if theirs.get(name) != mine.get(name):
            other_s, own = (values.get(name, "as it is by default") for values in (theirs, mine))
            raise ConfigError(f"{name}: rank {rank} has {own}, rank {other} has {other_s}: expected the same")


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn the failure of a collective into a sentence.

    Raises:
      PeerLost: some rank has ended, or does not answer.
    """
    try:
        yield
    except RuntimeError as error:
        who = _missing()
        raise PeerLost(f"rank {_group.rank}: the collective {name!r} failed: {who}: {_first_line(error)}") from error


def _missing() -> str:
    """The ranks that show no sign of life, as far as that can be found out."""
    store, _group.failures = _group.store, _group.failures + 1
    if store is None:
        return "another rank has ended"
    try:
        store.set(f"alive/{_group.rank}/{_group.failures}", "")
        keys = [f"alive/{other}/{_group.failures}" for other in range(_group.size)]
        lost = [other for other, key in enumerate(keys) if not _waits(store, key, NAMING_S)]
    except RuntimeError:
        lost = [0]  # the store is in its process
    return f"rank {', '.join(map(str, lost))} has ended or hangs" if lost else "a connection was lost"


def _waits(store: Store, key: str, seconds: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=seconds))
    except RuntimeError:
        return False
    return True


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].strip()[:200]
