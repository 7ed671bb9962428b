"""An env-server in a thread of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.helpers import wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.service.loop import Loop
from zerobeast.common.settings.tree import RunConfig
from zerobeast.services.envserver.service import EnvServer


@contextmanager
def running(endpoint: str, *, keys: str = "", **settings: object) -> Iterator[EnvServer]:
    """A server that is ready, and that must end with exit code 0; with `keys`, a folder of them."""
    tree = {"envserver": {"endpoint": endpoint, **settings}, "security": {"keys": keys}}
    server = EnvServer(RunConfig.model_validate(tree), Instance())
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(Loop([server]).run()))
    thread.start()
    try:
        wait_until(lambda: server.state == "ready" or not thread.is_alive())
        yield server
    finally:
        server.stop()
        thread.join(timeout=60)
        assert codes == [0], "the server did not end in order"
