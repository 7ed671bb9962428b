"""A wire that takes time: forwards every byte of a unix socket unchanged, but later. Bandwidth stays what it is."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

CHUNK = 1 << 20
SHUTDOWN_S = 2.0


class DelayedSockets:
    """Listens at each path and forwards to that path's target, both ways, in a thread.

    Usage: `with DelayedSockets({"b.0": "real.0"}, one_way_s=0.01): ...`

    Args:
      targets: path to listen at -> path of the server behind it.
      one_way_s: how long every byte is under way, each way.
    """

    def __init__(self, targets: Mapping[Path, Path], one_way_s: float) -> None:
        self._targets = targets
        self._one_way_s = one_way_s
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="delay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for path, target in self._targets.items():
            self._call(self._listen(path, target))
        return self

    def __exit__(self, *_error: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SHUTDOWN_S)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(SHUTDOWN_S)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self, path: Path, target: Path) -> None:
        join = partial(self._join, target)
        self._servers.append(await asyncio.start_unix_server(join, path, limit=CHUNK))

    async def _join(self, target: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        # a server that is not there yet is a connection that ends: whoever connects tries again
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there_reader, there_writer = await asyncio.open_unix_connection(target, limit=CHUNK)
            writers.append(there_writer)
            await asyncio.gather(self._forward(reader, there_writer), self._forward(there_reader, writer))
        for one in writers:
            one.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        deliver = asyncio.create_task(self._deliver(queue, writer))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                queue.put_nowait((self._loop.time() + self._one_way_s, data))
        queue.put_nowait((self._loop.time() + self._one_way_s, b""))
        await deliver

    async def _deliver(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.close()
