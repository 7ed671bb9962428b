"""The health pages of a real service, and the commands that read them."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers import finished, free_port, python, wait_until
from tests.integration.envservers import running
from zerobeast.cli.main import main
from zerobeast.common.errors import ConfigError
from zerobeast.common.health.command import main as probe
from zerobeast.common.health.pages import fetch_page
from zerobeast.common.process.roles import HOSTED, ROLES
from zerobeast.common.service.base import Service
from zerobeast.common.service.health_server import STUCK_S, HealthServer
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
        self.rows = 0
        self.said = page
        self.stall = threading.Event()
        self.has_work = True
        self.hang, self.hung = threading.Event(), threading.Event()
        self.resume = threading.Event()

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


@pytest.mark.parametrize("host", ["..", "x" * 70])
def test_an_impossible_host_is_refused_in_a_sentence(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen there"):
        HealthServer(Worker(), HealthConfig(host=host))


@pytest.mark.parametrize(
    ("host", "asked"), [("::1", ["::1"]), ("[::1]", ["::1"]), ("::", ["::1", "127.0.0.1"]), ("0.0.0.0", ["127.0.0.1"])]
)
def test_pages_are_served_on_addresses_of_ipv6_too(host: str, asked: list[str]) -> None:
    settings = HealthConfig(host=host)
    with served(settings) as (_, address):
        port = address.rpartition(":")[2]
        assert all(fetch_page(f"{each}:{port}") for each in [*asked, f"[{asked[0]}]", host])


def test_a_service_answers_about_its_own_loop() -> None:
    with served() as (_, address):
        wait_until(lambda: get(address, "/readyz")[0] == 200)
        assert [get(address, path)[0] for path in PATHS] == [200] * 4
        assert get(address, "/livez?verbose")[0] == 200
        assert get(address, "/other")[0] == 404
        page = json.loads(get(address, "/healthz")[1])
        assert {"role", "state", "host", "pid", "uptime_s", "memory_bytes", "cpu_s", "progress_age_s"} <= page.keys()
        assert page["memory_bytes"] > 1 << 20
        assert page["progress_age_s"] < 2


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
        worker.progressed()
        assert get(address, "/livez")[0] == 200, "a turn that takes long and makes progress"


def test_a_service_that_can_admit_no_client_any_more_is_not_alive() -> None:
    with served() as (worker, address):
        wait_until(lambda: get(address, "/livez")[0] == 200)
        worker.contexts.append(SimpleNamespace(sound=False))  # type: ignore[arg-type]
        assert get(address, "/livez")[0] == 503


def test_a_service_that_gets_nothing_done_is_ready_for_probes_and_stalled_for_people(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(HealthConfig(stall_after_s=1.0)) as (worker, address):
        wait_until(lambda: main(["health", "broker", "--endpoint", address]) == 0)
        worker.stall.set()
        wait_until(lambda: 'zerobeast_stalled{role="broker",run=""} 1.0' in get(address, "/metrics")[1])
        assert [get(address, path)[0] for path in PATHS] == [200] * 4
        assert probe("broker", ["--endpoint", address], {}) == 0
        capsys.readouterr()
        assert main(["health", "--endpoint", address]) == 1
        assert "  stalled  " in capsys.readouterr().out
        worker.has_work = False
        wait_until(lambda: main(["health", "--endpoint", address]) == 0)


def test_pages_given_as_endpoints_get_the_verdict_of_their_run(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        pages = {"learner": {"waiting_fraction": 0.0, "agent_steps_per_s": 9.0, "update_ms": 5.0}}
        flags: list[str] = []
        for role in ROLES:
            _, address = stack.enter_context(served(role=role, cores=[], cpu_pressure=0.0, **pages.get(role, {})))
            wait_until(lambda address=address: get(address, "/readyz")[0] == 200)
            flags += ["--endpoint", address]
        assert main(["health", *flags]) == 0
        assert capsys.readouterr().out.splitlines()[-1].startswith("training-bound: the learner never waits")
        assert main(["health", *flags[:-1], f"127.0.0.1:{free_port()}"]) == 1
        assert capsys.readouterr().out.splitlines()[-1] == "not training: no actor answers"
        assert main(["health", *flags[:-2]]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "no verdict on the run: it takes an --endpoint of actor too"


def test_prometheus_can_read_the_metrics() -> None:
    with served() as (_, address):
        families = {family.name: family for family in text_string_to_metric_families(get(address, "/metrics")[1])}
        assert families["zerobeast_rows"].type == "counter"
        assert families["zerobeast_rows"].samples[0].value > 0
        labels = families["zerobeast_refused_by_reason"].samples[0].labels
        assert labels == {"role": "broker", "run": "", "reason": "kind"}
        assert all(family.documentation for family in families.values())


OK = b"HTTP/1.1 200 OK\r\n\r\n"


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer, suppress(OSError):  # once nobody waits
                peer.recv(1000)
                for byte in (OK[:-2] + b"X: " + b"x" * 500).decode():
                    peer.sendall(byte.encode())
                    time.sleep(0.01)
                peer.sendall(b"\r\n\r\n{}")

        threading.Thread(target=serve, daemon=True).start()
        assert fetch_page(f"127.0.0.1:{server.getsockname()[1]}", 0.2) is None


@pytest.mark.parametrize("answer", [b"", OK + b"[1]", OK + b"{", OK + b"[" * 500_000, b"\0" * 100])
def test_a_server_of_another_kind_at_the_address_is_no_page(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        assert fetch_page(f"127.0.0.1:{server.getsockname()[1]}") is None
    assert fetch_page("nowhere") is None


def test_the_command_of_a_container_reports_healthy_unhealthy_or_unreachable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running(f"tcp://127.0.0.1:{free_port()}") as server, HealthServer(server, HealthConfig()) as page:
        here = {"BEAST_HEALTH__HOST": "0.0.0.0", "BEAST_HEALTH__PORT": str(page.port)}
        wait_until(lambda: server.page.get("state") == "ready")
        process = python("-m", "zerobeast.services.envserver", "health", variables=here)  # as a container runs it
        code, out, error = finished(process)
        assert (code, error) == (0, "")
        assert "envserver  ready" in out
        assert probe("envserver", ["--json"], here) == 0
        assert json.loads(capsys.readouterr().out)["services"][0]["page"]["role"] == "envserver"
    assert probe("envserver", [], {"BEAST_HEALTH__PORT": str(free_port())}) == 2
    with served() as (_, address):
        capsys.readouterr()
        assert probe("envserver", ["--endpoint", address], {}) == 2
        assert "has role broker" in capsys.readouterr().out


def test_a_worker_is_ready_once_all_its_services_are(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        first = free_port()
        here = {"BEAST_HEALTH__HOST": "127.0.0.1", "BEAST_HEALTH__PORT": str(first)}
        assert probe("worker", [], here) == 2
        for number, role in enumerate(HOSTED["worker"]):
            assert probe("worker", [], here) != 0
            stack.enter_context(served(HealthConfig(port=first + number), role=role))
            wait_until(lambda port=first + number: get(f"127.0.0.1:{port}", "/readyz")[0] == 200)
        capsys.readouterr()
        assert probe("worker", ["--json"], here) == 0
        assert [each["role"] for each in json.loads(capsys.readouterr().out)["services"]] == list(HOSTED["worker"])
        assert probe("worker", ["--endpoint", f"127.0.0.1:{first + 1}"], {}) == 0


def test_beast_health_reads_a_run_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    services = tmp_path / "x" / "services"
    services.mkdir(parents=True)
    assert main(["health", "--run", "x", "--root", str(tmp_path)]) == 2
    assert "no service has announced itself" in capsys.readouterr().err
    with served() as (_, address):
        (services / "broker-0.json").write_text(json.dumps({"health": address}))
        (services / "actor-1.json").write_text(json.dumps({"health": f"127.0.0.1:{free_port()}"}))
        assert main(["health", "--root", str(tmp_path)]) == 1
        out = capsys.readouterr().out
        assert "broker 0" in out
        assert "actor 1   no answer" in out
        assert out.splitlines()[-1] == "not training: no learner and no envserver and no actor answers"
        assert main(["health", "broker", "--root", str(tmp_path), "--json"]) == 0
        assert [entry["name"] for entry in json.loads(capsys.readouterr().out)["services"]] == ["broker 0"]
        assert main(["health", "broker", "--endpoint", address]) == 0
    assert main(["health", "--run", "x", "--root", str(tmp_path)]) == 2


def test_services_on_other_machines_are_asked_there_and_else_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    services, logs = tmp_path / "x" / "services", tmp_path / "x" / "logs"
    services.mkdir(parents=True)
    logs.mkdir()
    look = ["health", "--run", "x", "--root", str(tmp_path), "--remote"]
    with served() as (_, address):
        port = address.rpartition(":")[2]
        (services / "broker-0.json").write_text(json.dumps({"host": "127.0.0.1", "health": f"0.0.0.0:{port}"}))
        for number, host in enumerate(["node7.invalid", "node8.invalid", "ssh me@one"]):
            (services / f"envserver-{number}.json").write_text(json.dumps({"host": host, "health": "127.0.0.1:1"}))
        (services / "learner-0.json").write_text(json.dumps({"host": "node7.invalid", "health": "127.0.0.1:1"}))
        (logs / "learner-0.log").write_text("first\n12:00:00.000 learner I 20/30 agent steps | 66.7%\n")
        assert main(look) == 1
        out = capsys.readouterr().out
        assert "broker 0   ready" in out
        assert "no answer  " in next(line for line in out.splitlines() if "20/30 agent steps" in line)
        (away,) = [line for line in out.splitlines() if "node8" in line]
        assert away.endswith("(health.host): on node7.invalid, node8.invalid, ssh me@one")
    (logs / "learner-0.log").write_text("12:00:00.000 learner I all 30 agent steps are done\n")
    assert main(look) == 0
    assert "finished: the run has reached its last step" in capsys.readouterr().out


def test_beast_health_with_nothing_to_look_at_reports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["health", "--root", "runs"]) == 2
    assert capsys.readouterr().err.startswith("beast health: nothing to look at: no run in runs, and ")
    assert main(["health", "--run", "y", "--root", "runs"]) == 2
    assert "run 'y': there is no folder" in capsys.readouterr().err
