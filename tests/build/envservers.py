"""An env-server in a thread of the test."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.helpers import in_thread, wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.settings.tree import RunConfig
from zerobeast.services.envserver.service import EnvServer


@contextmanager
def run_env_server(endpoint: str, *, keys: str = "", **settings: object) -> Iterator[EnvServer]:
    """A server that is ready, and that must end with exit code 0; with `keys`, a folder of them."""
    tree = {"envserver": {"endpoint": endpoint, **settings}, "security": {"keys": keys}}
    server = EnvServer(RunConfig.model_validate(tree), Instance())
    with in_thread(server):
        wait_until(lambda: server.state == "ready")
        yield server
