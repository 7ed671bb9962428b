"""The health pages of a real service, also under hostile clients, and the commands that read them."""

import http.client
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.build.planes import run_env_server
from tests.helpers import free_port, python, wait_for_end, wait_until
from zerobeast.cli.main import main
from zerobeast.common.errors import ConfigError
from zerobeast.common.health.command import main as probe
from zerobeast.common.health.pages import fetch_page
from zerobeast.common.process.roles import SERVICES_BY_PROCESS
from zerobeast.common.service.base import Service
from zerobeast.common.service.health_server import MAX_OPEN, STUCK_S, HealthServer
from zerobeast.common.service.loop import Loop
from zerobeast.common.settings.run import HealthConfig

ANYWHERE = HealthConfig()
PATHS = ("/livez", "/readyz", "/healthz", "/metrics")


class Worker(Service):
    """Does one piece of work per turn, unless it is told to hang or to turn without working."""

    role = "broker"
    work = ("rows",)

    def __init__(self, **page: object) -> None:
        super().__init__()
        self.rows, self.said, self.has_work = 0, page, True
        self.stall, self.hang, self.hung, self.resume = (threading.Event() for _ in range(4))

    def open(self) -> None:
        pass

    def deadline(self) -> float:
        return self.clock() + 0.01

    def take(self) -> None:
        self.rows += not self.stall.is_set()
        if self.hang.is_set():
            self.hung.set()
            self.resume.wait()

    def report(self) -> dict[str, object]:
        return {"rows": self.rows, "refused_by_reason": {"kind": 2}, **self.said}

    def idle(self) -> bool:
        return not self.has_work


@contextmanager
def served(settings: HealthConfig = ANYWHERE, **page: object) -> Iterator[tuple[Worker, str]]:
    worker = Worker(**page)
    thread = threading.Thread(target=Loop([worker]).run)
    with HealthServer(worker, settings) as health:
        thread.start()
        try:
            wait_until(lambda: worker.page.get("state") == "ready" or worker.page.get("rows"))
            yield worker, f"127.0.0.1:{health.port}"
        finally:
            worker.stop()
            worker.resume.set()
            thread.join(timeout=60)


def get(address: str, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


@pytest.mark.parametrize("host", ["[::1]", "::", "0.0.0.0"])
def test_pages_are_served_on_addresses_of_ipv6_too(host: str) -> None:
    with served(HealthConfig(host=host)) as (_, address):
        port = address.rpartition(":")[2]
        asked = {"[::1]": ["::1"], "::": ["[::1]", "127.0.0.1"], "0.0.0.0": ["127.0.0.1"]}[host]
        assert all(fetch_page(f"{each}:{port}") for each in [*asked, host])
    with pytest.raises(ConfigError):
        HealthServer(Worker(), HealthConfig(host=".."))


def test_a_service_answers_about_its_own_loop() -> None:
    with served(note="x" * (8 << 20)) as (_, address):
        wait_until(lambda: get(address, "/readyz")[0] == 200)
        assert [get(address, path)[0] for path in (*PATHS, "/livez?verbose", "/other")] == [200] * 5 + [404]
        page = json.loads(get(address, "/healthz")[1])
        assert {"role", "state", "host", "pid", "uptime_s", "cpu_s", "progress_age_s"} <= page.keys()
        assert page["memory_bytes"] > 1 << 20
        assert len(page["note"]) == 8 << 20, "larger than what a socket holds"
        families = {family.name: family for family in text_string_to_metric_families(get(address, "/metrics")[1])}
        assert families["zerobeast_rows"].type == "counter"
        assert families["zerobeast_rows"].samples[0].value > 0
        labels = families["zerobeast_refused_by_reason"].samples[0].labels
        assert labels == {"role": "broker", "run": "", "reason": "kind"}
        assert all(family.documentation for family in families.values())


def test_a_loop_that_hangs_is_reported_although_its_page_is_served() -> None:
    with served() as (worker, address):
        worker.hang.set()
        assert worker.hung.wait(60)
        clock, worker.clock = worker.clock, lambda: clock() + STUCK_S + 1
        wait_until(lambda: get(address, "/livez")[0] == 503)
        assert get(address, "/readyz")[0] == 503
        assert get(address, "/healthz")[0] == 200
        assert 'zerobeast_live{role="broker",run=""} 0.0' in get(address, "/metrics")[1]
        assert main(["health", "--endpoint", address]) == 1
        worker.note_progress()
        assert get(address, "/livez")[0] == 200, "a turn that takes long and makes progress"


def test_a_service_that_can_admit_no_client_any_more_is_not_alive() -> None:
    with served() as (worker, address):
        wait_until(lambda: get(address, "/livez")[0] == 200)
        worker.contexts.append(SimpleNamespace(sound=False))  # type: ignore[arg-type]
        assert get(address, "/livez")[0] == 503


def test_a_service_that_does_nothing_is_ready_for_probes_and_stalled_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(HealthConfig(stall_after_s=1.0)) as (worker, address):
        wait_until(lambda: main(["health", "broker", "--endpoint", address]) == 0)
        worker.stall.set()
        wait_until(lambda: 'zerobeast_stalled{role="broker",run=""} 1.0' in get(address, "/metrics")[1])
        assert [get(address, path)[0] for path in PATHS] == [200] * 4
        assert probe("broker", ["--endpoint", address], {}) == 0
        code, _, lines = shown(capsys, "--endpoint", address)
        assert (code, "  stalled  " in "".join(lines)) == (1, True)
        assert "no verdict" not in shown(capsys, "--endpoint", address, "--endpoint", "127.0.0.1:1")[1]
        worker.has_work = False
        wait_until(lambda: main(["health", "--endpoint", address]) == 0)


def shown(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str, list[str]]:
    """The exit code of `beast health`, the kind of its verdict, and the lines before that."""
    capsys.readouterr()
    code = main(["health", *map(str, argv)])
    lines = capsys.readouterr().out.splitlines() or [""]
    return code, lines[-1].partition(":")[0], lines


OK = b"HTTP/1.1 200 OK\r\n\r\n"


@contextmanager
def answering(*parts: bytes) -> Iterator[str]:
    """The address of a server that answers a request with these parts, one every hundredth of a second."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer, suppress(OSError):  # once nobody waits
                peer.recv(1000)
                for part in parts:
                    peer.sendall(part)
                    time.sleep(0.01)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for() -> None:
    with answering(OK[:-2], b"X: ", *[b"x"] * 500, b"\r\n\r\n{}") as address:
        assert fetch_page(address, 0.2) is None


@pytest.mark.parametrize("answer", [OK + b"[1]", OK + b"{", OK + b"[" * 500_000])
def test_a_server_of_another_kind_at_the_address_is_no_page(answer: bytes) -> None:
    with answering(answer) as address:
        assert fetch_page(address) is None


def test_the_command_in_a_container_reports_healthy_unhealthy_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    with run_env_server(f"tcp://127.0.0.1:{free_port()}") as server, HealthServer(server, HealthConfig()) as page:
        here = {"BEAST_HEALTH__HOST": "0.0.0.0", "BEAST_HEALTH__PORT": str(page.port)}
        wait_until(lambda: server.page.get("state") == "ready")
        process = python("-m", "zerobeast.services.envserver", "health", "--json", variables=here)  # as a container
        code, out, error = wait_for_end(process)
        assert (code, error, json.loads(out)["services"][0]["page"]["role"]) == (0, "", "envserver")
    assert probe("envserver", [], here) == 2
    with served() as (_, address):
        capsys.readouterr()
        assert probe("envserver", ["--endpoint", address], {}) == 2
        assert "has role broker" in capsys.readouterr().out


def test_a_worker_is_ready_once_all_its_services_are(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        first = free_port()
        here = {"BEAST_HEALTH__HOST": "127.0.0.1", "BEAST_HEALTH__PORT": str(first)}
        assert probe("worker", [], here) == 2
        for number, role in enumerate(SERVICES_BY_PROCESS["worker"]):
            assert probe("worker", [], here) != 0
            stack.enter_context(served(HealthConfig(port=first + number), role=role))
            wait_until(lambda port=first + number: get(f"127.0.0.1:{port}", "/readyz")[0] == 200)
        capsys.readouterr()
        assert probe("worker", ["--json"], here) == 0
        services = json.loads(capsys.readouterr().out)["services"]
        assert [each["role"] for each in services] == list(SERVICES_BY_PROCESS["worker"])
        assert probe("worker", ["--endpoint", f"127.0.0.1:{first + 1}"], {}) == 0


def test_beast_health_reads_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    look, services = ("--run", "x", "--root", tmp_path), tmp_path / "x" / "services"
    services.mkdir(parents=True)
    assert shown(capsys, *look)[0] == 2, "nothing has announced itself"
    with served() as (_, address):
        for name, health in (("broker-0", address), ("actor-1", f"127.0.0.1:{free_port()}")):
            (services / f"{name}.json").write_text(json.dumps({"health": health, "pid": os.getpid()}))
        code, kind, lines = shown(capsys, *look[2:])
        assert (code, kind) == (1, "unhealthy")
        assert [" ".join(line.split()[:4]) for line in lines[1:3]] == ["actor 1 no answer", "broker 0 ready 0:00:00"]
        code = main(["health", "broker", *map(str, look[2:]), "--json"])
        assert (code, [each["name"] for each in json.loads(capsys.readouterr().out)["services"]]) == (0, ["broker 0"])
        away = {"host": "node7.invalid", "state": "finished", "sentence": "all 30 agent steps are done", "code": 0}
        (services / "learner-0.json").write_text(json.dumps(away))
        assert shown(capsys, *look, "--remote")[:2] == (0, "finished"), "by its own account, as it cannot be asked"
    (services / "learner-0.json").unlink()
    assert shown(capsys, *look)[0] == 2


def visit(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20.0)


def test_requests_that_never_end_hold_no_threads_and_keep_the_page_from_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with served() as (_, address), ExitStack() as stack:
        before = threading.active_count()
        for number in range(3 * MAX_OPEN):
            visitor = stack.enter_context(visit(address))
            visitor.sendall(b"GET /healthz HTTP/1.0\r\nx: " + b"y" * number)
            if number % 2:
                visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                visitor.close()  # hangs up
        assert fetch_page(address, 20.0)
        assert threading.active_count() == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_probe_is_answered_although_many_that_ask_for_nothing_come_after_it() -> None:
    with served() as (_, address), ExitStack() as stack:
        probes = [stack.enter_context(visit(address)) for _ in range(5)]
        for _ in range(MAX_OPEN - 5):
            stack.enter_context(visit(address)).sendall(b"GET /")
        for probe in probes:
            probe.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert [probe.recv(100)[:12] for probe in probes] == [b"HTTP/1.0 200"] * 5
