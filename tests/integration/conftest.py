"""Fixtures for tests of one service over real sockets."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from common.config.tree import RunConfig
from common.transport import Context
from tests.learner_fakes import FakeActor


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
