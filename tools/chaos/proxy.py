"""A proxy between clients and a server that does what networks do: it forwards bytes unchanged unless told otherwise.

    with Proxy("tcp://127.0.0.1:6555", "tcp://127.0.0.1:5555", sockets=(0, 1), delay_s=0.01) as proxy:
        proxy.bytes_per_s = 1e6      # each connection, each way
        proxy.cut(reset=True)        # every connection ends
        proxy.hold()                 # nothing passes, without an error, new connections included
        proxy.release()              # what waited goes on
        proxy.stall()                # nothing passes any more on these connections; later ones are sound

Held bytes stay where they are, in the sender's socket for the most part, as they do when packets are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Self

from zerobeast.common.runtime.endpoints import Endpoint

CHUNK = 1 << 18
SHUTDOWN_S = 5.0
QUEUE_S = 0.2  #: what a slow proxy stores, in seconds of its rate, besides what its delay keeps under way
SHORT_S = 0.002  #: the event loop does not sleep more precisely
RESET = struct.pack("ii", 1, 0)  #: SO_LINGER with which closing sends RST


class Proxy:
    """Listens where a server might and forwards to that server, both ways, in a thread.

    Args:
      listen: endpoint that clients connect to.
      target: endpoint of the server.
      sockets: which of the endpoint's sockets.
      delay_s: how long every byte is under way, each way.
      bytes_per_s: of each connection, each way.
    """

    def __init__(
        self,
        listen: str,
        target: str,
        sockets: Sequence[int],
        *,
        delay_s: float = 0.0,
        bytes_per_s: float = math.inf,
    ) -> None:
        self.delay_s = delay_s
        self.bytes_per_s = bytes_per_s
        self.carried = [0, 0]  #: bytes that have left towards the server, towards the clients
        self.listen, self.target, self._sockets = Endpoint.parse(listen), Endpoint.parse(target), sockets
        self._servers: list[asyncio.Server] = []
        self._connections: set[_Connection] = set()
        self._held = (False, False)  #: towards the server, towards the clients
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for index in self._sockets:
            self._call(self._serve(index))
        return self

    def __exit__(self, *_error: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SHUTDOWN_S)
        self._loop.close()

    @property
    def ports(self) -> list[int]:
        """That it listens on."""
        return [self.listen.port + index for index in self._sockets]

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._connections)

    def cut(self, *, reset: bool) -> None:
        """End every connection on both sides, by RST or by FIN. Later connections are served."""
        self._call(self._each(partial(_Connection.cut, reset=reset)))

    def hold(self, *, to_server: bool = True, to_clients: bool = True) -> None:
        """Let nothing pass in these directions until `release`."""
        self._held = (to_server, to_clients)
        self._call(self._each(lambda connection: connection.hold(self._held)))

    def release(self) -> None:
        """Let pass what is held."""
        self._held = (False, False)
        self._call(self._each(lambda connection: connection.hold(self._held)))

    def stall(self) -> None:
        """Let nothing pass ever again on the connections of now, as a firewall does that has forgotten them."""
        self._call(self._each(_Connection.stall))

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(SHUTDOWN_S)

    async def _each(self, act: Callable[[_Connection], None]) -> None:
        for connection in list(self._connections):
            act(connection)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, index: int) -> None:
        join = partial(self._join, index)
        if self.listen.path:
            server = await asyncio.start_unix_server(join, f"{self.listen.path}.{index}", limit=CHUNK)
        else:
            server = await asyncio.start_server(join, self.listen.host, self.listen.port + index, limit=CHUNK)
        self._servers.append(server)

    async def _reach(self, index: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.target.path:
            return await asyncio.open_unix_connection(f"{self.target.path}.{index}", limit=CHUNK)
        return await asyncio.open_connection(self.target.host, self.target.port + index, limit=CHUNK)

    async def _join(self, index: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        # a server that is not there yet is a connection that ends: the client tries again
        with contextlib.suppress(OSError, asyncio.CancelledError):
            there_reader, there_writer = await self._reach(index)
            writers.append(there_writer)
            connection = _Connection(self, writers)
            connection.hold(self._held)
            self._connections.add(connection)
            try:
                await connection.run(reader, there_reader)
            finally:
                self._connections.discard(connection)
        for one in writers:
            one.close()


class _Connection:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, writers: Sequence[asyncio.StreamWriter]) -> None:
        self._proxy = proxy
        self._writers = writers  #: to the client, to the server
        self._open = (asyncio.Event(), asyncio.Event())  #: towards the server, towards the client
        self._stalled = False

    async def run(self, from_client: asyncio.StreamReader, from_server: asyncio.StreamReader) -> None:
        """Forward until both sides have ended."""
        to_client, to_server = self._writers
        ways = zip((from_client, from_server), (to_server, to_client), strict=True)
        directions = [_Direction(self._proxy, way, *ends, self._open[way]) for way, ends in enumerate(ways)]
        await asyncio.gather(*(direction.run() for direction in directions))

    def hold(self, directions: tuple[bool, bool]) -> None:
        for gate, held in zip(self._open, directions, strict=True):
            if held:
                gate.clear()
            elif not self._stalled:
                gate.set()

    def stall(self) -> None:
        self._stalled = True
        self.hold((True, True))

    def cut(self, *, reset: bool) -> None:
        for writer in self._writers:
            end = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # it has ended by itself
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    writer.transport.abort()
                else:
                    end.shutdown(socket.SHUT_WR)


class _Direction:
    """One way of one connection: what was read waits in a queue until it is due."""

    def __init__(
        self, proxy: Proxy, way: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: asyncio.Event
    ) -> None:
        self._proxy, self._way, self._reader, self._writer, self._open = proxy, way, reader, writer, is_open
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._queued = 0  #: bytes
        self._room = asyncio.Event()
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        deliver = asyncio.create_task(self._deliver())
        with contextlib.suppress(OSError):
            while data := await self._reader.read(self._chunk()):
                await self._put(data)
        await self._put(b"")
        await deliver

    def _chunk(self) -> int:
        return max(1, min(CHUNK, round(self._proxy.bytes_per_s * QUEUE_S / 4))) if self._slow else CHUNK

    @property
    def _slow(self) -> bool:
        return math.isfinite(self._proxy.bytes_per_s)

    async def _put(self, data: bytes) -> None:
        await self._open.wait()
        while self._queued and self._queued > self._proxy.bytes_per_s * (self._proxy.delay_s + QUEUE_S):
            self._room.clear()
            await self._room.wait()
        self._queued += len(data)
        self._queue.put_nowait((self._clock() + self._proxy.delay_s, data))

    async def _deliver(self) -> None:
        free_at = 0.0  # when the bytes before have left
        with contextlib.suppress(OSError):
            while True:
                due, data = await self._queue.get()
                free_at = max(free_at, due, self._clock()) if self._slow else due
                if (early_s := free_at - self._clock()) > (SHORT_S if self._slow else 0):
                    await asyncio.sleep(early_s)
                await self._open.wait()
                if not data:
                    break
                free_at += len(data) / self._proxy.bytes_per_s
                self._writer.write(data)
                await self._writer.drain()
                self._proxy.carried[self._way] += len(data)
                self._take(len(data))
        self._take(self._queued)  # nothing waits for room any more
        self._writer.close()

    def _take(self, n: int) -> None:
        self._queued -= n
        self._room.set()
