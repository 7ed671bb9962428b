"""Whether a folder is on a disk that is fit for a memory-mapped file of some size."""

import re
import shutil
from pathlib import Path

from zerobeast.common.errors import StoreError

MOUNTS = Path("/proc/self/mountinfo")
PAGE = 4096  #: bytes that a disk allocates at a time
MEMORY_TYPES = ("tmpfs", "ramfs")
#: file systems on other machines, which may vanish or disagree about a page in the middle of a write
REMOTE_TYPES = (
    "9p",
    "afs",
    "ceph",
    "cifs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.sshfs",
    "lustre",
    "nfs",
    "nfs4",
    "smb3",
)


def check_space(folder: Path, size: int) -> None:
    """Refuse a folder where a file of `size` bytes would not outlive the process, or would not fit.

    Raises:
      StoreError: it is in memory, on another machine, or its disk is too full.
    """
    if why := explain_unfit(folder):
        raise StoreError(f"{folder} {why}, but a replay needs a local disk: name a folder by --learner.store")
    if (room := free_bytes(folder)) < size:
        raise StoreError(
            f"{folder}: the replay takes {format_size(size)}, the disk has {format_size(room)}: lower replay_size"
        )


def explain_unfit(folder: Path) -> str:
    """Why no replay may be in a folder, of which nothing need exist yet; empty if one may."""
    kind = file_system(folder)
    where = "is in memory" if kind in MEMORY_TYPES else "is on another machine" if kind in REMOTE_TYPES else ""
    return where and f"{where} ({kind})"


def file_system(folder: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system that a folder is on, as the kernel names it; "" if there is no mount table."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    path, found = folder.resolve(), (0, "")
    for line in lines:
        mount, kind = line.split()[4], line.partition(" - ")[2].split()[0]
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), mount))
        if path.is_relative_to(point) and len(point.parts) >= found[0]:  # at one point, the last mount hides the rest
            found = len(point.parts), kind
    return found[1]


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written to the disk of a folder."""
    return shutil.disk_usage(folder).free


def round_to_pages(size: int) -> int:
    """Bytes of the whole pages that `size` bytes take."""
    return -(-size // PAGE) * PAGE


def format_size(size: int) -> str:
    """A number of bytes in readable form."""
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"
