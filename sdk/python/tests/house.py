"""The real things that tests run against: a `relais` server of their own, and virtual hosts of a RabbitMQ node.

RELAIS_BIN is the server's binary, RELAIS_TEST_RABBITMQ a running node with an administrator and `?management_port=`.
A missing one is a failure, never a silent skip.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

import aio_pika
import httpx

T = TypeVar("T")

DEADLINE = 30.0
"""How long anything may take on a busy machine."""

CONSUMER = ("consumer", "consumer-secret")
WORKER = ("worker", "worker-secret")

SDK = Path(__file__).resolve().parent.parent

_numbers = itertools.count(1)


def until(what: str, look: Callable[[], T | None], deadline: float = DEADLINE) -> T:
    """Looks until there is something to see: for what nobody tells."""
    start = time.monotonic()
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() - start > deadline:
            raise AssertionError(f"not within {deadline:.0f} s: {what}")
        time.sleep(0.01)


def environment(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise RuntimeError(f"{name} is not set; `cargo xtask test` sets it, see CONTRIBUTING.md")
    return value


def free_port() -> int:
    """A port that nobody listens on, and that is nobody's end of a connection: those are chosen from 32768 on."""
    for _ in range(1000):
        port = 10_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("there is no free port")


class RelaisServer:
    """A server on SQLite, which may be stopped, killed and started again."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._admin = httpx.Client(base_url=self.url, timeout=DEADLINE)
        self.start()
        clients = [{"clientId": name, "clientSecret": secret} for name, secret in (CONSUMER, WORKER)]
        self.declare(clients=clients)

    def start(self) -> None:
        command = [environment("RELAIS_BIN"), "serve", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--database", "sqlite:test.db", "--log-format", "json"]
        with (self.directory / "server.log").open("ab") as log:
            settings = {"RELAIS_AUTH_BCRYPT_COST": "4", **self._settings}
            self._process = subprocess.Popen(
                command, cwd=self.directory, env={**os.environ, **settings}, stdin=subprocess.DEVNULL, stderr=log
            )
        until("the server is ready", self._ready)

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            log = (self.directory / "server.log").read_text()
            raise AssertionError(f"the server ended ({self._process.returncode}) instead of starting\n{log}")
        try:
            return self._admin.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(DEADLINE)

    def close(self) -> None:
        self.kill()
        self._admin.close()

    def declare(self, **declaration: Any) -> None:
        answer = self._admin.post("/admin/apply", json=declaration)
        assert answer.is_success, answer.text

    def service(self, name: str | None = None, **settings: Any) -> str:
        """Declares a service of one's own, which the consumer may use and the worker work on."""
        name = name or f"service-{next(_numbers)}"
        roles = [
            {"clientId": CONSUMER[0], "serviceName": name, "roles": ["consume"]},
            {"clientId": WORKER[0], "serviceName": name, "roles": ["work"]},
        ]
        self.declare(services=[{"serviceName": name, **settings}], authorizations=roles)
        return name

    def task(self, task_id: str) -> dict[str, Any]:
        """A task as operators see it."""
        answer = self._admin.get(f"/admin/tasks/{task_id}")
        assert answer.is_success, answer.text
        data: dict[str, Any] = answer.json()["data"]
        return data


class ManualWorker:
    """A worker that a test drives, one call at a time."""

    def __init__(self, server: RelaisServer, service: str) -> None:
        self._http = httpx.Client(base_url=f"{server.url}/v1/services/{service}/", auth=WORKER, timeout=DEADLINE)

    def claim(self, lease: str = "60s") -> dict[str, Any]:
        tasks = self.call("claims", wait="20s", lease=lease, hostName="by hand")["tasks"]
        assert tasks, "there is nothing to claim"
        task: dict[str, Any] = tasks[0]
        return task

    def report(self, task: Mapping[str, Any], **data: Any) -> str:
        outcomes = self.call(
            "messages", messages=[{"taskId": task["taskId"], "attempt": task["attempt"], "data": data}]
        )
        return str(outcomes["outcomes"][0]["outcome"])

    def call(self, verb: str, **body: Any) -> dict[str, Any]:
        answer = self._http.post(verb, json=body)
        assert answer.is_success, answer.text
        data: dict[str, Any] = answer.json()["data"]
        return data

    def close(self) -> None:
        self._http.close()


class Vhost:
    """A virtual host for one test, on the node that the tests share."""

    def __init__(self) -> None:
        node = urlsplit(environment("RELAIS_TEST_RABBITMQ"))
        user, password = node.username or "guest", node.password or "guest"
        management = parse_qs(node.query).get("management_port", ["15672"])[0]
        self.name = f"relais_python_{os.getpid()}_{secrets.token_hex(6)}"
        self.host, self.port = node.hostname or "127.0.0.1", node.port or 5672
        self._user, self._password = user, password
        self.management = f"http://{quote(user)}:{quote(password)}@{self.host}:{management}"
        self._http = httpx.Client(base_url=f"{self.management}/api/", timeout=DEADLINE)
        self._call("PUT", f"vhosts/{self.name}")
        self._call("PUT", f"permissions/{self.name}/{user}", {"configure": ".*", "write": ".*", "read": ".*"})

    @property
    def url(self) -> str:
        return self.url_via(self.port)

    def url_via(self, port: int) -> str:
        """Through another port, such as a proxy's."""
        return f"amqp://{quote(self._user)}:{quote(self._password)}@{self.host}:{port}/{self.name}"

    def declare(self, queue: str, **arguments: Any) -> None:
        self._call("PUT", f"queues/{self.name}/{queue}", {"durable": True, "arguments": arguments})

    def delete(self, queue: str) -> None:
        self._call("DELETE", f"queues/{self.name}/{queue}")

    def publish(self, queue: str, body: str | bytes) -> None:
        text = body if isinstance(body, str) else body.decode()
        options = {
            "properties": {"delivery_mode": 2},
            "routing_key": queue,
            "payload": text,
            "payload_encoding": "string",
        }
        answer = self._call("POST", f"exchanges/{self.name}/amq.default/publish", options)
        assert answer == {"routed": True}, answer

    def take(self, queue: str, count: int = 1000) -> list[dict[str, Any]]:
        """Takes messages out of a queue for good."""
        options = {"count": count, "ackmode": "ack_requeue_false", "encoding": "base64"}
        answer: list[dict[str, Any]] = self._call("POST", f"queues/{self.name}/{queue}/get", options)
        for message in answer:
            message["body"] = b64decode(message["payload"]).decode()
        return answer

    def take_one(self, queue: str) -> dict[str, Any]:
        """The next message, which must come."""
        return until(f"a message in {queue}", lambda: self.take(queue, 1))[0]

    def look(self, queue: str) -> None:
        """Takes a message and puts it back: the next one to have it is told that somebody had it before."""
        options = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
        assert self._call("POST", f"queues/{self.name}/{queue}/get", options)

    def ready(self, queue: str) -> int:
        """How many messages wait in it, this very moment."""

        async def ask() -> int:
            async with await aio_pika.connect(self.url) as connection:
                channel = await connection.channel()
                declared = await channel.declare_queue(queue, passive=True)
                return declared.declaration_result.message_count or 0

        return asyncio.run(ask())

    def heartbeats(self) -> list[int]:
        """What workers and broker have agreed on."""
        return [each["timeout"] for each in self._call("GET", f"vhosts/{self.name}/connections") if "timeout" in each]

    def queues(self) -> list[str]:
        return [queue["name"] for queue in self._call("GET", f"queues/{self.name}")]

    def policy(self, name: str, pattern: str, definition: dict[str, Any]) -> None:
        options = {"pattern": pattern, "definition": definition, "apply-to": "queues"}
        self._call("PUT", f"policies/{self.name}/{name}", options)

    def queue(self, queue: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._call("GET", f"queues/{self.name}/{queue}")
        return answer

    def close(self) -> None:
        self._call("DELETE", f"vhosts/{self.name}")
        self._http.close()

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._http.request(method, path, json=body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None


class Proxy:
    """Passes connections on to a port, until they are cut. Nobody is let in while it is closed."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_port()
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Cuts what there is, and lets nobody in."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._connections += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


class Tls:
    """Speaks TLS before a port, with a certificate that nobody trusts but who is given `ca`."""

    def __init__(self, target: int, directory: Path) -> None:
        self._target = target
        self.ca = directory / "ca.pem"
        key = directory / "key.pem"
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        make += ["-days", "2", "-subj", "/CN=relais test", "-addext", "subjectAltName=IP:127.0.0.1"]
        make += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign", "-keyout", str(key), "-out", str(self.ca)]
        subprocess.run(make, check=True, capture_output=True)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.ca, key)
        self.port = 0
        self._open, self._closed = threading.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        assert self._open.wait(DEADLINE)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(DEADLINE)
        self._loop.close()

    async def _serve(self) -> None:
        connections: set[asyncio.Task[Any]] = set()

        async def accept(near: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
            far, ask = await asyncio.open_connection("127.0.0.1", self._target)
            for source, sink in ((near, ask), (far, answer)):
                connections.add(asyncio.ensure_future(self._pass(source, sink)))

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._open.set()
        await self._closed.wait()
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        finally:
            sink.transport.abort()


class WorkerProcess:
    """`python -m relais worker …` as a process of its own. Its handlers are in `handlers.py`."""

    def __init__(self, *arguments: str, directory: Path, **settings: str) -> None:
        self._log = directory / f"worker-{next(_numbers)}.log"
        paths = os.pathsep.join([str(SDK / "src"), str(SDK / "tests")])
        self.directory = directory
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "relais", "worker", *arguments],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": paths, **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """How it ended."""
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the worker does not end\n{self.log}") from None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
