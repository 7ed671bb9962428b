"""The verdict names what limits a real run: environments or the network are made slow."""

import tempfile
from pathlib import Path

from tests.build.odd import ODD
from tests.helpers import wait_until
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.verdict import judge
from zerobeast.common.process.roles import ROLES
from zerobeast_tools.chaos.proxy import Proxy
from zerobeast_tools.throwaway_run import ThrowawayRun

CARTPOLE = ["--env", "CartPole-v1"]


def wait_for_verdict(run: ThrowawayRun, expected: str) -> str:
    """Wait until the verdict on the run starts with `expected`, and return it."""

    def found() -> str:
        pages = [page for role in ROLES for page in run.pages(role)]
        alone = {"cpu_pressure": 0.0}  # whatever else this machine does
        seen = judge([ServiceView(page["role"], page["role"], page | alone) for page in pages]).sentence
        return seen if seen.startswith(expected) else ""

    return wait_until(found, 120)


def test_slow_environments_are_named_though_they_use_no_processor() -> None:
    flags = ["--env", ODD, "--env.kwargs", '{"at": -1, "deed": "rest"}']
    with tempfile.TemporaryDirectory(prefix="beast-") as name, ThrowawayRun(flags, Path(name)) as run:
        run.start_all()
        wait_for_verdict(run, "environment-bound")


def test_a_slow_wire_is_named() -> None:
    with tempfile.TemporaryDirectory(prefix="beast-") as name, ThrowawayRun(CARTPOLE, Path(name)) as run:
        run.start("learner")
        run.start("envserver")
        run.start("broker", "--broker.endpoint", f"ipc://{name}/real")
        with Proxy(f"ipc://{name}/broker-0", f"ipc://{name}/real", sockets=(0, 1), delay_s=0.05):
            run.start("actor")
            assert "to the broker" in wait_for_verdict(run, "latency-bound")
