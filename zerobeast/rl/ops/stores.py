"""Where the ranks of a learner find each other: a store that they share, in a file or in the process of rank 0."""

import fcntl
import os
import re
import secrets
import socket
import weakref
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import psutil
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError, PeerLost, raise_as
from zerobeast.common.files.atomic import explain_os_errors


def open_store(rank: int, size: int, meeting: str, deadline: timedelta) -> Store:
    """The store of this start of rank 0, which makes it.

    Args:
      rank: of this process.
      size: of all.
      meeting: file://path, or tcp://host:port, where rank 0 listens.
      deadline: how long to wait for rank 0 by tcp.

    Raises:
      ConfigError: rank 0 cannot listen there, or the file cannot be used.
      PeerLost: rank 0 is not there now, or another process is rank 0.
    """
    if meeting.startswith("file://"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
        with explain_os_errors(f"learner.meeting {meeting} cannot be used"), ExitStack() as lock:
            store = FileStore(str(_file(rank, Path(meeting.removeprefix("file://")), lock)), size)
            if rank == 0:  # which holds it for as long as there is the store
                weakref.finalize(store, lock.pop_all().close)
            return store
    return _by_tcp(rank, size, Endpoint.parse(meeting), deadline)


def _file(rank: int, path: Path, lock: ExitStack) -> Path:
    """The file of the store. `path` has its name, and a lock that the kernel releases however rank 0 ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    lock.callback(os.close, handle)
    is_there = True
    with suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_NB | (fcntl.LOCK_SH if rank else fcntl.LOCK_EX))
        is_there = False
    name = os.pread(handle, 99, 0).decode(errors="replace")
    if os.fstat(handle).st_uid != os.geteuid() or not re.fullmatch(r"([0-9a-f]{16})?", name):
        raise ConfigError(f"learner.meeting file://{path}: expected no file, or one of this user's earlier ranks")
    if is_there == (rank == 0) or (rank and not name):
        raise PeerLost(f"rank 0 is not yet at file://{path}" if rank else f"another rank 0 is at file://{path}")
    if rank == 0:
        os.ftruncate(handle, 0)
        path.with_name(f"{path.name}.{name}").unlink(missing_ok=True)
        name = secrets.token_hex(8)
        os.close(os.open(path.with_name(f"{path.name}.{name}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.pwrite(handle, name.encode(), 0)
    return path.with_name(f"{path.name}.{name}")


def _by_tcp(rank: int, size: int, place: Endpoint, deadline: timedelta) -> Store:
    """The store of rank 0's process. Those of a launcher such as torchrun, which may restart them, share that one's."""
    listener = None
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        place = place.resolve()
        listener = _listener(place)
    host = place.host.strip("[]")
    with raise_as(PeerLost, f"rank 0 does not answer at {place}", RuntimeError):
        store = TCPStore(
            host, place.port, size, listener is not None, deadline, wait_for_workers=False, master_listen_fd=listener
        )
    if interface := _interface_to(host, place.port):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"zerobeast/{attempt}", store)


def _listener(place: Endpoint) -> int:
    """The descriptor of a socket that listens at this address alone: by itself torch listens at every one."""
    family = socket.AF_INET6 if place.host.startswith("[") else socket.AF_INET
    with raise_as(ConfigError, f"learner.meeting {place}: rank 0 cannot listen there", OSError):
        return socket.create_server((place.host.strip("[]"), place.port), family=family).detach()


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
