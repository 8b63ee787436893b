"""`python -m relais worker module:function …`: a worker without a line of code around its handler."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from .errors import RelaisError
from .wire import read_duration
from .worker import Http, RabbitMq, Transport, Worker, environment

_DESCRIPTION = """
Does the tasks of one service with a function of yours. Over HTTP unless a broker is given.
What is not given is taken from the environment: RELAIS_SERVICE, RELAIS_URL, RELAIS_CLIENT, RELAIS_SECRET,
RELAIS_BROKER_URL, RELAIS_BROKER_ROOT_CERTIFICATES, RELAIS_QUEUE, RELAIS_CONCURRENCY, RELAIS_GRACE,
RELAIS_INTERRUPTIBLE, RELAIS_TIMEOUT, RELAIS_ONCE and RELAIS_IDLE. Secrets belong there, since other users of the
machine can see a command line. S is a number of seconds, or like 1h30m.
At SIGTERM it takes nothing new, finishes or gives back what it has, and exits with 0.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 all is well, 1 the server or the broker refused, 2 the command line is wrong."""
    parser, worker_parser = _parsers()
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for noisy in ("httpx", "httpcore", "aio_pika", "aiormq"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        worker = Worker(
            _load(options.handler),
            _transport(options),
            concurrency=options.concurrency,
            grace=options.grace,
            interruptible=options.interruptible,
            timeout=options.timeout,
            once=options.once,
            idle=options.idle,
            health=options.health,
        )
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        worker_parser.error(str(error))
    log = logging.getLogger("relais.worker")
    try:
        report = worker.run()
    except (RelaisError, ConnectionError, OSError) as error:
        log.error("the worker can not work: %s", error)
        return 1
    log.info("stopped: %s", report)
    return 0


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    flag = argparse.BooleanOptionalAction
    parser = argparse.ArgumentParser(prog="python -m relais", description="Relais in Python.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    worker = commands.add_parser("worker", help="do the tasks of a service", description=_DESCRIPTION)
    worker.add_argument("handler", metavar="MODULE:FUNCTION", help="what does a task; modules of this directory count")
    worker.add_argument("--service", help="the service")
    worker.add_argument("--url", help="the server; with it tasks come over HTTP, whatever the environment says")
    worker.add_argument("--client", help="the client id, which needs the role `work`")
    worker.add_argument("--broker", metavar="URL", nargs="?", const="", help="take tasks from RabbitMQ: amqp://…")
    worker.add_argument("--queue", metavar="NAME", help="over RabbitMQ, its queueName; the service's name if absent")
    worker.add_argument("--heartbeat", type=int, default=10, metavar="N", help="over RabbitMQ, in seconds (10)")
    worker.add_argument("--ca", metavar="FILE", help="over amqps, the broker's certificate authority, if it is private")
    worker.add_argument("--concurrency", type=int, metavar="N", help="how many tasks at once (1)")
    worker.add_argument("--grace", type=read_duration, metavar="S", help="time to finish when told to stop (20)")
    worker.add_argument("--interruptible", action=flag, help="stop tasks at once when told to; grace is for that")
    worker.add_argument("--timeout", type=read_duration, metavar="S", help="fail a task that runs for longer")
    worker.add_argument("--lease", type=read_duration, default=60.0, metavar="S", help="how long it may be silent (60)")
    worker.add_argument("--once", action=flag, help="take one task, then exit: for a Kubernetes Job")
    worker.add_argument("--idle", type=read_duration, metavar="S", help="exit after so long without a task")
    worker.add_argument("--health", metavar="HOST:PORT", help="answer on /livez and /readyz")
    worker.add_argument("--host-name", metavar="NAME", help="shown beside the tasks; this host's if absent")
    worker.add_argument("--decimal", action="store_true", help="read numbers with a point as Decimal")
    worker.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser, worker


def _transport(options: argparse.Namespace) -> Transport:
    parse_float: Callable[[str], Any] = Decimal if options.decimal else float
    broker = environment.text("RELAIS_BROKER_URL") if options.url is None else None
    if options.broker is not None or broker is not None:
        return RabbitMq(
            options.queue or environment.text("RELAIS_QUEUE") or options.service,
            options.broker or broker,
            heartbeat=options.heartbeat,
            ca=options.ca,
            host_name=options.host_name,
            parse_float=parse_float,
        )
    return Http(
        options.service,
        options.url,
        options.client,
        lease=options.lease,
        host_name=options.host_name,
        parse_float=parse_float,
    )


def _load(name: str) -> Callable[..., Any]:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(f"{name!r} is not like module:function")
    sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is not a function")
    function: Callable[..., Any] = found
    return function


if __name__ == "__main__":
    sys.exit(main())
