"""All of it together: submitted over HTTP, carried by RabbitMQ, done by a worker here, followed to the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from house import CONSUMER, DEADLINE, WORKER, RelaisServer, Vhost, WorkerProcess, until
from relais import Client, Context, Failure, Http, RabbitMq, Refused, Status, Submitted, TryAgain, Worker
from workers import Gate, running


@pytest.fixture(scope="module")
def broker() -> Iterator[Vhost]:
    vhost = Vhost()
    yield vhost
    vhost.close()


@pytest.fixture(scope="module")
def carried(broker: Vhost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelaisServer]:
    """A server with a broker."""
    settings = {"RELAIS_BROKER_URL": broker.url, "RELAIS_BROKER_MANAGEMENT_URL": broker.management}
    server = RelaisServer(tmp_path_factory.mktemp("server"), **settings)
    yield server
    server.close()


@pytest.fixture
def asking(carried: RelaisServer) -> Iterator[Client]:
    with Client(carried.url, *CONSUMER) as client:
        yield client


@pytest.fixture
def images(carried: RelaisServer, broker: Vhost, request: pytest.FixtureRequest) -> str:
    """A service of one's own, whose queues have its name. What fails on it is tried again.

    They are there before it: into a queue that it has to make, the server puts everything that is not finished, which
    may then be published twice.
    """
    name: str = request.node.name[:60]
    for queue in (f"{name}-in", f"{name}-out"):
        broker.declare(queue)
    return carried.service(name, transport="rabbitmq", retry={"limit": 2, "base": "50ms"})


Build = Callable[..., Worker]


@pytest.fixture
def worker(broker: Vhost, images: str) -> Build:
    def build(handler: Callable[..., Any], **options: Any) -> Worker:
        return Worker(handler, RabbitMq(images, broker.url, host_name="pod-1"), **options)

    return build


def test_a_task_goes_all_the_way(carried: RelaisServer, asking: Client, images: str, worker: Build) -> None:
    halfway, go_on = threading.Event(), threading.Event()

    def double(body: dict[str, Any], context: Context) -> dict[str, Any]:
        context.progress(50)
        halfway.set()
        assert go_on.wait(DEADLINE)
        if body["n"] < 0:
            raise Failure("there is less than nothing", retryable=False)
        return {"n": 2 * body["n"], "of": context.task_id, "correlation": context.correlation_id}

    with running(worker(double)) as run:
        task_id = asking.submit(images, {"n": 2**70}, correlation_id="order 7").task_id
        for event in asking.stream(images, task_id):
            if event.task.progress == 50.0:
                assert carried.task(task_id)["workerHost"] == "pod-1"
                go_on.set()
        result = asking.get(images, task_id).result()
        assert result == {"n": 2**71, "of": task_id, "correlation": "order 7"}
        failed = asking.wait(images, asking.submit(images, {"n": -1}).task_id, timeout=DEADLINE)
        assert (failed.status, failed.error_message) == (Status.FAILURE, "there is less than nothing")
        report = run.stop()
        assert (report.done, report.failed) == (1, 1)


def test_a_returned_task_is_pending_again_without_a_loss(
    carried: RelaisServer, asking: Client, images: str, worker: Build
) -> None:
    gate = Gate()
    with running(worker(gate, grace=0.0)) as run:
        task_id = asking.submit(images, {}).task_id
        gate.wait_begun()
        assert run.stop().returned == 1
    until("it is pending", lambda: asking.get(images, task_id).status is Status.PENDING)
    turns: list[bool] = []

    def later(body: Any, context: Context) -> bool:
        turns.append(context.redelivered)
        if len(turns) < 2:
            raise TryAgain(after=0.0)
        return context.redelivered

    with running(worker(later)):
        assert asking.wait(images, task_id, timeout=DEADLINE).result() is True
    assert turns == [True, True]
    assert carried.task(task_id)["losses"] == 0


def test_a_task_of_a_crashed_worker_is_run_by_another(
    carried: RelaisServer,
    broker: Vhost,
    asking: Client,
    images: str,
    spawn: Callable[..., WorkerProcess],
    tmp_path: Path,
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    arguments = ("handlers:act", "--service", images, "--broker", "--once")
    first = spawn(*arguments, RELAIS_BROKER_URL=broker.url)
    task_id = asking.submit(images, {"begun": str(begun), "until": str(go_on)}).task_id
    until("it has begun", begun.exists)
    until("its start is known", lambda: asking.get(images, task_id).status is Status.IN_PROGRESS)
    second = spawn(*arguments, RELAIS_BROKER_URL=broker.url)
    first.process.kill()
    first.wait()
    go_on.touch()
    result = asking.wait(images, task_id, timeout=DEADLINE).result()
    assert result == {"pid": second.process.pid, "redelivered": True}
    assert second.wait() == 0, second.log
    assert carried.task(task_id)["losses"] == 1


def test_many_tasks_all_run(asking: Client, images: str, worker: Build) -> None:
    async def echo(body: dict[str, Any]) -> Any:
        return body["n"]

    with running(worker(echo, concurrency=16)) as run:
        results = asking.submit_many(images, [{"n": n} for n in range(300)])
        ids = [result.task_id for result in results if isinstance(result, Submitted)]
        done = [asking.wait(images, task_id, timeout=DEADLINE).result() for task_id in ids]
        assert done == list(range(300))
        assert run.stop().done == 300


def test_a_failing_task_is_retried_and_each_attempt_is_shown(
    carried: RelaisServer, asking: Client, images: str, worker: Build
) -> None:
    turns: list[str] = []

    def third_time_lucky(body: Any, context: Context) -> int:
        turns.append(context.task_id)
        if len(turns) == 1:
            raise ValueError("bad width")
        if len(turns) == 2:
            raise Failure("no paper", kind="paper", retry_after=0.01)
        return len(turns)

    with running(worker(third_time_lucky)) as run:
        task_id = asking.submit(images, {}).task_id
        assert asking.wait(images, task_id, timeout=DEADLINE).result() == 3
        assert run.stop().failed == 2
    assert turns == [task_id] * 3
    attempts = carried.task(task_id)["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["failure", "failure", "success"]
    assert [attempt.get("errorKind") for attempt in attempts] == ["ValueError", "paper", None]
    assert "in third_time_lucky" in attempts[0]["errorTrace"]


def test_a_failure_that_is_not_retryable_is_final(
    carried: RelaisServer, asking: Client, images: str, worker: Build
) -> None:
    def fail(body: Any) -> None:
        raise Failure("never", retryable=False, kind="paper")

    with running(worker(fail)):
        task = asking.wait(images, asking.submit(images, {}).task_id, timeout=DEADLINE)
    assert (task.status, task.error_kind) == (Status.FAILURE, "paper")
    assert len(carried.task(task.task_id)["attempts"]) == 1


def test_a_delayed_task_is_published_when_it_is_due(asking: Client, images: str, worker: Build) -> None:
    with running(worker(lambda body: "done")):
        later = asking.submit(images, {}, delay=0.4, unique_key="album 7", unique_for=3600)
        assert asking.submit(images, {}, unique_key="album 7", unique_for=3600).duplicate
        at_once = asking.wait(images, asking.submit(images, {}).task_id, timeout=DEADLINE)
        done = asking.wait(images, later.task_id, timeout=DEADLINE)
    assert (at_once.result(), done.result()) == ("done", "done")
    assert done.scheduled_date is not None
    assert done.start_date is not None
    assert done.start_date >= done.scheduled_date


def test_a_worker_over_http_without_its_service_ends_with_the_reason(carried: RelaisServer, images: str) -> None:
    with running(Worker(Gate(), Http(images, carried.url, *WORKER))) as run:
        with pytest.raises(Refused) as refused:
            run.ended()
        assert refused.value.number == 409003


def test_a_task_that_crashes_its_workers_fails_at_its_delivery_limit(
    carried: RelaisServer, broker: Vhost, asking: Client, spawn: Callable[..., WorkerProcess]
) -> None:
    for queue in ("poison-in", "poison-out"):
        broker.declare(queue)
    service = carried.service("poison", transport="rabbitmq", deliveryLimit=2)
    task_id = asking.submit(service, {}).task_id
    for _ in range(4):  # The first may die before anybody knows that it began.
        spawn("handlers:die", "--service", service, "--idle", "5", RELAIS_BROKER_URL=broker.url).wait()
    task = asking.wait(service, task_id, timeout=DEADLINE)
    assert (task.status, task.error_kind) == (Status.FAILURE, "lost")
