"""Tasks over RabbitMQ: taken from `<queueName>-in`, told of on `<queueName>-out`.

A submission is acknowledged only when its result has been confirmed by the broker, in a queue. A connection that is
lost is made again, for ever; handlers go on meanwhile. When the broker then delivers a task again that is still in
hand here, it is not begun a second time. That a task was cancelled is heard beside: see `control`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from ..backoff import Backoff
from ..wire import ParseFloat, loads
from . import environment
from .control import Stop, listen
from .job import Job, read_submission
from .outage import Outage
from .transport import Transport, this_host
from .verdict import Failed, Success

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue

    from .crew import Crew

log = logging.getLogger("relais.worker")

_CONNECT_LIMIT = 15.0
_CLOSE_LIMIT = 2.0
_WATCH = 1.0
_RETURN_LIMIT = 2.0
"""How long to try to say that a task is given back."""


class RabbitMq(Transport):
    """Tasks from the queue `<queue_name>-in` of the broker at `url` (`amqp://…`, `amqps://…`).

    What is not given is taken from the environment: RELAIS_QUEUE, or else RELAIS_SERVICE, RELAIS_BROKER_URL, and for
    `ca` RELAIS_BROKER_ROOT_CERTIFICATES. Needs `pip install relais[rabbitmq]`. `heartbeat` is every how many seconds
    the two ends make sure of each other, 0 for never; a silent end is given up after two to three of them.
    `?heartbeat=` in the URL wins. `ca` is a PEM file of the authorities to trust behind `amqps://`, instead of the
    public ones. With `parse_float=Decimal`, numbers with a point keep every digit.
    """

    def __init__(
        self,
        queue_name: str | None = None,
        url: str | None = None,
        *,
        heartbeat: int = 10,
        ca: str | os.PathLike[str] | None = None,
        host_name: str | None = None,
        parse_float: ParseFloat = float,
    ) -> None:
        try:
            import aio_pika  # noqa: F401
        except ImportError as error:
            raise ImportError("a worker over RabbitMQ needs aio-pika: pip install 'relais[rabbitmq]'") from error
        url = url or environment.text("RELAIS_BROKER_URL") or ""
        if not url.startswith(("amqp://", "amqps://")):
            raise ValueError(
                "the broker's address is needed, like amqp://host/vhost: give it, or set RELAIS_BROKER_URL"
            )
        self._url = _with_heartbeat(url, heartbeat)
        ca = ca or environment.text("RELAIS_BROKER_ROOT_CERTIFICATES")
        self.ssl_context = None if ca is None else ssl.create_default_context(cafile=ca)
        queue_name = queue_name or environment.text("RELAIS_QUEUE") or environment.text("RELAIS_SERVICE")
        if queue_name is None:
            raise ValueError("a queue is needed: give its name, or set RELAIS_QUEUE or RELAIS_SERVICE")
        self._in, self._out = f"{queue_name}-in", f"{queue_name}-out"
        self._control = f"{queue_name}-control"
        self.host_name = host_name or this_host()
        self._parse_float = parse_float
        self._outage = Outage("the broker")
        self._session: _Session | None = None
        self._session_came = asyncio.Event()
        self._begun = asyncio.Event()
        self._deliveries: dict[Job, list[tuple[int, AbstractIncomingMessage]]] = {}
        """How each came, and under which revision."""
        self._withdrawn: dict[Job, int] = {}
        """Those that are not wanted any more, as they were published before this revision."""
        self._deaf = False
        self._started: dict[Job, asyncio.Future[bool]] = {}
        self._telling: set[Job] = set()
        self._welcome = False
        self._hopeless: BaseException | None = None
        self._consuming = False

    @property
    def ready(self) -> bool:
        """Whether it listens to its queue."""
        return self._consuming and self._session is not None

    async def take(self, crew: Crew) -> None:
        """The broker pushes tasks; this only says when to stop."""
        self._consuming = True
        self._begun.set()
        try:
            while not crew.enough:
                if self._hopeless is not None:
                    raise self._hopeless
                crew.changed.clear()
                await crew.changed.wait()
        finally:
            self._consuming = False
            if self._session is not None:
                await self._session.stop_consuming()

    def beginning(self, job: Job) -> asyncio.Future[bool] | None:
        """The confirmation of the start, of a task that somebody had before: it may have been what ended them.

        Then nobody but the server can count how often, and it can only if it hears of every start.
        """
        return self._started.get(job) if job.redelivered else None

    async def deliver(self, job: Job, verdict: Success | Failed) -> bool:
        """Publishes a result until it is confirmed, then acknowledges the submission."""
        self._telling.add(job)
        await self._start_told(job)
        if isinstance(verdict, Failed) and verdict.progress is not None:
            await self._publish_until_confirmed(job.progress(verdict.progress))
        try:
            await self._publish_until_confirmed(job.ended(verdict))
        except ValueError as error:
            log.warning("the broker does not take the result of task %s: %s", job.task_id, error)
            message = f"the broker did not take the worker's result: {error}"
            substitute = Failed(message, retryable=False, kind="result")
            await self._publish_until_confirmed(job.ended(substitute))
        await self._acknowledge(job, lambda delivery: delivery.ack())
        return True

    async def give_back(self, job: Job) -> None:
        """Says so, that it does not count as lost, then others can take it at once.

        If the connection is lost, the broker gives it to them by itself.
        """
        self._telling.add(job)
        await self._start_told(job)
        if self._session is not None:
            await _quietly(asyncio.wait_for(self._session.publish(job.returned(self.host_name)), _RETURN_LIMIT))
        await self._acknowledge(job, lambda delivery: delivery.nack(requeue=True))

    async def drop(self, job: Job) -> None:
        """Nobody is to do it, unless it was published anew since: that is for whoever gets it next."""
        until = self._withdrawn.get(job, job.revision + 1)
        for revision, delivery in self._deliveries.pop(job, []):
            await _quietly(delivery.ack() if revision < until else delivery.nack(requeue=True))
        await self._acknowledge(job, lambda delivery: delivery.ack())
        self._withdrawn.pop(job, None)

    def heed(self, stops: list[Stop]) -> None:
        """Stops what nobody wants any more. What has a result is told of all the same."""
        told = {stop.task_id: stop for stop in stops}
        for job in self._crew.held:
            stop = told.get(job.task_id)
            if stop is not None and job.revision < stop.revision and job not in self._telling:
                self._withdrawn[job] = stop.revision
                self._crew.gone(job, stop.outcome)

    async def tell_progress(self, batch: dict[Job, float]) -> None:
        """One message per task."""
        if self._session is None:
            raise ConnectionError("there is no connection to the broker")
        await asyncio.gather(*(self._session.publish(job.progress(percent)) for job, percent in batch.items()))

    async def run_beside(self, crew: Crew) -> None:
        """Keeps a connection to the broker."""
        self._crew = crew
        await self._begun.wait()
        backoff = Backoff()
        while True:
            session = _Session(self)
            try:
                await session.open(crew.concurrency)
                self._welcome = True
                self._outage.worked("connection")
                self._session = session
                self._session_came.set()
                backoff.reset()
                await session.lost
                self._outage.failed("connection", session.lost.result())
            except Exception as error:
                if not self._welcome and _is_refusal(error):
                    self._hopeless = error
                    crew.changed.set()
                    return
                self._outage.failed("connection", error or type(error).__name__)
            finally:
                self._session = None
                await session.close()
            await asyncio.sleep(backoff.next())

    async def close(self) -> None:
        """The session ends with `run_beside`."""

    async def arrived(self, session: _Session, delivery: AbstractIncomingMessage) -> None:
        """A message came from the broker."""
        try:
            message = loads(delivery.body, self._parse_float)
            job = read_submission(message, redelivered=bool(delivery.redelivered))
        except ValueError as error:
            # Set aside where the queue has a place for it; never again here.
            log.error("a message in %s is no submission and is set aside: %s", self._in, error)
            await _quietly(delivery.reject(requeue=False))
            return
        if any(other.task_id == job.task_id and job.revision < until for other, until in self._withdrawn.items()):
            await _quietly(delivery.ack())
            return
        known = self._crew.find(lambda other: other.held == job.held and other not in self._withdrawn)
        if known in self._deliveries and (known not in self._telling or delivery.redelivered):
            # Still running: delivered again after the connection was lost, or published twice. A new one that comes
            # when the result is on its way already is another matter: somebody wants it done again.
            self._deliveries[known].append((job.revision, delivery))
        elif self._crew.enough or not self._consuming:
            await _quietly(delivery.nack(requeue=True))
        else:
            if job.deadline is not None:
                job.timeout = max(0.0, (job.deadline - datetime.now(timezone.utc)).total_seconds())
            self._deliveries[job] = [(job.revision, delivery)]
            self._started[job] = asyncio.ensure_future(self._tell_start(session, job))
            self._crew.start(job)
            if self._crew.enough:
                # Before anything is acknowledged: the next message is for somebody else.
                await session.stop_consuming()

    async def _tell_start(self, session: _Session, job: Job) -> bool:
        """Once; if the handler waits for it, as long as the connection holds to which the task belongs."""
        backoff = Backoff()
        while True:
            try:
                await session.publish(job.started(self.host_name))
                return True
            except Exception as error:
                log.debug("the start of task %s could not be reported: %s", job.task_id, error)
            if not job.redelivered or session.lost.done():
                return False
            await asyncio.wait({session.lost}, timeout=backoff.next())

    async def _start_told(self, job: Job) -> None:
        """Waits for what is to be told before all the rest."""
        started = self._started.pop(job, None)
        if started is not None:
            await asyncio.wait({started})

    async def _acknowledge(self, job: Job, how: Callable[[AbstractIncomingMessage], Awaitable[None]]) -> None:
        self._started.pop(job, None)
        self._telling.discard(job)
        for _, delivery in self._deliveries.pop(job, []):
            await _quietly(how(delivery))

    async def _publish_until_confirmed(self, message: str) -> None:
        backoff = Backoff()
        while True:
            while self._session is None:
                self._session_came.clear()
                await self._session_came.wait()
            session = self._session
            try:
                await session.publish(message)
                self._outage.worked("results")
                return
            except ValueError:
                raise
            except Exception as error:
                self._outage.failed("results", error or type(error).__name__)
            await asyncio.sleep(backoff.next())

    async def listen(self, connection: AbstractConnection) -> None:
        """Hears from now on what is cancelled. Whoever may not works all the same."""
        import aio_pika

        try:
            await listen(connection, self._control, self.heed)
        except aio_pika.exceptions.AMQPChannelError as error:
            level = logging.DEBUG if self._deaf else logging.WARNING
            log.log(level, "it is not heard here if a task is cancelled while it runs: %s", error)
            self._deaf = True

    @property
    def settings(self) -> tuple[str, str, str]:
        """The broker's address and the two queues."""
        return self._url, self._in, self._out

    @property
    def consuming(self) -> bool:
        """Whether tasks are to be taken."""
        return self._consuming and not self._crew.enough


class _Session:
    """One connection, from its making to its loss."""

    def __init__(self, owner: RabbitMq) -> None:
        self._owner = owner
        self._connection: AbstractConnection | None = None
        self._opening: asyncio.Future[None] | None = None
        self._publishing: AbstractChannel | None = None
        self._queue: AbstractQueue | None = None
        self._tag: str | None = None
        self._watching: asyncio.Future[None] | None = None
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def open(self, prefetch: int) -> None:
        """Connects, declares both queues, and listens to one."""
        self._opening = asyncio.ensure_future(asyncio.wait_for(self._open(prefetch), _CONNECT_LIMIT))
        # Not interrupted half way, which would leave a mess: `close` waits for it.
        await asyncio.shield(self._opening)

    async def _open(self, prefetch: int) -> None:
        import aio_pika

        url, queue_in, queue_out = self._owner.settings
        name: Any = {"connection_name": f"relais worker {self._owner.host_name} {queue_in}"}
        connection = await aio_pika.connect(url, client_properties=name, ssl_context=self._owner.ssl_context)
        self._connection = connection
        connection.close_callbacks.add(self._gone)
        for queue in (queue_out, queue_in):
            await self._declare(queue)
        self._publishing = await connection.channel(publisher_confirms=True, on_return_raises=True)
        self._publishing.close_callbacks.add(self._gone)
        # Before any task comes: what is cancelled from then on is heard.
        await self._owner.listen(connection)
        if self._owner.consuming:
            await self._consume(queue_in, prefetch)

    async def _consume(self, queue_in: str, prefetch: int) -> None:
        assert self._connection is not None
        channel = await self._connection.channel(publisher_confirms=False)
        channel.close_callbacks.add(self._gone)
        underlay: Any = await channel.get_underlay_channel()
        await channel.set_qos(prefetch_count=prefetch)
        self._queue = await channel.get_queue(queue_in, ensure=False)
        self._tag = await self._queue.consume(self._arrived)
        if hasattr(underlay, "on_consumer_cancel_callbacks"):
            underlay.on_consumer_cancel_callbacks.add(self._queue_gone)
        else:
            self._watching = asyncio.ensure_future(self._watch(underlay, self._tag))

    async def _arrived(self, delivery: AbstractIncomingMessage) -> None:
        await self._owner.arrived(self, delivery)

    async def _declare(self, queue: str) -> None:
        """Plain and durable, as everybody does; one that is there already may be of any kind."""
        import aio_pika

        assert self._connection is not None
        channel = await self._connection.channel(publisher_confirms=False)
        try:
            await channel.declare_queue(queue, passive=True)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            channel = await self._connection.channel(publisher_confirms=False)
            await channel.declare_queue(queue, durable=True)
        await channel.close()

    async def publish(self, message: str) -> None:
        """Returns when the broker has it in the queue. Raises ValueError if it will never take it."""
        import aio_pika

        assert self._publishing is not None
        _, _, queue_out = self._owner.settings
        wrapped = aio_pika.Message(
            message.encode(), content_type="application/json", delivery_mode=aio_pika.DeliveryMode.PERSISTENT
        )
        try:
            await self._publishing.default_exchange.publish(wrapped, routing_key=queue_out, mandatory=True)
        except aio_pika.exceptions.PublishError as error:
            # The queue is gone: the next session declares it again.
            self._gone(None, error)
            raise
        except aio_pika.exceptions.ChannelPreconditionFailed as error:
            raise ValueError(str(error)) from error

    async def stop_consuming(self) -> None:
        """No more messages come; those on their way are given back by whoever gets them."""
        queue, tag, self._tag = self._queue, self._tag, None
        if queue is not None and tag is not None:
            await _quietly(queue.cancel(tag))

    async def close(self) -> None:
        """Hangs up; the broker gives what was not acknowledged to others."""
        if self._opening is not None and not self._opening.done():
            await asyncio.wait({self._opening}, timeout=_CLOSE_LIMIT)
            self._opening.cancel()
            await _quietly(asyncio.gather(self._opening, return_exceptions=True))
        if self._watching is not None:
            self._watching.cancel()
        if self._connection is not None:
            self._connection.close_callbacks.discard(self._gone)
            await _quietly(asyncio.wait_for(self._connection.close(), _CLOSE_LIMIT))

    async def _watch(self, underlay: Any, tag: str) -> None:
        """Before version 10, aio-pika only forgets a consumer when the broker ends it, e.g. since its queue is gone."""
        while self._tag is not None and tag in underlay.consumers:  # noqa: ASYNC110
            await asyncio.sleep(_WATCH)
        if self._tag is not None:
            await self._queue_gone(None)

    async def _queue_gone(self, _frame: Any) -> None:
        self._gone(None, ConnectionError("the queue is gone"))

    def _gone(self, _sender: Any, error: Any) -> None:
        if not self.lost.done():
            self.lost.set_result(error or "it was closed")


def _is_refusal(error: BaseException) -> bool:
    """Whether the broker will never let us in."""
    from aiormq.exceptions import AuthenticationError, ProbableAuthenticationError

    return isinstance(error, (AuthenticationError, ProbableAuthenticationError))


def _with_heartbeat(url: str, seconds: int) -> str:
    """The address with a heartbeat, unless it has one: aio-pika takes it from nowhere else."""
    if seconds < 0:
        raise ValueError("a heartbeat takes whole seconds, or 0 for none")
    parts = urlsplit(url)
    if "heartbeat" in parse_qs(parts.query):
        return url
    query = f"{parts.query}&heartbeat={seconds}" if parts.query else f"heartbeat={seconds}"
    return urlunsplit(parts._replace(query=query))


async def _quietly(work: Any) -> None:
    """What can only fail because the connection is lost; the broker then does the right thing by itself."""
    try:
        await work
    except Exception as error:
        log.debug("the connection to the broker is lost: %s", error)
