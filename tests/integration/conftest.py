"""Fixtures for tests of one service over real sockets."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.build.brokers import OpenStage, Stage, stage
from tests.build.learners import FakeActor, Opener, OpenRun, open_learner, run_config
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, ServerPort
from zerobeast.common.wire.messages import Plane


@pytest.fixture
def ipc(tmp_path: Path) -> str:
    """An endpoint for tests of what does not depend on the transport."""
    return f"ipc://{tmp_path}/s"


@pytest.fixture
def server(context: Context, endpoint: str) -> Iterator[ServerPort]:
    """The port of an env-server."""
    with closing(ServerPort(context, Plane.STEPS, endpoint)) as port:
        yield port


@pytest.fixture
def open_stage(context: Context, monkeypatch: pytest.MonkeyPatch, ipc: str) -> Iterator[OpenStage]:
    """Opens a broker as `stage` does, over ipc unless it is given an endpoint."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Stage:
            return stack.enter_context(stage(context, monkeypatch, **{"endpoint": ipc, **settings}))

        yield make


@pytest.fixture
def the(open_stage: OpenStage) -> Stage:
    """A broker with the settings of `stage`, which has weights."""
    return open_stage()


@pytest.fixture
def actor_of(context: Context) -> Iterator[Callable[..., FakeActor]]:
    """Makes actors that talk to a learner by hand."""
    with ExitStack() as stack:

        def make(config: RunConfig, **terms: Any) -> FakeActor:
            actor = FakeActor(context, config.learner.endpoint, **terms)
            stack.callback(actor.close)
            return actor

        yield make


@pytest.fixture
def open_run(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> Iterator[Opener]:
    """Opens a learner made with `injected` and these arguments of `run_config`, over ipc unless they name an endpoint.

    It is closed before its actors are.
    """
    with ExitStack() as stack:

        def make(injected: Mapping[str, Any] = MappingProxyType({}), **settings: Any) -> OpenRun:
            config = run_config(tmp_path, **{"endpoint": f"ipc://{tmp_path}/l", **settings})
            return OpenRun(stack.enter_context(open_learner(config, **injected)), partial(actor_of, config))

        yield make
