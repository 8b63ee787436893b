"""The running tasks: each has its handler running, until it has ended, was taken away, or must be returned.

Knows nothing of how tasks come and results go; `Transport` does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from .context import Context
from .handler import Handler
from .job import Job
from .progress import Progress
from .transport import Transport
from .verdict import Failed, GiveBack, Success, Verdict

log = logging.getLogger("relais.worker")

_CANCEL_LIMIT = 1.0
"""How long handlers may take to notice that they are cancelled, once the worker has to stop."""

_LATE_LIMIT = 5.0
"""How long a handler that ran out of time may take to notice; then its failure is told without it."""

_FOR_EVER = 1e10
"""Seconds that nobody lives to see, nor dates can be reckoned with."""

_FLUSH_LIMIT = 7.0
"""How long to try to tell the last results and to give tasks back."""

_HURRY_LIMIT = 2.0
"""The same when somebody is in a hurry."""


@dataclass
class WorkerReport:
    """What a worker did, from its start to its end."""

    done: int = 0
    """Tasks that ended well."""
    failed: int = 0
    """Tasks that ended badly."""
    returned: int = 0
    """Tasks given back unfinished."""
    lost: int = 0
    """Tasks that were taken away: cancelled, or handed to another worker."""
    unsent: int = 0
    """Tasks with a result that could not be sent before the end. They will be done again."""


class Running:
    """One running task."""

    def __init__(self, job: Job, context: Context) -> None:
        self.job = job
        self.context = context
        self.handling: asyncio.Future[Verdict] | None = None
        self.gone = False
        self.stopped = False
        self.late = False
        self.abandoned = asyncio.Event()

    def cancel(self, interrupt: bool) -> None:
        """Tells the handler that its work is in vain."""
        self.context.cancelled.set()
        if interrupt and self.handling is not None:
            self.handling.cancel()


class Crew:
    """At most so many tasks at once."""

    def __init__(
        self, handler: Handler, transport: Transport, concurrency: int, once: bool, timeout: float | None = None
    ) -> None:
        self._timeout = timeout
        self._handler = handler
        self._transport = transport
        self._running: dict[Job, Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = threading.Event()
        self._told_to_stop = asyncio.Event()
        self._once = once
        self._started = 0
        self.concurrency = 1 if once else concurrency
        self.progress = Progress()
        self.report = WorkerReport()
        self.changed = asyncio.Event()
        """Set when a task begins or ends."""

    @property
    def stopping(self) -> bool:
        """Whether no new task is to be taken, because the worker was told to stop."""
        return self._stopping.is_set()

    @property
    def enough(self) -> bool:
        """Whether no new task is to be taken, for whatever reason."""
        return self.stopping or (self._once and self._started > 0)

    @property
    def busy(self) -> bool:
        """Whether there is any running task."""
        return bool(self._running)

    @property
    def held(self) -> list[Job]:
        """The running tasks that are still ours."""
        return [running.job for running in self._running.values() if not running.gone]

    def find(self, same: Callable[[Job], bool]) -> Job | None:
        """The running task for which that is true."""
        return next((job for job in self._running if same(job)), None)

    async def free(self) -> int:
        """Waits until at least one slot is free, and returns how many are."""
        while len(self._running) >= self.concurrency:
            self.changed.clear()
            await self.changed.wait()
        return self.concurrency - len(self._running)

    def start(self, job: Job) -> None:
        """Starts the handler of a task."""
        self._started += 1
        context = Context(job, lambda percent: self.progress.put(job, percent), self._stopping)
        running = Running(job, context)
        self._running[job] = running
        task = asyncio.get_running_loop().create_task(self._work(running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.changed.set()

    def gone(self, job: Job, why: str) -> None:
        """A task was taken away: its handler is told to stop, and its result is not wanted."""
        running = self._running.get(job)
        if running is not None and not running.gone:
            log.info("told to stop working on task %s: %s", job.task_id, why)
            running.gone = True
            running.cancel(self._handler.is_async)

    def stop(self) -> None:
        """No new task is taken from now on."""
        self._stopping.set()
        self._told_to_stop.set()

    async def told_to_stop(self) -> None:
        """Waits until no new task is to be taken, because the worker was told to stop."""
        await self._told_to_stop.wait()

    async def drain(self, grace: float, interruptible: bool, hurry: asyncio.Event) -> None:
        """Lets handlers finish within the grace period, then stops them and gives their tasks back.

        Those that can be interrupted are stopped at once, and have the grace period for that.
        """
        stop_limit = max(grace, _CANCEL_LIMIT) if interruptible else _CANCEL_LIMIT
        if interruptible:
            grace = 0.0
        await self._all_ended(grace, hurry)
        if self._running and not hurry.is_set():
            log.info("the grace period is over: %d tasks that still run are given back", len(self._running))
        for running in self._running.values():
            running.stopped = True
            running.cancel(self._handler.is_async)
        await self._all_ended(stop_limit, hurry)
        for running in self._running.values():
            running.abandoned.set()
        await self._all_ended(_HURRY_LIMIT if hurry.is_set() else _FLUSH_LIMIT, None)
        self.report.unsent += len(self._tasks)
        if self._tasks:
            log.error("%d tasks could not be reported in time; they will be done again", len(self._tasks))
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _all_ended(self, limit: float, hurry: asyncio.Event | None) -> None:
        if not self._tasks:
            return
        ends: set[asyncio.Future[object]] = {asyncio.ensure_future(asyncio.wait(set(self._tasks)))}
        if hurry is not None:
            ends.add(asyncio.ensure_future(hurry.wait()))
        try:
            await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _work(self, running: Running) -> None:
        job = running.job
        try:
            # Taken away before it began: it does not begin.
            begins = await self._begins(running) and not running.gone
            verdict = await self._handled(running) if begins else GiveBack()
            progress = self.progress.forget(job)
            if isinstance(verdict, Failed):
                verdict = replace(verdict, progress=progress)
            if running.gone:
                self.report.lost += 1
                await self._transport.drop(job)
            elif isinstance(verdict, GiveBack):
                await self._give_back(running, verdict.after)
            elif not await self._transport.deliver(job, verdict):
                self.report.lost += 1
            elif isinstance(verdict, Success):
                self.report.done += 1
            else:
                self.report.failed += 1
        except Exception:
            # Nothing above should raise; if it does, the task must not take its place for ever.
            log.exception("task %s is let go", job.task_id)
        finally:
            del self._running[job]
            self.changed.set()

    async def _begins(self, running: Running) -> bool:
        """Waits until the handler may begin. False: it may not, or the worker is to stop."""
        beginning = self._transport.beginning(running.job)
        if beginning is None:
            return True
        told = asyncio.ensure_future(self._told_to_stop.wait())
        ends: set[asyncio.Future[Any]] = {beginning, told}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return beginning.done() and beginning.result()
        finally:
            told.cancel()
            beginning.cancel()

    def _watch(self, running: Running) -> asyncio.TimerHandle | None:
        """From now on its time runs, where it has not all the time in the world."""
        limits = [limit for limit in (running.job.timeout, self._timeout) if limit is not None and limit < _FOR_EVER]
        if not limits:
            return None
        end = datetime.now(timezone.utc) + timedelta(seconds=min(limits))
        running.context.deadline = min(end, running.job.deadline or end)
        return asyncio.get_running_loop().call_later(min(limits), self._late, running)

    def _late(self, running: Running) -> None:
        if not running.gone and not running.stopped:
            log.info("told to stop working on task %s: it ran for longer than it may", running.job.task_id)
            running.late = True
            running.cancel(self._handler.is_async)
            asyncio.get_running_loop().call_later(_LATE_LIMIT, running.abandoned.set)

    async def _handled(self, running: Running) -> Verdict:
        watch = self._watch(running)
        handling = asyncio.ensure_future(self._handler(running.job.body, running.context))
        running.handling = handling
        abandoned = asyncio.ensure_future(running.abandoned.wait())
        try:
            await asyncio.wait({handling, abandoned}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            abandoned.cancel()
            if watch is not None:
                watch.cancel()
            if not handling.done():
                handling.cancel()
        if not handling.done():
            log.warning("task %s does not stop, and is left alone", running.job.task_id)
        if running.late:
            return Failed("It ran for longer than it may.", kind="timeout")
        if not handling.done():
            return GiveBack()
        verdict = (
            Failed("the handler was cancelled", kind="CancelledError") if handling.cancelled() else handling.result()
        )
        # Once it is told to stop, only a result counts: whatever it raises then is because of that.
        return GiveBack() if running.stopped and not isinstance(verdict, Success) else verdict

    async def _give_back(self, running: Running, after: float) -> None:
        if after > 0:
            told = asyncio.ensure_future(self._told_to_stop.wait())
            await asyncio.wait({told}, timeout=after)
            told.cancel()
        if running.gone:
            self.report.lost += 1
            await self._transport.drop(running.job)
            return
        await self._transport.give_back(running.job)
        self.report.returned += 1
