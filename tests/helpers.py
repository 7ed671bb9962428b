"""Helpers shared by several test files."""

import itertools
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import time
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from zerobeast.common import plugins
from zerobeast.common.process import threads
from zerobeast.common.service.base import Service
from zerobeast.common.service.loop import Loop
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.layout import RecordSpec

R = TypeVar("R")
ROOT = Path(__file__).parents[1]


@contextmanager
def no_file_longer_than(n_bytes: int) -> Iterator[None]:
    """Let writes fail beyond a length, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def wait_until(probe: Callable[[], R | None], timeout_s: float = 60.0) -> R:
    """Call `probe` until it returns something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while True:
        if found := probe():
            return found
        assert time.monotonic() < deadline, f"{probe} stayed false for {timeout_s} s"
        time.sleep(0.002)


def poll(service: Service, timeout_s: float) -> None:
    """Wait for input at most this long, then take what is there."""
    before = service.clock()
    service.poller.wait(timeout_s)
    service.count_wait(service.clock() - before)
    service.take()


@contextmanager
def in_thread(*services: Service) -> Iterator[None]:
    """Run services of one process meanwhile, which have to end in order once they are stopped."""
    loop = Loop(list(services))
    ended = threads.run_in_thread(loop.run, "loop")
    try:
        yield
    finally:
        loop.stop()
        ended.result(60)  # raises what ended the loop out of order


def python(
    *arguments: str | Path,
    variables: Mapping[str, str] = MappingProxyType({}),
    interpreter: str | Path = sys.executable,
    **options: Any,
) -> subprocess.Popen[str]:
    """Start Python with these arguments and variables and the repository on its path; its output goes to pipes."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([interpreter, *arguments], env=environ, **{**pipes, **options})


def wait_for_end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; returns its exit code, stdout and stderr."""
    with killed_at_last(process):
        out, error = process.communicate()  # if it hangs, the test times out
    return process.returncode, out, error


def running_still(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def killed_at_last(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Leave no process and no pipe behind, whatever fails."""
    with process:
        try:
            yield
        finally:
            process.kill()


def node() -> str:
    """Path of Node.js; skips the test if it or a package that the JavaScript example needs is missing."""
    found = shutil.which("node") or "false"
    probe = [found, "-e", "require('zeromq'); require('@msgpack/msgpack')"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("node, or zeromq and @msgpack/msgpack for it, are not here")
    return found


WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_ports = itertools.count(random.randrange(1000))


def free_port(span: int = 3) -> int:
    """The first of `span` ports, 9 at most, that are free on loopback and that no other test is given meanwhile."""
    while True:
        port = 20_000 + 1_000 * (WORKER % 12) + next(_ports) * 9 % 990
        try:
            for offset in range(span):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        return port


def row_layout(spec: RecordSpec) -> list[list[Any]]:
    """[[name, dtype, shape, offset], ...], of which `layout_id` is the fingerprint, as in docs/protocol.md."""
    places = ((name, *place[:2]) for name, place in (spec.dtype.fields or {}).items())
    return [[name, dtype.base.str, list(dtype.shape), offset] for name, dtype, offset in places]


def as_bits(values: NDArray[Any], dimensions: int) -> NDArray[np.uint8]:
    """[..., *shape] of 0 and 1 as a row of another program may have them, with all spare bits set."""
    flat = values.reshape(*values.shape[: values.ndim - dimensions], -1)
    padded = np.ones((*flat.shape[:-1], -(-flat.shape[-1] // 8) * 8), np.int64)
    padded[..., : flat.shape[-1]] = flat
    packed: NDArray[np.uint8] = (padded.reshape(*flat.shape[:-1], -1, 8) * 2 ** np.arange(8)).sum(-1).astype(np.uint8)
    return packed


def layout_id(spec: RecordSpec) -> int:
    """32-bit fingerprint: peers with the same id lay out rows alike."""
    return zlib.crc32(pack(row_layout(spec)))


def entries_of(package: Path) -> str:
    """The entry points in the pyproject.toml of a package, as `bring` takes them."""
    groups = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]
    return "\n".join(f"[{group}]\n" + "\n".join(map(" = ".join, named.items())) for group, named in groups.items())


@contextmanager
def bring(folder: Path, group: str, entries: Mapping[str, str]) -> Iterator[None]:
    """Install packages in a folder that is searched for modules: their entry points, by `<name>-<version>`."""

    for package, lines in entries.items():
        name, version = package.split("-")
        info = folder / f"{package}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")
    plugins.forget()
    try:
        yield
    finally:
        plugins.forget()
