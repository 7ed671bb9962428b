"""Keys are replaced while a run trains: those of actors without any pause, those of servers by a restart."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import free_port, wait_until
from zerobeast.common.transport import add_key, make_keys
from zerobeast.launcher.child import Child
from zerobeast_tools.throwaway_run import ThrowawayRun

pytestmark = pytest.mark.timeout(600)

TINY = ["--env", "CartPole-v1", "--net.hidden_size", "8", "--actor.envs_per_group", "2"]
TINY += ["--learner.batch_size", "4", "--learner.unroll_length", "5"]
SERVERS = ("learner", "envserver", "broker")
TO_SEE_S = 90.0


class Run:
    """A run over encrypted tcp."""

    def __init__(self, services: ThrowawayRun, folder: Path) -> None:
        self._services = services
        self.may_end: list[Child] = []
        self.keys = folder / "keys"
        make_keys(self.keys)
        self._flags = ["--security.keys", str(self.keys)]
        for role in SERVERS:
            self._flags += [f"--{role}.endpoint", f"tcp://127.0.0.1:{free_port()}"]

    def start(self, role: str, certificate: str = "") -> Child:
        secret = ["--security.secret", f"{self.keys}/secret/{certificate}.key_secret"] if certificate else []
        return self._services.start(role, *self._flags, *secret)

    def stop(self, child: Child) -> None:
        """End a service as an orchestrator would."""
        self.may_end.append(child)
        child.terminate()
        wait_until(lambda: not child.running, TO_SEE_S)
        assert child.code == 0, child.explain()

    def figure(self, role: str, key: str) -> float:
        """The sum of a figure over the services of a role, none of which may have ended by itself."""
        for child in self._services.children:
            assert child.running or child in self.may_end, child.explain()
        return sum(page.get(key, 0) for page in self._services.pages(role))

    def refused(self, role: str) -> int:
        return sum(page["refused_by_reason"].get("key", 0) for page in self._services.pages(role))

    def trains_on(self) -> None:
        """Wait until the learner has used rollouts that were begun after now."""
        before = self.figure("learner", "agent_steps")
        wait_until(lambda: self.figure("learner", "agent_steps") > before + 500, TO_SEE_S)


@pytest.fixture
def run() -> Iterator[Run]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="beast-")))
        services = stack.enter_context(ThrowawayRun(TINY, folder))
        run = Run(services, folder)
        yield run


def test_keys_of_actors_and_of_servers_are_replaced_while_a_run_trains(run: Run) -> None:
    children = {role: run.start(role) for role in SERVERS}
    old = run.start("actor")
    run.trains_on()
    add_key(run.keys, "actor")
    children["actor"] = run.start("actor", "actor-2")
    wait_until(lambda: run.figure("learner", "peers") == 2, TO_SEE_S)
    run.stop(old)
    (run.keys / "public/actor.key").unlink()
    run.trains_on()
    assert [run.refused(role) for role in SERVERS] == [0, 0, 0]
    run.may_end.append(run.start("actor"))
    wait_until(lambda: all(run.refused(role) for role in SERVERS[1:]), TO_SEE_S)
    run.trains_on()
    assert run.figure("learner", "peers") == 1, "the old key is of no use any more"
    for role in SERVERS:
        add_key(run.keys, role)
        for kind, suffix in (("secret", "key_secret"), ("public", "key")):
            (run.keys / kind / f"{role}-2.{suffix}").replace(run.keys / kind / f"{role}.{suffix}")
        run.stop(children[role])
        children[role] = run.start(role)
        wait_until(lambda: run.figure("learner", "agent_steps"), TO_SEE_S)
        run.trains_on()
        assert all(child.running for child in children.values()), "no other service had to be started again"


def test_a_worker_has_the_keys_of_broker_and_actor_and_needs_no_other(run: Run) -> None:
    (run.keys / "secret/envserver.key_secret").unlink()
    run.start("learner")
    worker = run.start("worker")
    run.trains_on()
    assert run.refused("learner") == 0
    run.may_end.append(run.start("worker", "actor"))
    wait_until(lambda: not run.may_end[0].running, TO_SEE_S)
    assert run.may_end[0].code == 2
    assert "security.secret" in run.may_end[0].explain()
    assert worker.running
