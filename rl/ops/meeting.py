"""How the processes of a learner become its ranks: they find each other, compare themselves, and open connections."""

import os
import socket
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import torch
from torch import distributed
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.rl.ops.ranks import GROUP, answered, first_line, named, waits

LOOK_S = 1.0  #: between two looks for the others


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
        if stopped() or time.monotonic() > until:
            raise ConfigError(f"rank {rank} of {size}: another process at {meeting} has this number")
        time.sleep(LOOK_S)
    with named("first meeting"):
        text = "\n".join(f"{name} {value}" for name, value in identity.items())
        answered(partial(store.set, f"identity/{rank}", text))
        for other in range(size):
            while not waits(store, f"identity/{other}", LOOK_S):
                if stopped() or time.monotonic() > until:
                    raise PeerLost(f"rank {other} of {size} did not come to {meeting} within {timeout_s:g} s")
                time.sleep(0.01)
            _compare(identity, answered(partial(store.get, f"identity/{other}")).decode(), rank, other)
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # so that its timeout is an error here, not an abort
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with named("first meeting"):
        distributed.init_process_group(
            backend, store=PrefixStore("group", store), rank=rank, world_size=size, timeout=deadline
        )
    GROUP.rank, GROUP.size, GROUP.store = rank, size, store


def leave() -> None:
    """Be alone again."""
    if GROUP.size > 1:
        distributed.destroy_process_group()
        GROUP.rank, GROUP.size, GROUP.store = 0, 1, None


def _store(rank: int, size: int, meeting: str, deadline: timedelta) -> Store:
    """Where ranks find each other. Those of a launcher such as torchrun, which may restart them, share one."""
    scheme, _, place = meeting.partition("://")
    if scheme == "file":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
        return FileStore(str(Path(place)), size)
    host, _, port = place.rpartition(":")
    if interface := _interface_to(host, int(port)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    listens = rank == 0 and not hosted
    try:
        store = TCPStore(host, int(port), size, listens, deadline, wait_for_workers=False)
    except RuntimeError as error:
        if listens:
            raise ConfigError(f"{meeting}: rank 0 cannot listen there: {first_line(error)}") from error
        raise PeerLost(f"rank 0 does not answer at {meeting}: {first_line(error)}") from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"zerobeast/{attempt}", store)


def _interface_to(host: str, port: int) -> str | None:
    """The network interface by which this machine reaches a host, if it does.

    By default gloo takes the one that the machine's own name stands for, which is often the loopback interface.
    """
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            own = probe.getsockname()[0]
    except OSError:
        return None
    found = (name for name, entries in psutil.net_if_addrs().items() if own in (entry.address for entry in entries))
    return next(found, None)


def _claimed(rank: int, size: int, meeting: str, deadline: timedelta) -> Store | None:
    """The store, with the number of this rank claimed; None if another process has it."""
    store = _store(rank, size, meeting, deadline)
    try:
        return store if answered(partial(store.add, f"claim/{rank}", 1), deadline.total_seconds()) == 1 else None
    except RuntimeError:  # the first rank has just ended
        return None


def _compare(mine: Mapping[str, str], text: str, rank: int, other: int) -> None:
    theirs = dict(line.partition(" ")[::2] for line in text.splitlines())
    for name in dict.fromkeys([*mine, *theirs]):
        if theirs.get(name) != mine.get(name):
            other_s, own = (values.get(name, "as it is by default") for values in (theirs, mine))
            raise ConfigError(f"{name}: rank {rank} has {own}, rank {other} has {other_s}: expected the same")
