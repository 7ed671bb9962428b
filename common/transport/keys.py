"""Keys for encrypted tcp: one certificate for each role, in the files that pyzmq's `zmq.auth` reads and writes.

    keys/learner.key          public: everybody who talks to a learner needs it, and servers admit only keys they have
    keys/learner.key_secret   secret: the learner's own

A process needs its own secret file and the public ones of the others. Sockets at an ipc path are not encrypted: the
path's permissions guard them.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import zmq.auth

from common.errors import ConfigError
from common.messages import Plane

ROLES = ("envserver", "actor", "broker", "learner")
#: who serves each plane
SERVERS = {
    Plane.STEPS: "envserver",
    Plane.INFERENCE: "broker",
    Plane.ROLLOUTS: "learner",
    Plane.WEIGHTS: "learner",
}


@dataclass(frozen=True)
class Keys:
    """What one process holds.

    Attributes:
      folder: of all public keys; a server admits clients with these and no others.
      public: of this process.
      secret: of this process.
      servers: public keys by plane.
    """

    folder: Path
    public: bytes
    secret: bytes
    servers: dict[Plane, bytes]


def load_keys(folder: str, role: str) -> Keys | None:
    """The keys of a role, or None where `folder` is empty: no encryption.

    Raises:
      ConfigError: a file is missing, unreadable, no certificate, or secret and open to everybody.
    """
    if not folder:
        return None
    path = Path(folder).expanduser()
    own = path / f"{role}.key_secret"
    public, secret = _certificate(own)
    if secret is None:
        raise ConfigError(f"security.keys: {own} holds no secret key")
    if own.stat().st_mode & stat.S_IROTH:
        raise ConfigError(f"security.keys: {own} can be read by everybody: chmod o-rwx {own}")
    servers = {plane: _certificate(path / f"{server}.key")[0] for plane, server in SERVERS.items()}
    return Keys(path, public, secret, servers)


def make_keys(folder: Path) -> list[Path]:
    """Write a new certificate for every role into an empty or new folder; returns the files.

    Raises:
      ConfigError: it holds keys already, or cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.glob("*.key*")):
            raise ConfigError(f"{folder} holds keys already: give another folder, or move them away")
        for role in ROLES:
            _, secret = zmq.auth.create_certificates(folder, role)
            Path(secret).chmod(0o600)
    except OSError as error:
        raise ConfigError(f"{folder}: keys cannot be written: {error.strerror or error}") from error
    return sorted(folder.glob("*.key*"))


def _certificate(file: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not there, or no certificate"
        raise ConfigError(f"security.keys: {file} cannot be read: {reason}") from error
    if any(key is not None and len(key) != 40 for key in (public, secret)):
        raise ConfigError(f"security.keys: {file} cannot be read: a key has 40 characters")
    return public, secret
