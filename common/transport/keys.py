"""Keys for encrypted tcp: certificates in the files that pyzmq's `zmq.auth` reads and writes.

    keys/public/actor.key            public: a server admits exactly the keys in this folder, each role on its planes
    keys/public/actor-2.key          another certificate of the role: <role>-<anything>
    keys/secret/actor.key_secret     secret: held by its own process alone

A client needs its own secret file and the public ones of its servers, a server its own secret file and the public
ones of its clients. Clients may each have a certificate; the servers of a role share one, since a client needs their
key before one of them answers. Sockets at an ipc path are not encrypted: the path's permissions
guard them.
"""

import errno
import logging
import os
import stat
import struct
from fnmatch import fnmatchcase
from itertools import chain, count
from pathlib import Path

import zmq.auth
from zmq.utils import z85

from zerobeast.common.errors import ConfigError
from zerobeast.common.files.atomic import explain_os_errors, sync
from zerobeast.common.process.roles import RECORDS
from zerobeast.common.wire.messages import Plane

log = logging.getLogger(__name__)

#: who serves each plane
SERVERS = {Plane[plane.upper()]: name for name, role in RECORDS.items() for plane in role.binds}
#: who connects to it there
CLIENTS = {plane: [name for name, role in RECORDS.items() if plane.name.lower() in role.connects] for plane in SERVERS}
PUBLIC, SECRET = "public", "secret"
#: errors of a process or a disk in trouble, not of a file
PASSING_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT)


class Keys:
    """The keys of one process, and those of the others as the folder has them.

    Args:
      folder: contains `public` and, unless the argument `secret` names a file, `secret`.
      role: of this process.
      secret: its own secret file; empty for <folder>/secret/<role>.key_secret.

    Raises:
      ConfigError: a file is missing, unreadable or not a certificate, or others can read the secret.
    """

    def __init__(self, folder: str, role: str, secret: str = "") -> None:
        path = Path(folder).expanduser().absolute()  # it is read again, wherever the process is then
        self.folder = path / PUBLIC
        own = Path(secret).expanduser() if secret else path / SECRET / f"{role}.key_secret"
        self.public, hidden = _certificate(own)
        if hidden is None:
            raise ConfigError(f"security.keys: {own} holds no secret key")
        _refuse_open(own)
        self.secret = hidden
        self._servers = {plane: self._server(plane) for plane, clients in CLIENTS.items() if role in clients}
        self._unreadable: set[Path] = set()

    def server(self, plane: Plane) -> bytes:
        """The public key of a plane's server, read from its file again, since the server may have a new key."""
        try:
            self._servers[plane] = self._server(plane)
        except ConfigError as error:
            log.warning("%s; the key that was there before is tried", error)
        return self._servers[plane]

    def clients(self, plane: Plane) -> frozenset[bytes]:
        """The public keys admitted on a plane, as the folder has them now. Unusable files are skipped.

        Raises:
          OSError: this process or the disk cannot read now; the keys may be valid.
        """
        found = set()
        for file in (file for role in CLIENTS[plane] for file in _of_role(self.folder, role)):
            try:
                found.add(_certificate(file)[0])
            except ConfigError as error:
                if isinstance(error.__cause__, OSError) and error.__cause__.errno in PASSING_ERRNOS:
                    raise error.__cause__ from None
                if file not in self._unreadable:
                    log.warning("%s; no client is admitted with it", error)
                self._unreadable.add(file)
        return frozenset(found)

    def _server(self, plane: Plane) -> bytes:
        return _certificate(self.folder / f"{SERVERS[plane]}.key")[0]


def make_keys(folder: Path) -> list[Path]:
    """Write a certificate for every role into an empty or new folder; returns the files.

    Raises:
      ConfigError: it holds keys already, or cannot be written.
    """
    if any(folder.rglob("*.key*")):
        raise ConfigError(f"{folder} holds keys already: name a role to add a key for it, or give another folder")
    return [file for name, role in RECORDS.items() if role.binds or role.connects for file in _make(folder, name)]


def add_key(folder: Path, role: str) -> list[Path]:
    """Write a certificate of a role, its first one or <role>-2 or the next free name; returns the files.

    Raises:
      ConfigError: the folder holds none yet, or cannot be written.
    """
    if not any((folder / PUBLIC).glob("*.key")):
        raise ConfigError(f"{folder} holds no {PUBLIC}/*.key yet: make the first keys without naming a role")
    names = chain([role], (f"{role}-{number}" for number in count(2)))
    return _make(folder, next(name for name in names if not any(path.exists() for path in _files(folder, name))))


def _of_role(public: Path, role: str) -> list[Path]:
    try:
        names = os.listdir(public)  # unlike `glob` of Python 3.13, it raises what went wrong
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return [public / name for name in names if fnmatchcase(name, f"{role}.key") or fnmatchcase(name, f"{role}-*.key")]


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / PUBLIC / f"{name}.key", folder / SECRET / f"{name}.key_secret"


def _make(folder: Path, name: str) -> list[Path]:
    public, secret = _files(folder, name)
    with explain_os_errors(f"{folder}: keys cannot be written"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        public.parent.mkdir(exist_ok=True)
        secret.parent.mkdir(mode=0o700, exist_ok=True)
        made, _ = zmq.auth.create_certificates(secret.parent, name)
        secret.chmod(0o600)
        sync(Path(made))
        sync(secret)
        Path(made).replace(public)  # atomic: servers may be reading the folder
    return [public, secret]


def _certificate(file: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(file)
        if any(len(z85.decode(key)) != 32 for key in (public, secret) if key is not None):
            raise ValueError("a key of another length")
    except (OSError, ValueError, LookupError, struct.error) as error:  # LookupError: a character that Z85 does not have
        why = error.strerror if isinstance(error, OSError) else ""
        expected = "missing, or not a certificate with keys of 40 Z85 characters"
        raise ConfigError(f"security.keys: {file} cannot be read: {why or expected}") from error
    return public, secret


def _refuse_open(file: Path) -> None:
    """Raise ConfigError if others may use a secret file.

    A secret mounted by Kubernetes belongs to root and is readable through the service's group, so a group may read a
    file that this user does not own. A file that the user does own can be closed to the group.
    """
    status = file.stat()  # follows links: mounted secrets are links
    others = 0o077 if status.st_uid == os.geteuid() else 0o037
    if status.st_mode & others:
        mode = stat.S_IMODE(status.st_mode)
        expected = "expected 600, or 440 if it is mounted"
        raise ConfigError(f"security.keys: {file} has mode {mode:o} and is not secret: {expected}")
