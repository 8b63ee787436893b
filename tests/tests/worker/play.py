"""A worker of the Python library that does what its tasks say, and tells the test what it does; see foreign.rs.

Its handler is a plain function, so that it can be one that never stops, whatever it is told.
"""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from relais import Context, Failure, Http, RabbitMq, TryAgain, Worker


@dataclass
class Order:
    """What a task asks for, as in stage.rs."""

    do: Literal["double", "fail", "panic", "progress", "stumble", "wait", "never", "again", "know"]
    n: int = 0
    message: str = ""
    percent: int = 0


_speech = threading.Lock()
_waiting: dict[str, threading.Event] = {}
_starts: Counter[str] = Counter()


def say(**what: Any) -> None:
    """Tells the test."""
    with _speech:
        print(json.dumps(what), flush=True)


def listen(lines: Iterable[bytes]) -> None:
    """Lets tasks go, by their ids."""
    for line in lines:
        _waiting[json.loads(line)].set()
    os._exit(1)  # The test is gone.


def play(order: Order, context: Context) -> Any:
    """Does what it is told."""
    _starts[context.task_id] += 1
    say(start=context.task_id)
    try:
        return act(order, context)
    finally:
        say(leave=context.task_id)


def act(order: Order, context: Context) -> Any:
    """Ends as the order says."""
    match order.do:
        case "double":
            return 2 * order.n
        case "fail":
            raise Failure(order.message, retryable=False, kind="told")
        case "panic":
            raise RuntimeError("told to")
        case "progress":
            for step in range(10_000):
                context.progress(step % 100)
            context.progress(order.percent)
            return wait(context)
        case "stumble":
            context.progress(order.percent)
            raise Failure("stumbled")
        case "wait":
            return wait(context)
        case "never":
            return threading.Event().wait()
        case "again":
            if _starts[context.task_id] == 1:
                raise TryAgain
            return _starts[context.task_id]
        case "know":
            return {
                "taskId": context.task_id,
                "attempt": context.attempt,
                "redelivered": context.redelivered,
                "correlationId": context.correlation_id,
                "deadline": context.deadline is not None,
            }


def wait(context: Context) -> Any:
    """Until the test lets it go, or it is told to stop."""
    free = _waiting[context.task_id] = threading.Event()
    say(wait=context.task_id)
    while not free.wait(0.01):
        if context.cancelled.is_set():
            say(stop=context.task_id)
        context.check()
    return {"redelivered": context.redelivered}


def transport(settings: dict[str, Any]) -> Http | RabbitMq:
    """The way that tasks come."""
    url, service, host = settings["url"], settings["service"], settings["hostName"]
    if url.startswith("amqp"):
        return RabbitMq(service, url, host_name=host)
    identity = settings["clientId"], settings["clientSecret"]
    return Http(service, url, *identity, lease=settings["lease"], host_name=host)


def main() -> None:
    """Does tasks until it is told to stop."""
    logging.basicConfig(level=logging.INFO)
    # Without a buffer: its lock would be held by a thread that the process does not wait for.
    lines = io.FileIO(0)
    settings = json.loads(lines.readline())
    threading.Thread(target=listen, args=(lines,), daemon=True).start()
    told = {name: settings[name] for name in ("concurrency", "once", "grace") if name in settings}
    worker = Worker(play, transport(settings), **told)
    # Until it runs and hears it by itself.
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    say(up=True)
    say(report=asdict(worker.run()))


if __name__ == "__main__":
    main()
