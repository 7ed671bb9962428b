"""The served planes of this project, each running, as the contract of a plane sees them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build.brokers import ECHO_ENV, stage
from tests.build.learners import ENV, B, T, open_learner, rollout_rows, run_config
from tests.helpers import ROOT, in_thread, killed_at_last, poll, wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context
from zerobeast.common.wire import session, step_record
from zerobeast.common.wire.messages import Kind, Plane
from zerobeast.rl.acting.inference import Inference
from zerobeast.services.envserver.inline import InlineVectorEnv
from zerobeast.services.envserver.service import EnvServer
from zerobeast.testing.driven_peers import Counts, Request, Server, env_server


@contextmanager
def run_env_server(endpoint: str, *, keys: str = "", **settings: object) -> Iterator[EnvServer]:
    """A server that is ready, and that must end with exit code 0; with `keys`, a folder of them."""
    tree = {"envserver": {"endpoint": endpoint, **settings}, "security": {"keys": keys}}
    server = EnvServer(RunConfig.model_validate(tree), Instance())
    with in_thread(server):
        wait_until(lambda: server.state == "ready")
        yield server


@contextmanager
def forget_sessions() -> Iterator[None]:
    """Servers of this process wait for no first request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "UNUSED_S", 0.0)
        patch.setattr(session, "SWEEP_PERIOD_S", 0.0)
        yield


@contextmanager
def never(kind: type[Any], method: str) -> Iterator[None]:
    """This method returns False."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, lambda _self: False)
        yield


@contextmanager
def an_env_server(endpoint: str) -> Iterator[Server]:
    """The env-server in a thread."""
    with run_env_server(endpoint) as service:

        def counts() -> Counts:
            page = service.report()
            return Counts(page["sessions"], page["refused"], page["agent_steps"])

        held = partial(never, InlineVectorEnv, "collect")
        yield replace(env_server(endpoint, {"id": "CartPole-v1"}), counts=counts, held=held, impatient=forget_sessions)


@contextmanager
def a_broker(endpoint: str) -> Iterator[Server]:
    """The broker in a thread, with an algorithm whose actions count the requests."""

    def request(number: int, _offer: Any) -> Request:
        rows = np.zeros(2, step_record(ECHO_ENV).dtype)
        rows["obs"] = number
        return Request(Kind.INFER, (True,), (rows,))

    def counts() -> Counts:
        page = the.broker.report()
        return Counts(page["clients"], page["refused"], page["rows"])

    terms = {"env": ECHO_ENV.to_wire(), "num_envs": 2}
    with ExitStack() as stack:
        context = Context()
        stack.callback(context.term)
        the = stack.enter_context(
            stage(context, stack.enter_context(pytest.MonkeyPatch.context()), endpoint, max_batch_delay_s=0.001)
        )
        wait_until(lambda: the.broker.state == "ready")
        held = partial(never, Inference, "done")
        yield Server(
            endpoint,
            Plane.INFERENCE,
            terms,
            request,
            counts=counts,
            turn=the.learner.port.welcome,
            held=held,
            impatient=forget_sessions,
        )


@contextmanager
def a_learner(endpoint: str) -> Iterator[Server]:
    """The learner, in the caller's thread."""

    def request(number: int, _offer: Any) -> Request:
        return Request(Kind.ROLLOUT, (B, [], 0), (rollout_rows(B, number).view(np.uint8),))

    def counts() -> Counts:
        page = learner.report()
        return Counts(page["peers"], page["refused"], page["updates"])

    terms = {"env": ENV.to_wire(), "unroll_length": T, "num_envs": B}
    with open_learner(
        run_config(Path(endpoint.removeprefix("ipc://")).parent, endpoint=endpoint, total_steps=10**6)
    ) as learner:
        turn = partial(poll, learner, 0.001)
        yield Server(endpoint, Plane.ROLLOUTS, terms, request, counts=counts, turn=turn, impatient=forget_sessions)


@contextmanager
def the_example(endpoint: str) -> Iterator[Server]:
    """docs/examples/foreign_env_server.py, in a process that cannot import this project."""
    script = ROOT / "docs/examples/foreign_env_server.py"
    command = [sys.executable, "-I", str(script), endpoint]
    process = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with killed_at_last(process):
        yield env_server(endpoint, {"id": "CartPole-v1"})
        assert process.poll() is None, process.communicate()[0]
