"""The newest progress of each task, on its way to the server.

Handlers may say it as often as they like, from any thread. It is sent a few times a second, all tasks together, apart
from results, which never wait for it. What waits when a task ends is dropped, unless it failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable

from ..backoff import Backoff
from .job import Job

log = logging.getLogger("relais.worker")

Tell = Callable[[dict[Job, float]], Awaitable[None]]

_PAUSE = 0.25


class Progress:
    """What waits to be told."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._newest: dict[Job, float] = {}
        self._told: dict[Job, float] = {}
        self._woken = False
        self._came = asyncio.Event()

    def put(self, job: Job, percent: float) -> None:
        """A task is so far. From any thread."""
        with self._lock:
            self._newest[job] = percent
            if self._woken:
                return
            self._woken = True
        with contextlib.suppress(RuntimeError):  # The worker has ended.
            self._loop.call_soon_threadsafe(self._came.set)

    def forget(self, job: Job) -> float | None:
        """A task has ended. How far it was, if it is not certain that this was told."""
        with self._lock:
            return self._newest.pop(job, self._told.get(job))

    async def run(self, tell: Tell, wanted: Callable[[Job], bool]) -> None:
        """Tells what comes, until it is cancelled. What could not be sent is tried again while there is no newer."""
        backoff = Backoff()
        while True:
            await self._came.wait()
            with self._lock:
                batch, self._newest = self._newest, {}
                self._woken = False
                self._came.clear()
            batch = self._told = {job: percent for job, percent in batch.items() if wanted(job)}
            if not batch:
                continue
            try:
                await tell(batch)
                self._told = {}
                backoff.reset()
                pause = _PAUSE
            except Exception as error:
                log.debug("progress could not be sent: %s", error)
                self._put_back(batch)
                pause = max(backoff.next(), _PAUSE)
            await asyncio.sleep(pause)

    def _put_back(self, batch: dict[Job, float]) -> None:
        with self._lock:
            self._newest = {**batch, **self._newest}
            self._woken = True
        self._came.set()
