"""Addresses of planes. A service has one endpoint; the sockets of its planes sit beside it, one step apart.

tcp://learner:5560      -> tcp://learner:5560,  :5561,  :5562 ...
ipc:///run/x/learner    -> /run/x/learner.0, .1, .2 ...
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from common.errors import ConfigError, PeerLost

MAX_IPC_PATH = 100  # the kernel allows 107 bytes, and ".0" is added
_TCP = re.compile(r"tcp://(\*|\[[0-9a-fA-F:.%]+\]|[A-Za-z0-9._-]+):(\d{1,5})")


@dataclass(frozen=True)
class Endpoint:
    """A parsed endpoint: either host and port, or path."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "tcp://host:port" or "ipc://path".

        Raises:
          ConfigError: it is neither.
        """
        if text.startswith("ipc://") and len(text) > len("ipc://"):
            path = text.removeprefix("ipc://")
            if len(path) > MAX_IPC_PATH:
                raise ConfigError(f"endpoint {text!r}: a socket path has at most {MAX_IPC_PATH} bytes, not {len(path)}")
            return cls(path=path)
        match = _TCP.fullmatch(text)
        if not match or not 0 < int(match[2]) <= 65_530:
            raise ConfigError(f"endpoint {text!r}: expected tcp://host:port (port 1 to 65530) or ipc://path")
        return cls(host=match[1], port=int(match[2]))

    def socket(self, index: int) -> str:
        """The address of the service's index-th socket, as libzmq wants it."""
        return f"ipc://{self.path}.{index}" if self.path else f"tcp://{self.host}:{self.port + index}"

    def resolved(self) -> Endpoint:
        """The same with the name looked up once, so that all sockets of a client reach one server.

        Raises:
          PeerLost: the name does not resolve now.
        """
        if self.path or self.host == "*":
            return self
        try:
            found = socket.getaddrinfo(self.host.strip("[]"), self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise PeerLost(f"cannot resolve {self.host!r}: {error.strerror or error}") from error
        family, address = found[0][0], str(found[0][4][0])
        return replace(self, host=f"[{address}]" if family == socket.AF_INET6 else address)

    def refuse_if_taken(self, index: int) -> None:
        """Raise ConfigError where another process listens on an ipc path: libzmq would take it over in silence."""
        path = Path(f"{self.path}.{index}")
        if not self.path or not path.exists():
            return
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise ConfigError(f"{self.socket(index)} is in use by another process")
