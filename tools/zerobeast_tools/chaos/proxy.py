"""A proxy between clients and a server that does what networks do: it forwards bytes unchanged by default.

    with Proxy("tcp://127.0.0.1:6555", "tcp://127.0.0.1:5555", sockets=(0, 1), delay_s=0.01) as proxy:
        proxy.slow(bytes_per_s=1e6)  # each connection, each way; without a delay from now on
        proxy.cut(reset=True)        # every connection ends
        proxy.hold()                 # nothing passes, without an error, new connections included
        proxy.release()              # what waited goes on
        proxy.stall()                # nothing passes any more on these connections; later ones are sound

Held bytes stay where they are, in the sender's socket for the most part, as they do when packets are lost.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Self

from zerobeast.common.endpoints import Endpoint

CHUNK = 1 << 18
CHUNK_S = 0.05  #: how much a slow proxy reads at once, in seconds of its rate
SHUTDOWN_S = 5.0
SHORT_S = 0.002  #: the event loop does not sleep more precisely than this
RESET = struct.pack("ii", 1, 0)  #: SO_LINGER that makes closing send RST

Queue = asyncio.Queue[tuple[float, bytes]]  #: when data is due, and the data; empty at the end


class Proxy:
    """Listens where a server might and forwards to that server, both ways, in a thread.

    Args:
      listen: endpoint that clients connect to.
      target: endpoint of the server.
      sockets: which of the endpoint's sockets.
      delay_s: see `slow`.
    """

    def __init__(self, listen: str, target: str, sockets: Sequence[int], *, delay_s: float = 0.0) -> None:
        self.slow(delay_s)
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
        """The ports that it listens on."""
        return [self.listen.port + index for index in self._sockets]

    @property
    def connections(self) -> int:
        """How many connections there are now."""
        return len(self._connections)

    def slow(self, delay_s: float = 0.0, bytes_per_s: float = math.inf) -> None:
        """Set the delay of every byte and the bytes a second of each connection, in each direction."""
        self.delay_s, self.bytes_per_s = delay_s, bytes_per_s

    def cut(self, *, reset: bool) -> None:
        """End every connection on both sides, by RST or by FIN. Later connections are served."""
        self._call(self._each(partial(_Connection.cut, reset=reset)))

    def hold(self, *, to_server: bool = True, to_clients: bool = True) -> None:
        """Let nothing pass in these directions until `release`."""
        self._held = (to_server, to_clients)
        self._call(self._each(partial(_Connection.hold, directions=self._held)))

    def release(self) -> None:
        """Let the held bytes pass."""
        self.hold(to_server=False, to_clients=False)

    def stall(self) -> None:
        """Let nothing pass ever again on the current connections, like a firewall that has dropped their state."""
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
        join, place = partial(self._join, index), self.listen
        if place.path:
            server = await asyncio.start_unix_server(join, f"{place.path}.{index}", limit=CHUNK)
        else:
            server = await asyncio.start_server(join, place.host, place.port + index, limit=CHUNK)
        self._servers.append(server)

    async def _reach(self, index: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = self.target
        if place.path:
            return await asyncio.open_unix_connection(f"{place.path}.{index}", limit=CHUNK)
        return await asyncio.open_connection(place.host, place.port + index, limit=CHUNK)

    async def _join(self, index: int, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        # if the server is not there yet, the connection ends and the client tries again
        with closing(to_client), suppress(OSError, asyncio.CancelledError):
            from_server, to_server = await self._reach(index)
            with closing(to_server):
                connection = _Connection(self, to_server, to_client)
                connection.hold(self._held)
                self._connections.add(connection)
                try:
                    await connection.run(from_client, from_server)
                finally:
                    self._connections.discard(connection)


class _Connection:
    """A connection of a client, and the matching one to the server."""

    def __init__(self, proxy: Proxy, *writers: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writers = writers  #: to the server, to the client
        self._open = (asyncio.Event(), asyncio.Event())  #: towards the server, towards the client
        self._stalled = False
        self._clock = asyncio.get_running_loop().time

    async def run(self, *readers: asyncio.StreamReader) -> None:
        """Forward what the client and the server send, until both have ended."""
        await asyncio.gather(*map(self._forward, readers, self._writers, self._open))

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
            with suppress(OSError):  # it has ended by itself
                if reset:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    writer.transport.abort()
                else:
                    end.shutdown(socket.SHUT_WR)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: asyncio.Event
    ) -> None:
        """Forward in one direction: what was read waits until it is due."""
        proxy, queue = self._proxy, Queue()
        deliver = asyncio.create_task(self._deliver(queue, writer, is_open))
        free_at = 0.0  # when the previous bytes have left
        with suppress(OSError):
            while data := await reader.read(int(max(1, min(CHUNK, CHUNK_S * proxy.bytes_per_s)))):
                await is_open.wait()
                free_at = max(free_at, self._clock()) + len(data) / proxy.bytes_per_s
                queue.put_nowait((free_at + proxy.delay_s, data))
                if (early_s := free_at - self._clock()) > SHORT_S:
                    await asyncio.sleep(early_s)
        await is_open.wait()
        queue.put_nowait((self._clock() + proxy.delay_s, b""))
        await deliver

    async def _deliver(self, queue: Queue, writer: asyncio.StreamWriter, is_open: asyncio.Event) -> None:
        with closing(writer), suppress(OSError):
            while True:
                due, data = await queue.get()
                await asyncio.sleep(due - self._clock())
                await is_open.wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()
