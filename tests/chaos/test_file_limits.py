"""Processes that may open few files, and peers that open hundreds of connections to them."""

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import zmq

from tests.chaos.conftest import Note
from tests.chaos.runs import TO_SEE_S
from tests.helpers import ROOT, free_port, killed_at_last, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.health.pages import fetch_announced_page
from zerobeast.common.process.usage import MIN_FILES, allow_files
from zerobeast.common.transport import ClientPort, Context, random_id
from zerobeast.common.wire.messages import Plane

MOST = MIN_FILES  #: files that the server may have open
CARTPOLE = {"id": "CartPole-v1"}
CLIENTS = 150  #: with two connections each


def limited(most: int, command: list[str]) -> list[str]:
    """The command, under a limit on open files."""
    return ["sh", "-c", f'ulimit -Sn {most} && ulimit -Hn {most} && exec "$@"', "sh", *command]


def steps(client: EnvClient) -> None:
    for _ in range(200):
        assert len(client.step([0] * client.num_envs)[0]) == client.num_envs


def test_a_server_without_files_left_serves_those_it_has_and_takes_others_when_there_is_room(
    tmp_path: Path, context: Context, note: Note
) -> None:
    allow_files()
    endpoint, status, log = f"tcp://127.0.0.1:{free_port(3)}", tmp_path / "status.json", tmp_path / "log"
    flags = ["--envserver.endpoint", endpoint, "--status-file", str(status)]
    command = limited(MOST, [sys.executable, "-m", "zerobeast.services.envserver", *flags])

    def page() -> dict[str, Any]:
        return fetch_announced_page(status, 5.0, remote=False) or {}

    with ExitStack() as stack, log.open("ab") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(ROOT)})
        stack.enter_context(killed_at_last(server))
        wait_until(lambda: "max_files" in page(), TO_SEE_S)  # the first page lacks what is measured
        client = stack.enter_context(EnvClient(context, endpoint, CARTPOLE, 2, seed=0))
        client.reset()
        with ExitStack() as crowd:
            for _ in range(CLIENTS):
                crowd.callback(ClientPort(context, Plane.STEPS, endpoint, random_id()).close)
            wait_until(lambda: f"of {MOST} files are open" in log.read_text(), TO_SEE_S)
            steps(client)
            assert server.poll() is None, log.read_text()
        since = time.monotonic()
        found = wait_until(lambda: (now := page()).get("open_files", MOST) < MOST // 2 and now, TO_SEE_S)
        assert found["max_files"] == MOST
        another = stack.enter_context(EnvClient(context, endpoint, CARTPOLE, 2, seed=0))
        another.reset()
        note("other connections use up all files of a server", since)
        for each in (another, client):
            steps(each)


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
