"""The worker as its user sees it: a handler, a transport, and when to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from . import environment
from .crew import Crew, WorkerReport
from .handler import Handler
from .health import Health
from .http import Http
from .rabbitmq import RabbitMq
from .transport import Transport

T = TypeVar("T")

log = logging.getLogger("relais.worker")

_CANCEL_AGAIN = 1.0


class Worker:
    """Does tasks: `Worker(handler, Http("resize")).run()`.

    The handler is a function of a body, or of a body and a `Context`: an `async def`, or a plain `def`, which runs in a
    thread. What it returns is the result; an exception fails the task. The body's annotation may be a dataclass, a
    TypedDict or a pydantic model.

    Without a transport it is `RabbitMq` where the environment has RELAIS_BROKER_URL, else `Http`, of `service`.

    `concurrency` is how many tasks are done at once, 1 if nobody says. `grace` is for how many seconds running tasks
    may go on once the worker is told to stop, 20 if nobody says. Tasks that are `interruptible` are stopped at once,
    and have that time to stop. `timeout` is for how many seconds a task may run: then its handler is told to stop, and
    it fails. `once` takes one task, then ends. `idle` ends the worker after so many seconds without a task. `health` is
    an address, e.g. `0.0.0.0:8081`, that answers on `/livez` and `/readyz`.

    What is not given is taken from the environment: RELAIS_CONCURRENCY, RELAIS_GRACE, RELAIS_INTERRUPTIBLE,
    RELAIS_TIMEOUT, RELAIS_ONCE, RELAIS_IDLE.
    """

    def __init__(
        self,
        handler: Callable[..., Any],
        transport: Transport | None = None,
        *,
        service: str | None = None,
        concurrency: int | None = None,
        grace: float | None = None,
        interruptible: bool | None = None,
        timeout: float | None = None,
        once: bool | None = None,
        idle: float | None = None,
        health: str | None = None,
    ) -> None:
        self._concurrency = _first(concurrency, environment.number("RELAIS_CONCURRENCY"), 1)
        if self._concurrency < 1:
            raise ValueError("a worker has at least one hand: concurrency must be 1 or more")
        self._grace = _first(grace, environment.seconds("RELAIS_GRACE"), 20.0)
        self._interruptible = _first(interruptible, environment.flag("RELAIS_INTERRUPTIBLE"), False)
        self._timeout = environment.seconds("RELAIS_TIMEOUT") if timeout is None else timeout
        self._once = _first(once, environment.flag("RELAIS_ONCE"), False)
        self._handler = Handler(handler)
        self._transport = _transport(service) if transport is None else transport
        self._idle = environment.seconds("RELAIS_IDLE") if idle is None else idle
        self._crew: Crew | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._health = None if health is None else Health(health, lambda: self.ready)

    @property
    def ready(self) -> bool:
        """Whether it could take a task right now, as far as it knows."""
        return self._transport.ready and not self._stop.is_set()

    def run(self) -> WorkerReport:
        """Takes tasks and does them until SIGTERM or SIGINT, then finishes or gives back what it has.

        A second signal stops at once and gives everything back. Raises `Refused` if, before anything has worked, the
        server says that this will never do; a server that is away, at the start or later, is waited for.
        """
        return asyncio.run(self._run())

    async def serve(self) -> WorkerReport:
        """The same inside an event loop, without signals: until `stop` is called."""
        self._loop = asyncio.get_running_loop()
        crew = self._crew = Crew(self._handler, self._transport, self._concurrency, self._once, self._timeout)
        if self._health is not None:
            await self._health.open()
        beside = [
            asyncio.ensure_future(self._transport.run_beside(crew)),
            asyncio.ensure_future(crew.progress.run(self._transport.tell_progress, lambda job: job in crew.held)),
        ]
        try:
            await self._take(crew)
            await self._finish(crew)
            crew.stop()
            await crew.drain(self._grace, self._interruptible, self._hurry)
            return crew.report
        finally:
            await _end(beside)
            await self._transport.close()
            if self._health is not None:
                self._health.close()

    def stop(self) -> None:
        """Takes no new task, and ends when the running ones have. A second call gives them back at once.

        From any thread.
        """
        if self._loop is None or self._loop is _running_loop():
            self._told()
        else:
            with contextlib.suppress(RuntimeError):  # It has ended.
                self._loop.call_soon_threadsafe(self._told)

    def _told(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()
        if self._crew is not None:
            self._crew.stop()

    async def _run(self) -> WorkerReport:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        listening = threading.current_thread() is threading.main_thread()
        if listening:
            for number in signals:
                loop.add_signal_handler(number, self._signalled, number)
        try:
            return await self.serve()
        finally:
            if listening:
                for number in signals:
                    loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        log.info("%s: %s", number.name, "stopping at once" if self._stop.is_set() else "no new task is taken")
        self.stop()

    async def _take(self, crew: Crew) -> None:
        """Takes tasks until there is a reason to end, and lets what was on its way be given back."""
        taking = asyncio.ensure_future(self._transport.take(crew))
        ends: set[asyncio.Future[Any]] = {taking, asyncio.ensure_future(self._stop.wait())}
        if self._idle is not None:
            ends.add(asyncio.ensure_future(self._bored(crew, self._idle)))
        if self._stop.is_set():
            crew.stop()
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                taking.result()
        finally:
            await _end(ends)

    async def _finish(self, crew: Crew) -> None:
        """The one task of `once` takes as long as it takes, unless the worker is told to stop."""
        stop = asyncio.ensure_future(self._stop.wait())
        while crew.busy and not stop.done():
            crew.changed.clear()
            changed = asyncio.ensure_future(crew.changed.wait())
            await asyncio.wait({stop, changed}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        stop.cancel()

    async def _bored(self, crew: Crew, idle: float) -> None:
        while True:
            crew.changed.clear()
            try:
                await asyncio.wait_for(crew.changed.wait(), idle)
            except asyncio.TimeoutError:
                if not crew.busy:
                    log.info("no task for %g s", idle)
                    return


def _transport(service: str | None) -> Transport:
    """As the environment says."""
    if environment.text("RELAIS_BROKER_URL") is None:
        return Http(service)
    return RabbitMq(environment.text("RELAIS_QUEUE") or service)


def _first(given: T | None, said: T | None, default: T) -> T:
    """What was given, else what the environment says, else what is usual."""
    return given if given is not None else said if said is not None else default


async def _end(parts: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels, until they have ended: a library underneath may lose a cancellation that comes at the wrong moment."""
    left = set(parts)
    while left:
        for part in left:
            part.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
