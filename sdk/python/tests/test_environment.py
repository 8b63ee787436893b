"""Workers that are told everything by their environment, as the Helm chart does (`runner: false`)."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from house import WORKER, RelaisServer, Vhost, WorkerProcess, until
from relais import Client, Http, RabbitMq, Status, Worker
from relais.worker import environment

Spawn = Callable[..., WorkerProcess]

CHART = {"RELAIS_URL": "http://relais.relais.svc:8080", "RELAIS_SERVICE": "resize", "RELAIS_CONCURRENCY": "1"}
JOB = {**CHART, "RELAIS_GRACE": "1780s", "RELAIS_ONCE": "true", "RELAIS_IDLE": "60s", "RELAIS_INTERRUPTIBLE": "false"}
DEPLOYMENT = {**CHART, "RELAIS_GRACE": "100s", "RELAIS_ONCE": "false", "RELAIS_INTERRUPTIBLE": "true"}


def submission(task_id: str, **body: Any) -> str:
    return json.dumps({"taskId": task_id, "data": {"messageType": "submission", "body": body}})


def test_a_job_over_rabbitmq_does_one_task_and_exits_with_0(spawn: Spawn, vhost: Vhost) -> None:
    for queue in ("images-in", "images-out"):
        vhost.declare(queue)
    for task_id in ("t1", "t2"):
        vhost.publish("images-in", submission(task_id))
    said = {**JOB, "RELAIS_BROKER_URL": vhost.url, "RELAIS_QUEUE": "images", "RELAIS_TIMEOUT": "1800s"}
    worker = spawn("handlers:act", **said)
    assert worker.wait() == 0, worker.log
    told = [json.loads(message["body"]) for message in vhost.take("images-out")]
    assert [message["taskId"] for message in told if message["data"]["messageType"] == "success"] == ["t1"]
    assert [json.loads(message["body"])["taskId"] for message in vhost.take("images-in")] == ["t2"]


def test_a_deployment_over_http_is_interrupted_at_once_and_exits_with_0(
    spawn: Spawn, server: RelaisServer, client: Client, service: str, tmp_path: Path
) -> None:
    worker = spawn("handlers:act", **{**DEPLOYMENT, "RELAIS_URL": server.url, "RELAIS_SERVICE": service})
    begun = tmp_path / "begun"
    task_id = client.submit(service, {"begun": str(begun), "until": str(tmp_path / "never")}).task_id
    until("it has begun", begun.exists)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    assert client.get(service, task_id).status is Status.PENDING


def test_a_task_past_its_timeout_fails(
    spawn: Spawn, server: RelaisServer, client: Client, service: str, tmp_path: Path
) -> None:
    said = {**JOB, "RELAIS_URL": server.url, "RELAIS_SERVICE": service, "RELAIS_TIMEOUT": "1s"}
    worker = spawn("handlers:act", **said)
    task_id = client.submit(service, {"until": str(tmp_path / "never")}).task_id
    assert worker.wait() == 0, worker.log
    task = client.get(service, task_id)
    assert (task.error_kind, task.error_message) == ("timeout", "It ran for longer than it may.")


def test_a_job_for_which_there_is_no_task_exits_with_0(spawn: Spawn, vhost: Vhost) -> None:
    worker = spawn("handlers:act", **{**JOB, "RELAIS_BROKER_URL": vhost.url, "RELAIS_IDLE": "1s"})
    assert worker.wait() == 0, worker.log


def test_the_command_line_wins_over_the_environment(
    spawn: Spawn, server: RelaisServer, client: Client, service: str, vhost: Vhost
) -> None:
    said = {**DEPLOYMENT, "RELAIS_BROKER_URL": vhost.url, "RELAIS_QUEUE": "images", "RELAIS_CONCURRENCY": "0"}
    given = ["--url", server.url, "--service", service, "--concurrency", "2", "--once"]
    worker = spawn("handlers:act", *given, **said)
    task_id = client.submit(service, {}).task_id
    assert worker.wait() == 0, worker.log
    assert client.get(service, task_id).status is Status.SUCCESS


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RELAIS_CONCURRENCY", "many", "RELAIS_CONCURRENCY is 'many'"),
        ("RELAIS_GRACE", "soon", "RELAIS_GRACE: 'soon' is not a duration"),
        ("RELAIS_ONCE", "perhaps", "RELAIS_ONCE is 'perhaps'"),
        ("RELAIS_SERVICE", "", "a service is needed"),
    ],
)
def test_an_invalid_setting_is_refused_by_its_name(spawn: Spawn, name: str, value: str, says: str) -> None:
    worker = spawn("handlers:act", **{**JOB, name: value})
    assert worker.wait() == 2, worker.log
    assert says in worker.log


def test_a_program_needs_no_more_than_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**JOB, "RELAIS_CLIENT": WORKER[0], "RELAIS_SECRET": WORKER[1]}.items():
        monkeypatch.setenv(name, value)
    assert isinstance(Worker(len)._transport, Http)
    monkeypatch.setenv("RELAIS_BROKER_URL", "amqp://rabbitmq")
    transport = Worker(len, service="prints")._transport
    assert isinstance(transport, RabbitMq)
    assert transport.settings == ("amqp://rabbitmq?heartbeat=10", "prints-in", "prints-out")
    monkeypatch.setenv("RELAIS_QUEUE", "images")
    transport = Worker(len, service="prints")._transport
    assert isinstance(transport, RabbitMq)
    assert transport.settings[1] == "images-in"


def test_durations_are_as_people_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, seconds in (
        ("1780s", 1780.0),
        ("1h30m", 5400.0),
        ("250ms", 0.25),
        ("20", 20.0),
        ("0.5", 0.5),
        ("", None),
    ):
        monkeypatch.setenv("RELAIS_GRACE", text)
        assert environment.seconds("RELAIS_GRACE") == seconds
