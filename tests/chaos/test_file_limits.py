"""Processes that may open few files, and peers that open hundreds of connections to them."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.chaos.conftest import Note
from tests.chaos.runs import ROOT, TO_SEE_S
from tests.helpers import free_port, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.health.pages import announced_page
from zerobeast.common.process.usage import LEAST, allow_files
from zerobeast.common.transport import ClientPort, Context, random_id
from zerobeast.common.wire.messages import Plane

MOST = LEAST  #: files that the server may have open
CARTPOLE = {"id": "CartPole-v1"}
CLIENTS = 150  #: with two connections each


def limited(most: int, command: list[str]) -> list[str]:
    """The command, under a limit on open files."""
    return ["sh", "-c", f'ulimit -Sn {most} && ulimit -Hn {most} && exec "$@"', "sh", *command]


class Server:
    """An env-server that may open few files."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port(3)
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.status, self.log = folder / "status.json", folder / "log"
        command = [sys.executable, "-m", "zerobeast.services.envserver", "--envserver.endpoint", self.endpoint]
        command += ["--status-file", str(self.status)]
        with self.log.open("ab") as log:
            environ = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.process = subprocess.Popen(limited(MOST, command), stdout=log, stderr=log, env=environ)

    def page(self) -> dict[str, Any]:
        """The health page, empty while there is no answer."""
        assert self.process.poll() is None, self.log.read_text()
        return announced_page(self.status, 5.0, remote=False) or {}


@contextmanager
def server_in(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        wait_until(lambda: "max_files" in server.page(), TO_SEE_S)  # the first page lacks what is measured
        yield server
    finally:
        server.process.terminate()
        assert server.process.wait(TO_SEE_S) == 0, server.log.read_text()


@contextmanager
def strangers(port: int, many: int) -> Iterator[None]:
    """Silent connections to both sockets of a server."""
    with ExitStack() as connections:
        for number in range(many):
            address = ("127.0.0.1", port + number % 2)
            connections.enter_context(socket.create_connection(address, timeout=TO_SEE_S))
        yield


def steps(client: EnvClient) -> None:
    for _ in range(200):
        assert len(client.step([0] * client.num_envs)[0]) == client.num_envs


@pytest.mark.parametrize("peers", ["strangers", "clients"])
def test_a_server_without_files_left_serves_those_it_has_and_takes_others_when_there_is_room(
    tmp_path: Path, context: Context, peers: str, note: Note
) -> None:
    allow_files()
    with server_in(tmp_path) as server, EnvClient(context, server.endpoint, CARTPOLE, 2, seed=0) as client:
        client.reset()
        with ExitStack() as crowd:
            for _ in range(CLIENTS):
                if peers == "strangers":
                    crowd.enter_context(strangers(server.port, 2))
                else:
                    port = ClientPort(context, Plane.STEPS, server.endpoint, random_id())
                    crowd.callback(port.close)
            wait_until(lambda: f"of {MOST} files are open" in server.log.read_text(), TO_SEE_S)
            steps(client)
            assert server.process.poll() is None, server.log.read_text()
        since = time.monotonic()
        page = wait_until(lambda: (page := server.page()).get("open_files", MOST) < MOST // 2 and page, TO_SEE_S)
        assert page["max_files"] == MOST
        with EnvClient(context, server.endpoint, CARTPOLE, 2, seed=0) as another:
            another.reset()
            note("other connections use up all files of a server", since)
            steps(another)
        steps(client)


ENDLESS = """
from zerobeast.common.errors import BeastError
from zerobeast.common.wire.messages import Plane
from zerobeast.common.transport import ClientPort, Context
context, ports = Context(), []
try:
    while True:
        ports.append(ClientPort(context, Plane.STEPS, "tcp://127.0.0.1:1", 1))
except BeastError as error:
    print(len(ports), error)
for port in ports:
    port.close()
context.term()
"""


def test_a_client_that_runs_out_of_files_gets_a_sentence() -> None:
    command = limited(100, [sys.executable, "-c", ENDLESS])
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TO_SEE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    found = re.search(r"no more sockets: (\d+) of 100 files are open: raise `ulimit -n`", ended.stdout)
    assert found, ended.stdout
    assert 50 <= int(found[1]) <= 100, "all but connections that were refused at this moment, and a port needs several"


def test_a_context_has_room_for_more_sockets_than_libzmq_allows_by_default(context: Context) -> None:
    allow_files()
    sockets = [context.socket(zmq.PUSH) for _ in range(1500)]
    assert len(sockets) > 1023
    for each in sockets:
        each.close()
