"""Threads that a process does not wait for when it ends."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")


def run_in_thread(call: Callable[[], R], name: str | None = None) -> Future[R]:
    """Call in a thread of its own, which ends with the process; the future gets the result, or whatever was raised."""
    future = Future[R]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # for the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
