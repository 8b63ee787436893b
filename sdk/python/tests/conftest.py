"""What every test may ask for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from house import CONSUMER, WORKER, ManualWorker, RelaisServer, Vhost, WorkerProcess
from relais import Client


def pytest_configure(config: pytest.Config) -> None:
    if sys.version_info < (3, 11):
        # The last aio-pika for this version leaves closing the socket to the garbage collector.
        config.addinivalue_line("filterwarnings", "ignore:unclosed transport:ResourceWarning")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelaisServer]:
    """A server that the tests of a module share; each has services of its own."""
    server = RelaisServer(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def service(server: RelaisServer) -> str:
    """A service of one's own."""
    return server.service()


@pytest.fixture
def client(server: RelaisServer) -> Iterator[Client]:
    with Client(server.url, *CONSUMER) as client:
        yield client


@pytest.fixture
def manual(server: RelaisServer, service: str) -> Iterator[ManualWorker]:
    """A worker by hand on that service."""
    manual = ManualWorker(server, service)
    yield manual
    manual.close()


@pytest.fixture
def vhost() -> Iterator[Vhost]:
    vhost = Vhost()
    yield vhost
    vhost.close()


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts workers as processes; they are gone when the test is."""
    started: list[WorkerProcess] = []

    def start(*arguments: str, **settings: str) -> WorkerProcess:
        secrets = {"RELAIS_CLIENT": WORKER[0], "RELAIS_SECRET": WORKER[1]}
        process = WorkerProcess(*arguments, directory=tmp_path, **{**secrets, **settings})
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()
