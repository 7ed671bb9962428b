"""Addresses of planes. A service has one endpoint; the sockets of its planes have consecutive addresses from there on.

tcp://learner:5560      -> tcp://learner:5560,  :5561,  :5562 ...
ipc:///run/x/learner    -> /run/x/learner.0, .1, .2 ...
inproc://learner        -> learner.0, .1, .2 ... for services that share a process
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from zerobeast.common.errors import ConfigError, PeerLost, name_subject, raise_as

MAX_IPC_PATH = 100  # the kernel allows 107 bytes, and ".0" is added
_TCP = re.compile(r"tcp://(\*|\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


@dataclass(frozen=True)
class Endpoint:
    """A parsed endpoint: host and port, a path, or a name inside this process."""

    host: str = ""
    port: int = 0
    path: str = ""
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "tcp://host:port", "ipc://path" or "inproc://name".

        Raises:
          ConfigError: the text is not a valid endpoint.
        """
        with name_subject("endpoint", text):
            return cls._parse(text)

    @classmethod
    def _parse(cls, text: str) -> Self:
        if text.startswith("inproc://") and len(text) > len("inproc://"):
            return cls(name=text.removeprefix("inproc://"))
        if text.startswith("ipc://") and len(text) > len("ipc://"):
            path = text.removeprefix("ipc://")
            if not hasattr(socket, "AF_UNIX"):
                raise ConfigError(f"endpoint {text!r}: this system has no unix sockets, expected tcp://host:port")
            if len(os.fsencode(path)) > MAX_IPC_PATH or "\0" in path:
                raise ConfigError(f"endpoint {text!r}: a socket path has at most {MAX_IPC_PATH} bytes, none of them 0")
            return cls(path=path)
        match = _TCP.fullmatch(text)
        if not match or not 0 < int(match[2]) <= 65_530:
            raise ConfigError(f"endpoint {text!r}: expected tcp://host:port (port 1 to 65530) or ipc://path")
        return cls(host=match[1], port=int(match[2]))

    def __str__(self) -> str:
        if self.is_local:
            return f"inproc://{self.name}" if self.name else f"ipc://{self.path}"
        return f"tcp://{self.host}:{self.port}"

    def socket(self, index: int) -> str:
        """The address of the service's index-th socket, in libzmq's format."""
        return f"{self}.{index}" if self.is_local else f"tcp://{self.host}:{self.port + index}"

    @property
    def is_local(self) -> bool:
        """Whether no network lies between its ends: both are on this machine, or in this process."""
        return bool(self.path or self.name)

    @property
    def is_name(self) -> bool:
        """Whether the host has to be looked up."""
        return not self.is_local and self.host != "*" and self._number() is None

    @property
    def is_loopback(self) -> bool:
        """Whether a server that binds here can be reached from this machine alone."""
        number = self._number()
        return self.is_local or (self.host == "localhost" if number is None else number.is_loopback)

    def _number(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        with suppress(ValueError):
            return ipaddress.ip_address(self.host.strip("[]"))
        return None

    def resolve(self) -> Endpoint:
        """This endpoint with its name looked up once, so that all sockets of a client reach the same server.

        Raises:
          PeerLost: the name does not resolve now.
          ConfigError: the host is "*", which a server may bind but a client cannot connect to.
        """
        return self.addresses()[0]

    def addresses(self) -> list[Endpoint]:
        """Every address that the name resolves to, without duplicates: the replicas of a server.

        Raises: as `resolve`.
        """
        if self.is_local:
            return [self]
        self.refuse_wildcard()
        with raise_as(PeerLost, f"cannot resolve {self.host!r}", OSError, UnicodeError):
            found = socket.getaddrinfo(self.host.strip("[]"), self.port, type=socket.SOCK_STREAM)
        # Servers bind IPv4 by default, while "localhost" often names the IPv6 address first.
        v4 = [str(address[0]) for family, _, _, _, address in found if family == socket.AF_INET]
        v6 = [f"[{address[0]}]" for family, _, _, _, address in found if family == socket.AF_INET6]
        return [replace(self, host=host) for host in dict.fromkeys(v4 or v6)]

    def refuse_open(self, *, guarded: bool) -> None:
        """Raise ConfigError if a server here could be reached by other machines and nothing guards it."""
        if not (guarded or self.is_loopback):
            expected = "--security.keys (`beast keygen` makes them), or --insecure if no untrusted machine can reach it"
            sentence = f"{self} would be open to every machine that can reach it: expected {expected}"
            raise ConfigError(sentence, path="security.keys", value=str(self), expected=expected)

    def refuse_wildcard(self) -> None:
        """Raise ConfigError if the host is "*", which a server may bind but a client cannot connect to."""
        if self.host == "*":
            sentence = f"cannot connect to {self.socket(0)}: expected a name or address instead of '*'"
            raise ConfigError(sentence, path="endpoint", value=str(self))

    def refuse_if_taken(self, index: int) -> None:
        """Raise ConfigError if the ipc path is a file or has a listener: libzmq would take it over silently."""
        path = Path(f"{self.path}.{index}")
        if not self.path or not path.exists():
            return
        if not path.is_socket():
            raise ConfigError(
                f"{self.socket(index)} is a file or folder, not a socket", path="endpoint", value=str(self)
            )
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0.0)
            if probe.connect_ex(str(path)) in (0, errno.EAGAIN):  # EAGAIN: its backlog is full
                raise ConfigError(
                    f"{self.socket(index)} is in use by another process", path="endpoint", value=str(self)
                )
