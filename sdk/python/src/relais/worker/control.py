"""What is said over RabbitMQ beside tasks: that some of them are nobody's to work on any more.

Heard by a queue of one's own at the exchange `<queueName>-control`. What is said while nobody listens is said again
when the task is next spoken of.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..wire import loads

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection, AbstractExchange, AbstractIncomingMessage

log = logging.getLogger("relais.worker")

_OUTCOMES = ("cancelled", "ended", "lost")

_MOST_WAITING = 10_000
"""So many messages wait for a worker that is slow to hear; the oldest are dropped."""


@dataclass
class Stop:
    """A task that is not wanted any more, as it was published before `revision`."""

    task_id: str
    outcome: str
    revision: int


def read_stops(message: Any) -> list[Stop]:
    """Those of a message; nonsense is passed over."""
    outcomes = message.get("outcomes") if isinstance(message, dict) else None
    stops = []
    for told in outcomes if isinstance(outcomes, list) else []:
        if not isinstance(told, dict):
            continue
        task_id, outcome, revision = told.get("taskId"), told.get("outcome"), told.get("revision")
        if isinstance(task_id, str) and outcome in _OUTCOMES and isinstance(revision, int):
            stops.append(Stop(task_id, outcome, revision))
    return stops


async def listen(connection: AbstractConnection, exchange: str, heed: Callable[[list[Stop]], None]) -> None:
    """Listens for as long as the connection holds. Raises what the broker does not allow, which harms nothing else."""
    source = await _exchange(connection, exchange)
    channel = await connection.channel(publisher_confirms=False)
    # Of a kind that can be somebody's own, whatever is usual in this virtual host.
    arguments: Any = {"x-queue-type": "classic", "x-max-length": _MOST_WAITING}
    name = f"{exchange}.{secrets.token_hex(8)}"
    queue = await channel.declare_queue(name, exclusive=True, auto_delete=True, arguments=arguments)
    await queue.bind(source)

    async def heard(message: AbstractIncomingMessage) -> None:
        try:
            stops = read_stops(loads(message.body))
        except ValueError:
            return  # Of a version that says more than is understood here.
        heed(stops)

    await queue.consume(heard, no_ack=True, exclusive=True)


async def _exchange(connection: AbstractConnection, name: str) -> AbstractExchange:
    """Looks first: whoever may not make one may still use it."""
    import aio_pika

    channel = await connection.channel(publisher_confirms=False)
    exchange: AbstractExchange
    try:
        exchange = await channel.get_exchange(name)
    except aio_pika.exceptions.ChannelNotFoundEntity:
        channel = await connection.channel(publisher_confirms=False)
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.FANOUT, durable=True)
    await channel.close()
    return exchange
