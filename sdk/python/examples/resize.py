"""A worker for the service `resize`: scales the sizes of pictures, page by page.

Over HTTP: `python resize.py`. Over RabbitMQ: `RELAIS_BROKER_URL=amqp://… python resize.py`.
"""

import logging
from dataclasses import dataclass

from relais import Context, Failure, Worker


@dataclass
class Order:
    """What a consumer asks for."""

    sizes: list[list[int]]
    scale: float = 0.5


def resize(order: Order, context: Context) -> dict[str, list[list[int]]]:
    """Runs in a thread, so it may block. What it returns is the result, what it raises the failure."""
    if order.scale <= 0:
        raise Failure(f"a scale of {order.scale} leaves nothing", retryable=False)
    done = []
    for width, height in order.sizes:
        context.check()  # Cancelled, or out of time: there is no point in going on.
        done.append([round(width * order.scale), round(height * order.scale)])
        context.progress(100 * len(done) / len(order.sizes))
    return {"sizes": done}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    # The rest is in the environment: RELAIS_BROKER_URL, or RELAIS_URL, RELAIS_CLIENT and RELAIS_SECRET.
    Worker(resize, service="resize").run()
