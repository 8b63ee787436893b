"""A worker over HTTP against a real server."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from house import CONSUMER, DEADLINE, WORKER, ManualWorker, RelaisServer, free_port, until
from relais import Client, Context, Failure, Http, Refused, Status, TaskFailed, TryAgain, Worker
from workers import Gate, running

Handler = Callable[..., Any]


@pytest.fixture
def worker(server: RelaisServer, service: str) -> Callable[..., Worker]:
    def build(
        handler: Handler, lease: float = 60.0, parse_float: Callable[[str], Any] = float, **options: Any
    ) -> Worker:
        transport = Http(service, server.url, *WORKER, lease=lease, host_name="pod-1", parse_float=parse_float)
        return Worker(handler, transport, **options)

    return build


Build = Callable[..., Worker]


def failure(client: Client, service: str, body: Any) -> str:
    task = client.wait(service, client.submit(service, body).task_id, timeout=DEADLINE)
    with pytest.raises(TaskFailed):
        task.result()
    assert task.error_message is not None
    return task.error_message


def test_a_plain_function_does_tasks(server: RelaisServer, client: Client, service: str, worker: Build) -> None:
    def double(body: dict[str, Any], context: Context) -> dict[str, Any]:
        assert threading.current_thread() is not threading.main_thread()
        return {"n": 2 * body["n"], "of": context.task_id, "attempt": context.attempt, "c": context.correlation_id}

    with running(worker(double)) as run:
        submitted = client.submit(service, {"n": 21}, correlation_id="order 7")
        result = client.wait(service, submitted.task_id, timeout=DEADLINE).result()
        assert result == {"n": 42, "of": submitted.task_id, "attempt": 1, "c": "order 7"}
        assert server.task(submitted.task_id)["workerHost"] == "pod-1"
        assert run.stop().done == 1


def test_a_coroutine_does_tasks_and_need_not_take_a_context(client: Client, service: str, worker: Build) -> None:
    async def echo(body: Any) -> Any:
        await asyncio.sleep(0)
        return body

    with running(worker(echo)):
        assert client.run(service, {"n": [1, None, "é"]}, timeout=DEADLINE) == {"n": [1, None, "é"]}


def test_a_typed_body_is_built_and_a_wrong_one_fails_the_task_only(client: Client, service: str, worker: Build) -> None:
    @dataclass
    class Order:
        pages: int
        when: datetime
        title: str = "untitled"

    def describe(order: Order, context: Context) -> Order:
        assert isinstance(order.when, datetime)
        return Order(order.pages + 1, order.when, order.title)

    with running(worker(describe)):
        message = failure(client, service, {"when": "2030-01-01T00:00:00Z"})
        assert message == "the body is not what the handler expects: /pages is missing"
        result = client.run(service, {"pages": 1, "when": "2030-01-01T00:00:00Z", "extra": 1}, timeout=DEADLINE)
        assert result == {"pages": 2, "when": "2030-01-01T00:00:00.000Z", "title": "untitled"}


def test_numbers_keep_their_digits_both_ways(server: RelaisServer, service: str, worker: Build) -> None:
    body = {"big": 2**80 + 1, "long": Decimal("0.1234567890123456789012345"), "tiny": Decimal("1E-400")}
    with (
        running(worker(lambda body: body, parse_float=Decimal)),
        Client(server.url, *CONSUMER, parse_float=Decimal) as client,
    ):
        assert client.run(service, body, timeout=DEADLINE) == body
        huge = {"n": Decimal("1" * 5000)}
        assert client.run(service, huge, timeout=DEADLINE) == huge


def test_failures_have_a_message(client: Client, service: str, worker: Build) -> None:
    def fail(body: dict[str, Any]) -> Any:
        kind = body["kind"]
        if kind == "failure":
            raise Failure("no such picture")
        if kind == "final":
            raise Failure("never", retryable=False)
        if kind == "value":
            raise ValueError("bad width")
        if kind == "silent":
            raise RuntimeError
        if kind == "exit":
            raise SystemExit(3)
        if kind == "stop":
            raise StopIteration(1)
        return {object()} if kind == "set" else {"n": float("nan")}

    with running(worker(fail)) as run:
        said = {kind: failure(client, service, {"kind": kind}) for kind in ("failure", "final", "value", "silent")}
        assert said == {
            "failure": "no such picture",
            "final": "never",
            "value": "ValueError: bad width",
            "silent": "RuntimeError",
        }
        assert failure(client, service, {"kind": "exit"}) == "SystemExit: 3"
        assert "StopIteration" in failure(client, service, {"kind": "stop"})
        for kind in ("set", "nan"):
            assert failure(client, service, {"kind": kind}).startswith(
                "the handler's result can not be written as JSON"
            )
        assert run.stop().failed == 8


def test_an_exception_of_a_coroutine_fails_the_task(client: Client, service: str, worker: Build) -> None:
    async def fail(body: Any) -> None:
        raise SystemExit("enough") if body["exit"] else KeyError("width")

    with running(worker(fail)):
        assert failure(client, service, {"exit": False}) == "KeyError: 'width'"
        assert failure(client, service, {"exit": True}) == "SystemExit: enough"


def test_try_again_returns_the_task_without_a_loss(
    server: RelaisServer, client: Client, service: str, worker: Build
) -> None:
    seen: list[int | None] = []

    def later(body: Any, context: Context) -> str:
        seen.append(context.attempt)
        if len(seen) < 3:
            raise TryAgain(after=0.0)
        return "now"

    with running(worker(later)) as run:
        task_id = client.submit(service, {}).task_id
        assert client.wait(service, task_id, timeout=DEADLINE).result() == "now"
        assert server.task(task_id)["losses"] == 0
        assert run.stop().returned == 2


def test_concurrency_is_limited(client: Client, service: str, worker: Build) -> None:
    gate = Gate()
    with running(worker(gate, concurrency=3)) as run:
        results = client.submit_many(service, [{"n": n} for n in range(5)])
        gate.wait_begun(3)
        assert [task.status for task in client.iter_tasks(service)].count(Status.IN_PROGRESS) == 3
        gate.open.set()
        for result in results:
            assert not isinstance(result, Exception)
            assert client.wait(service, result.task_id, timeout=DEADLINE).result() == "done"
        assert run.stop().done == 5


def test_progress_is_shown_and_a_flood_of_it_delays_nothing(client: Client, service: str, worker: Build) -> None:
    halfway, go_on = threading.Event(), threading.Event()

    def flood(body: Any, context: Context) -> str:
        for step in range(50_000):
            context.progress(step / 1000)
        context.progress(float("nan"))
        halfway.set()
        assert go_on.wait(DEADLINE)
        for _ in range(50_000):
            context.progress(1e9)
        return "done"

    with running(worker(flood)):
        task_id = client.submit(service, {}).task_id
        events = []
        for event in client.stream(service, task_id):
            events.append(event)
            if event.task.progress is not None and event.task.progress > 49:
                go_on.set()
        assert events[-1].task.result() == "done"
        assert halfway.is_set()
        told = [event for event in events if event.kind == "progress"]
        assert 1 <= len(told) < 40


def test_a_failure_shows_the_progress_that_was_reached(client: Client, service: str, worker: Build) -> None:
    async def give_up(body: Any, context: Context) -> None:
        context.progress(10)
        await asyncio.sleep(0.05)  # It is told; the next one would only be a little later.
        context.progress(70)
        raise Failure("too hard")

    with running(worker(give_up)):
        task = client.wait(service, client.submit(service, {}).task_id, timeout=DEADLINE)
        assert (task.status, task.progress) == (Status.FAILURE, 70.0)


def test_heartbeats_keep_the_lease(server: RelaisServer, client: Client, service: str, worker: Build) -> None:
    gate = Gate()
    with running(worker(gate, lease=2.0)):
        task_id = client.submit(service, {}).task_id
        gate.wait_begun()
        expires: str = server.task(task_id)["leaseExpires"]
        started = time.monotonic()
        until("the lease is renewed", lambda: server.task(task_id)["leaseExpires"] > expires)
        until("the first lease would be over", lambda: time.monotonic() - started > 2.2)
        gate.open.set()
        assert client.wait(service, task_id, timeout=DEADLINE).result() == "done"
        assert server.task(task_id)["attempt"] == 1
        assert server.task(task_id)["losses"] == 0


def test_a_cancelled_task_stops_its_function(client: Client, service: str, worker: Build) -> None:
    gate = Gate()
    with running(worker(gate, lease=1.0)) as run:
        task_id = client.submit(service, {}).task_id
        gate.wait_begun()
        client.cancel(service, task_id)
        assert gate.contexts[0].cancelled.wait(DEADLINE)
        assert not gate.contexts[0].stopping.is_set()
        other = client.submit(service, {}).task_id
        gate.open.set()
        assert client.wait(service, other, timeout=DEADLINE).result() == "done"
        report = run.stop()
        assert (report.lost, report.done) == (1, 1)
        assert client.get(service, task_id).status is Status.CANCELLED


def test_a_cancelled_task_interrupts_its_coroutine(client: Client, service: str, worker: Build) -> None:
    begun, interrupted = threading.Event(), threading.Event()

    async def wait(body: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            interrupted.set()
            raise

    with running(worker(wait, lease=1.0)) as run:
        task_id = client.submit(service, {}).task_id
        assert begun.wait(DEADLINE)
        client.cancel(service, task_id)
        assert interrupted.wait(DEADLINE)
        assert run.stop().lost == 1


def test_a_lost_lease_stops_the_function_and_its_result_is_refused(
    client: Client, service: str, worker: Build, manual: ManualWorker
) -> None:
    gate = Gate()
    with running(worker(gate, lease=1.0)) as run:
        task_id = client.submit(service, {}).task_id
        gate.wait_begun()
        held = {"taskId": task_id, "attempt": 1}
        assert manual.call("returns", tasks=[held])["outcomes"][0]["outcome"] == "accepted"
        claim = manual.claim()  # The worker has no free slot, so it is ours.
        assert gate.contexts[0].cancelled.wait(DEADLINE)
        manual.report(claim, messageType="success", response="by hand")
        assert client.wait(service, task_id, timeout=DEADLINE).result() == "by hand"
        assert run.stop().lost == 1


def test_a_stopping_worker_finishes_its_tasks_and_claims_none(client: Client, service: str, worker: Build) -> None:
    gate = Gate()
    with running(worker(gate, grace=DEADLINE)) as run:
        first = client.submit(service, {}).task_id
        gate.wait_begun()
        second = client.submit(service, {}).task_id
        run.worker.stop()
        assert gate.contexts[0].stopping.wait(DEADLINE)
        assert not run.worker.ready
        gate.open.set()
        report = run.ended()
        assert (report.done, report.returned, report.lost) == (1, 0, 0)
        assert client.get(service, first).result() == "done"
        assert client.get(service, second).status is Status.PENDING


@pytest.mark.parametrize("kind", ["function", "coroutine", "deaf function"])
def test_after_the_grace_period_tasks_are_returned_without_a_loss(
    server: RelaisServer, client: Client, service: str, worker: Build, kind: str
) -> None:
    begun, end = threading.Event(), threading.Event()

    def function(body: Any, context: Context) -> str:
        begun.set()
        context.cancelled.wait(DEADLINE)
        context.check()
        return "not told to stop"

    async def coroutine(body: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    def deaf(body: Any) -> None:
        begun.set()
        end.wait(DEADLINE)

    handlers: dict[str, Handler] = {"function": function, "coroutine": coroutine, "deaf function": deaf}
    with running(worker(handlers[kind], grace=0.0)) as run:
        task_id = client.submit(service, {}).task_id
        assert begun.wait(DEADLINE)
        report = run.stop()
        assert (report.returned, report.done, report.failed, report.unsent) == (1, 0, 0, 0)
    end.set()
    assert client.get(service, task_id).status is Status.PENDING
    assert server.task(task_id)["losses"] == 0
    with running(worker(lambda body, context: context.redelivered)):
        assert client.wait(service, task_id, timeout=DEADLINE).result() is True


def test_a_result_at_the_last_moment_is_accepted(client: Client, service: str, worker: Build) -> None:
    begun = threading.Event()

    def checkpoint(body: Any, context: Context) -> str:
        begun.set()
        assert context.cancelled.wait(DEADLINE)
        return "just in time"

    with running(worker(checkpoint, grace=0.0)) as run:
        task_id = client.submit(service, {}).task_id
        assert begun.wait(DEADLINE)
        assert run.stop().done == 1
        assert client.get(service, task_id).result() == "just in time"


def test_an_interruptible_worker_returns_its_tasks_at_once(client: Client, service: str, worker: Build) -> None:
    begun = threading.Event()

    def interruptible(body: Any, context: Context) -> None:
        begun.set()
        assert context.stopping.wait(DEADLINE)
        raise TryAgain

    with running(worker(interruptible, grace=DEADLINE * 2)) as run:
        task_id = client.submit(service, {}).task_id
        assert begun.wait(DEADLINE)
        assert run.stop().returned == 1
        assert client.get(service, task_id).status is Status.PENDING


def test_a_second_stop_stops_at_once(client: Client, service: str, worker: Build) -> None:
    gate = Gate()
    with running(worker(gate, grace=DEADLINE * 2)) as run:
        task_id = client.submit(service, {}).task_id
        gate.wait_begun()
        run.worker.stop()
        assert run.stop().returned == 1
        assert client.get(service, task_id).status is Status.PENDING


def test_once_takes_one_task_and_ends(client: Client, service: str, worker: Build) -> None:
    first, second = (client.submit(service, {"n": n}).task_id for n in range(2))
    with running(worker(lambda body: body["n"], once=True, grace=0.0)) as run:
        assert run.ended().done == 1
    assert client.get(service, first).result() == 0
    assert client.get(service, second).status is Status.PENDING


def test_idle_ends_a_worker_without_tasks(client: Client, service: str, worker: Build) -> None:
    task_id = client.submit(service, {}).task_id
    gate = Gate()
    with running(worker(gate, idle=3.0)) as run:  # Longer than the first look takes on a busy machine.
        gate.wait_begun()
        waiting = threading.Timer(3.5, gate.open.set)  # Longer than that, but not idle.
        waiting.start()
        assert run.ended().done == 1
        waiting.join()
    assert client.get(service, task_id).result() == "done"


@pytest.mark.parametrize(("name", "secret", "number"), [(None, "wrong", 403001), ("nowhere", WORKER[1], 404001)])
def test_a_worker_that_is_refused_says_so(
    server: RelaisServer, service: str, name: str | None, secret: str, number: int
) -> None:
    with running(Worker(Gate(), Http(name or service, server.url, WORKER[0], secret))) as run:
        with pytest.raises(Refused) as refused:
            run.ended()
        assert refused.value.number == number


def test_a_result_that_is_too_large_becomes_a_failure(client: Client, service: str, worker: Build) -> None:
    with running(worker(lambda body: "x" * body["size"], concurrency=4)):
        ids = [client.submit(service, {"size": size}).task_id for size in (10, 2_000_000, 20)]
        tasks = [client.wait(service, task_id, timeout=DEADLINE) for task_id in ids]
        assert [task.status for task in tasks] == [Status.SUCCESS, Status.FAILURE, Status.SUCCESS]
        assert tasks[1].error_message is not None
        assert "413001" in tasks[1].error_message


def test_health_checks_are_answered(client: Client, service: str, worker: Build) -> None:
    gate = Gate()
    port = free_port()
    with running(worker(gate, grace=DEADLINE, health=f"127.0.0.1:{port}")) as run, httpx.Client() as http:
        run.ready()
        client.submit(service, {})
        gate.wait_begun()

        def look(path: str) -> int:
            return http.get(f"http://127.0.0.1:{port}{path}").status_code

        assert [look(path) for path in ("/livez", "/readyz", "/other")] == [200, 200, 404]
        run.worker.stop()
        until("it says that it is not ready", lambda: look("/readyz") == 503)
        assert look("/livez") == 200
        gate.open.set()
        run.ended()


def test_wrong_settings_are_refused() -> None:
    transport = Http("s", "http://127.0.0.1:1", *WORKER)
    with pytest.raises(ValueError, match="concurrency"):
        Worker(Gate(), transport, concurrency=0)
    with pytest.raises(ValueError, match="not an address"):
        Worker(Gate(), transport, health="nonsense")
    with pytest.raises(TypeError, match="a handler takes"):
        Worker(lambda: None, transport)
    with pytest.raises(TypeError, match="a handler takes"):
        Worker(lambda a, b, c: None, transport)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RelaisServer]:
    server = RelaisServer(tmp_path)
    yield server
    server.close()


def test_a_server_that_goes_away_is_waited_for_and_results_are_kept(own_server: RelaisServer) -> None:
    service = own_server.service()
    gate = Gate()
    worker = Worker(gate, Http(service, own_server.url, *WORKER, lease=30), concurrency=2, health=None)
    own_server.kill()
    with running(worker) as run, Client(own_server.url, *CONSUMER) as client:
        assert not run.worker.ready
        own_server.start()  # It was not there when the worker began.
        task_id = client.submit(service, {}).task_id
        gate.wait_begun()
        own_server.kill()
        gate.open.set()
        until("the worker has noticed", lambda: not run.worker.ready)
        own_server.start()
        assert client.wait(service, task_id, timeout=DEADLINE).result() == "done"
        assert own_server.task(task_id)["attempt"] == 1
        assert client.run(service, {}, timeout=DEADLINE) == "done"
        assert run.stop().done == 2


def test_unsent_results_are_counted_at_the_end(own_server: RelaisServer) -> None:
    service = own_server.service()
    gate = Gate()
    with (
        running(Worker(gate, Http(service, own_server.url, *WORKER), grace=DEADLINE)) as run,
        Client(own_server.url, *CONSUMER) as client,
    ):
        client.submit(service, {})
        gate.wait_begun()
        own_server.kill()
        gate.open.set()
        run.worker.stop()
        run.worker.stop()  # In a hurry: it does not try for long.
        assert run.ended().unsent == 1


def test_json_is_what_is_sent(manual: ManualWorker, client: Client, service: str, worker: Build) -> None:
    with running(worker(lambda body: json.loads('{"a": [1.5, true, null, "\\u2028"]}'))):
        assert client.run(service, {}, timeout=DEADLINE) == {"a": [1.5, True, None, "\u2028"]}
