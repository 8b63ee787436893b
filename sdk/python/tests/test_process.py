"""`python -m relais worker` as a process of its own: signals, sudden death, exit statuses."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from house import DEADLINE, RelaisServer, Vhost, WorkerProcess, until
from relais import Client, Status

Spawn = Callable[..., WorkerProcess]

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.fixture
def http(spawn: Spawn, server: RelaisServer, service: str) -> Spawn:
    """Workers over HTTP."""

    def start(handler: str, *arguments: str, **settings: str) -> WorkerProcess:
        return spawn(handler, "--service", service, "--url", server.url, *arguments, **settings)

    return start


@pytest.fixture
def amqp(spawn: Spawn, vhost: Vhost) -> Spawn:
    """Workers over RabbitMQ."""

    def start(handler: str, *arguments: str) -> WorkerProcess:
        return spawn(handler, "--service", "resize", "--broker", *arguments, RELAIS_BROKER_URL=vhost.url)

    return start


def exists(path: Path) -> None:
    until(f"{path.name} is there", path.exists)


def submission(**body: Any) -> str:
    return json.dumps({"taskId": "t1", "data": {"messageType": "submission", "body": body}})


def test_at_sigterm_it_finishes_and_exits_with_0(http: Spawn, client: Client, service: str, tmp_path: Path) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    worker = http("handlers:act")
    task_id = client.submit(service, {"begun": str(begun), "until": str(go_on)}).task_id
    exists(begun)
    worker.signal(TERM)
    until("it has heard", lambda: "SIGTERM: no new task is taken" in worker.log)
    go_on.touch()
    assert worker.wait() == 0, worker.log
    assert client.get(service, task_id).result()["pid"] == worker.process.pid


@pytest.mark.parametrize("handler", ["act", "patient", "stubborn"])
def test_after_the_grace_period_a_worker_returns_its_task_and_exits_with_0(
    http: Spawn, server: RelaisServer, client: Client, service: str, tmp_path: Path, handler: str
) -> None:
    begun = tmp_path / "begun"
    worker = http(f"handlers:{handler}", "--grace", "0")
    task_id = client.submit(service, {"begun": str(begun), "until": str(tmp_path / "never")}).task_id
    exists(begun)
    worker.signal(INT)
    assert worker.wait() == 0, worker.log
    assert client.get(service, task_id).status is Status.PENDING
    assert server.task(task_id)["losses"] == 0


def test_a_second_signal_stops_at_once(http: Spawn, client: Client, service: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    worker = http("handlers:act", "--grace", "600")
    task_id = client.submit(service, {"begun": str(begun), "until": str(tmp_path / "never")}).task_id
    exists(begun)
    worker.signal(TERM)
    until("it has heard", lambda: "SIGTERM: no new task is taken" in worker.log)
    worker.signal(TERM)
    assert worker.wait() == 0, worker.log
    assert client.get(service, task_id).status is Status.PENDING


def test_a_task_of_a_crashed_worker_is_run_by_another(
    http: Spawn, server: RelaisServer, client: Client, service: str, tmp_path: Path
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    first = http("handlers:act", "--lease", "1")
    task_id = client.submit(service, {"begun": str(begun), "until": str(go_on)}).task_id
    exists(begun)
    first.process.kill()
    first.wait()
    go_on.touch()
    second = http("handlers:act", "--once")
    result = client.wait(service, task_id, timeout=DEADLINE).result()
    assert result == {"pid": second.process.pid, "redelivered": True}
    assert second.wait() == 0, second.log
    assert server.task(task_id)["losses"] == 1


def test_a_task_of_a_crashed_worker_over_rabbitmq_is_run_by_another(amqp: Spawn, vhost: Vhost, tmp_path: Path) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    for queue in ("resize-in", "resize-out"):
        vhost.declare(queue)
    vhost.publish("resize-in", submission(begun=str(begun), until=str(go_on)))
    first = amqp("handlers:act")
    exists(begun)
    until("it is told that it has begun", lambda: vhost.ready("resize-out") == 1)
    second = amqp("handlers:act", "--once")
    first.process.kill()
    first.wait()
    go_on.touch()
    assert second.wait() == 0, second.log
    messages = [json.loads(message["body"])["data"] for message in vhost.take("resize-out")]
    assert [message["messageType"] for message in messages] == ["started", "started", "success"]
    assert messages[-1]["response"] == {"pid": second.process.pid, "redelivered": True}
    assert vhost.take("resize-in") == []


def test_at_sigterm_over_rabbitmq_it_returns_its_task(amqp: Spawn, vhost: Vhost, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    vhost.declare("resize-in")
    vhost.publish("resize-in", submission(begun=str(begun), until=str(tmp_path / "never")))
    worker = amqp("handlers:act", "--grace", "0")
    exists(begun)
    worker.signal(TERM)
    assert worker.wait() == 0, worker.log
    (message,) = vhost.take("resize-in")
    assert message["redelivered"] is True
    kinds = [json.loads(message["body"])["data"]["messageType"] for message in vhost.take("resize-out")]
    assert kinds == ["started", "returned"]


def test_once_runs_one_task_even_if_it_fails(http: Spawn, client: Client, service: str) -> None:
    task_id = client.submit(service, {"fail": "no such picture"}).task_id
    worker = http("handlers:act", "--once")
    assert worker.wait() == 0, worker.log
    assert client.get(service, task_id).error_message == "no such picture"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["handlers:act", "--client", "stranger"], 1, "403001"),
        (["handlers:nothing"], 2, "has no attribute 'nothing'"),
        (["handlers:not_a_function"], 2, "is not a function"),
        (["no_such_module:act"], 2, "No module named"),
        (["handlers"], 2, "module:function"),
        (["handlers:act", "--concurrency", "0"], 2, "concurrency"),
        (["handlers:act", "--broker", "http://x"], 2, "amqp://"),
    ],
)
def test_a_refused_worker_ends_with_the_reason(http: Spawn, arguments: list[str], status: int, says: str) -> None:
    worker = http(*arguments)
    assert worker.wait() == status, worker.log
    assert says in worker.log
