"""`/livez` and `/readyz`, for an orchestrator to look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Health:
    """Answers 200 on `/livez` as long as the event loop turns, and on `/readyz` while tasks can be taken."""

    def __init__(self, address: str, ready: Callable[[], bool]) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            raise ValueError(f"{address!r} is not an address like 0.0.0.0:8081")
        self._host = host.strip("[]") or "127.0.0.1"
        self._port = int(port)
        self._ready = ready
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begins to listen."""
        self._server = await asyncio.start_server(self._answer, self._host, self._port)

    def close(self) -> None:
        """Ends that."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            path = head.split(b" ")[1].split(b"?")[0]
            known = {b"/livez": True, b"/readyz": self._ready()}
            status = "404 Not Found" if path not in known else "200 OK" if known[path] else "503 Service Unavailable"
            body = f'{{"status":"{status[4:]}"}}'
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                f"Connection: close\r\n\r\n{body}".encode()
            )
            await writer.drain()
        except (OSError, EOFError, ValueError, IndexError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            pass  # Whoever asked has gone, or speaks no HTTP.
        finally:
            writer.close()
