"""How the processes of a learner become its ranks: they find each other, open connections, and compare themselves.

Whoever can connect to the port of a rank could take the place of another one. So each rank proves over each of its
connections by gloo that it knows the secret of this start, and then accepts no further ones. Those that NCCL opens
later are neither proven nor closed to others. What ranks send is not encrypted.
"""

import gc
import hmac
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.rl.ops import ranks
from zerobeast.rl.ops.listeners import close_to_others, find_listening
from zerobeast.rl.ops.ranks import GROUP, explain_failures, first_line, request_store, wait_for_key
from zerobeast.rl.ops.stores import open_store

LOOK_S = 1.0  #: between two looks for the others
NONCE_BYTES = 32  #: as many as a proof has


def join(
    rank: int,
    size: int,
    meeting: str,
    timeout_s: float,
    identity: Mapping[str, str],
    secret: bytes = b"",
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Become one of several ranks; returns once all of them are there.

    Args:
      rank: of this process.
      size: of all.
      meeting: file://path, or tcp://host:port, where rank 0 listens.
      timeout_s: how long to wait for the others, here and in every collective.
      identity: by name, what has to be the same on all ranks.
      secret: that only ranks know; what is in the store is added to it, which others may be unable to read.
      stopped: whether to give up.

    Raises:
      ConfigError: ranks differ, or rank 0 cannot listen.
      PeerLost: some rank does not come, has this number already, or does not know the secret; or others are connected.
    """
    before, until = find_listening(), time.monotonic() + timeout_s
    store = _claim_rank(rank, size, meeting, timeout_s, until, stopped)
    of_store = find_listening() - before
    with explain_failures("first meeting"):
        secret += _await_all(rank, size, meeting, store, until, stopped)
        _connect(rank, size, store, timeout_s)
        _prove(secret)
    for descriptor in find_listening() - before:
        if (found := close_to_others(descriptor)) > size - (descriptor not in of_store):  # gloo has none to itself
            raise PeerLost(f"rank {rank} of {size} has {found} connections at one of its ports: others have some too")
    _compare(identity)


def leave() -> None:
    """Be alone again."""
    if GROUP.size > 1:
        distributed.destroy_process_group()
        GROUP.rank, GROUP.size, GROUP.store = 0, 1, None


def _claim_rank(
    rank: int, size: int, meeting: str, timeout_s: float, until: float, stopped: Callable[[], bool]
) -> Store:
    """The store, with the number of this rank claimed. Perhaps a process that has it must end first."""
    while True:
        try:
            return _try_claim(rank, size, meeting, timeout_s)
        except (PeerLost, RuntimeError) as error:  # the latter: the first rank has just ended
            if stopped() or time.monotonic() > until:
                raise PeerLost(first_line(error)) from error
        gc.collect()  # the store of this try, with its port or lock: an error and its frames hold each other
        time.sleep(LOOK_S)


def _try_claim(rank: int, size: int, meeting: str, timeout_s: float) -> Store:
    """Open the store and claim the number of this rank there, once. Raises PeerLost if another process has it."""
    store = open_store(rank, size, meeting, timedelta(seconds=timeout_s))
    if request_store(partial(store.add, f"claim/{rank}", 1), timeout_s) != 1:
        raise PeerLost(f"rank {rank} of {size}: another process at {meeting} has this number")
    return store


def _await_all(rank: int, size: int, meeting: str, store: Store, until: float, stopped: Callable[[], bool]) -> bytes:
    """Wait for all ranks; returns what rank 0 has drawn for this start, for all who can read the store."""
    if rank == 0:
        request_store(partial(store.set, "secret", secrets.token_hex(NONCE_BYTES)))
    request_store(partial(store.set, f"here/{rank}", str(size)))
    for other in range(size):
        while not wait_for_key(store, f"here/{other}", LOOK_S):
            if stopped() or time.monotonic() > until:
                raise PeerLost(f"rank {other} of {size} did not come to {meeting} in time")
            time.sleep(0.01)
        if (theirs := request_store(partial(store.get, f"here/{other}")).decode()) != str(size):
            raise PeerLost(f"learner.ranks: rank {rank} has {size}, rank {other} has {theirs:.9}: expected the same")
    drawn: bytes = request_store(partial(store.get, "secret"))
    return drawn


def _connect(rank: int, size: int, store: Store, timeout_s: float) -> None:
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # so that its timeout is an error here, not an abort
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(
        backend, store=PrefixStore("group", store), rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )
    GROUP.rank, GROUP.size, GROUP.store = rank, size, store


def _prove(secret: bytes) -> None:
    """Check over the connection to each rank that the other end knows the secret too.

    Raises:
      PeerLost: one does not.
    """
    rank, own = GROUP.rank, secrets.token_bytes(NONCE_BYTES)
    theirs = _exchange([own] * GROUP.size)
    answers = _exchange([_proof(secret, rank, other, nonce) for other, nonce in enumerate(theirs)])
    for other, answer in enumerate(answers):
        if not hmac.compare_digest(answer, _proof(secret, other, rank, own)):
            raise PeerLost(f"rank {rank}: what has connected as rank {other} does not know the secret of this start")


def _proof(secret: bytes, of: int, to: int, nonce: bytes) -> bytes:
    return hmac.digest(secret, f"rank {of} to {to} ".encode() + nonce, "sha256")


def _exchange(parts: Sequence[bytes]) -> list[bytes]:
    """What each rank has sent to this one, which sends each a part of the same size."""
    sent = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent)  # gloo sends each part over the pair's own connection
    return [bytes(part.numpy()) for part in received.chunk(len(parts))]


def _compare(identity: Mapping[str, str]) -> None:
    own = "\n".join(f"{name} {value}" for name, value in identity.items())
    for other, text in enumerate(ranks.gather_bytes(own.encode(), "settings")):
        theirs = dict(line.partition(" ")[::2] for line in text.decode().splitlines())
        for name in dict.fromkeys([*identity, *theirs]):
            here, there = (values.get(name, "as it is by default") for values in (identity, theirs))
            if here != there:
                raise ConfigError(f"{name}: rank {GROUP.rank} has {here}, rank {other} has {there}: expected the same")
