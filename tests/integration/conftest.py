"""Fixtures for tests of one service over real sockets."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.learner_fakes import FakeActor, Opener, OpenRun, opened, run_config
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.transport import Context


@pytest.fixture
def actor_of(context: Context) -> Iterator[Callable[..., FakeActor]]:
    """Makes actors that talk to a learner by hand."""
    actors = []

    def make(config: RunConfig, **terms: Any) -> FakeActor:
        actors.append(FakeActor(context, config.learner.endpoint, **terms))
        return actors[-1]

    yield make
    for actor in actors:
        actor.close()


@pytest.fixture
def open_run(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> Iterator[Opener]:
    """Opens a learner made with `injected` and these arguments of `run_config`, over ipc unless they name an endpoint.

    It is closed before its actors are.
    """
    with ExitStack() as stack:

        def make(injected: Mapping[str, Any] = MappingProxyType({}), **settings: Any) -> OpenRun:
            config = run_config(tmp_path, **{"endpoint": f"ipc://{tmp_path}/l", **settings})
            return OpenRun(stack.enter_context(opened(config, **injected)), partial(actor_of, config))

        yield make
