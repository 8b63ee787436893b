"""A worker over RabbitMQ against a real broker, without a server: what is on the queues is what counts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from house import DEADLINE, Proxy, Tls, Vhost, until
from relais import Context, Failure, RabbitMq, TryAgain, Worker
from workers import Gate, running

Build = Callable[..., Worker]


@pytest.fixture
def worker(vhost: Vhost) -> Build:
    def build(handler: Callable[..., Any], url: str | None = None, **options: Any) -> Worker:
        parse_float = options.pop("parse_float", float)
        transport = RabbitMq("resize", url or vhost.url, host_name="pod-1", parse_float=parse_float)
        return Worker(handler, transport, **options)

    return build


@pytest.fixture
def proxy(vhost: Vhost) -> Iterator[Proxy]:
    proxy = Proxy(vhost.port)
    proxy.open()
    yield proxy
    proxy.cut()


def submission(task_id: str, **body: Any) -> str:
    """As the server writes it."""
    data = {"messageType": "submission", "message_type": "submission", "body": body}
    return json.dumps({"taskId": task_id, "task_id": task_id, "data": data})


def take(vhost: Vhost, kind: str) -> dict[str, Any]:
    """The next message from the worker, which must be of this kind."""
    message: dict[str, Any] = json.loads(vhost.take_one("resize-out")["body"])
    assert message["data"]["messageType"] == kind, message
    return message


def take_until(vhost: Vhost, kind: str) -> list[dict[str, Any]]:
    """All messages up to one of this kind."""
    messages: list[dict[str, Any]] = []
    while not messages or messages[-1]["data"]["messageType"] != kind:
        messages.append(json.loads(vhost.take_one("resize-out")["body"]))
    return messages


def test_a_task_is_started_and_ends_with_its_result(vhost: Vhost, worker: Build) -> None:
    def double(body: dict[str, Any], context: Context) -> Any:
        assert (context.attempt, context.redelivered, context.correlation_id) == (None, False, "order 7")
        return {"n": 2 * body["n"]}

    with running(worker(double)) as run:
        run.ready()
        message = json.loads(submission("t1", n=21))
        vhost.publish("resize-in", json.dumps({**message, "correlationId": "order 7"}))
        first, second = vhost.take_one("resize-out"), vhost.take_one("resize-out")
        started = {"taskId": "t1", "data": {"messageType": "started", "hostName": "pod-1"}}
        assert json.loads(first["body"]) == started
        assert json.loads(second["body"]) == {"taskId": "t1", "data": {"messageType": "success", "response": {"n": 42}}}
        for message in (first, second):
            assert (message["exchange"], message["routing_key"]) == ("", "resize-out")
            assert message["properties"]["delivery_mode"] == 2
            assert message["properties"]["content_type"] == "application/json"
        assert run.stop().done == 1
    assert vhost.take("resize-in") == [], "it was acknowledged"


def test_queues_are_declared_plain_and_durable(vhost: Vhost, worker: Build) -> None:
    with running(worker(Gate())) as run:
        run.ready()
        for name in ("resize-in", "resize-out"):
            queue = vhost.queue(name)
            assert (queue["durable"], queue["auto_delete"], queue["exclusive"]) == (True, False, False)
            assert queue["arguments"] == {}


def test_queues_that_are_there_may_be_of_any_kind(vhost: Vhost, worker: Build) -> None:
    for name in ("resize-in", "resize-out"):
        vhost.declare(name, **{"x-queue-type": "quorum"})
    with running(worker(lambda body: "done")) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        assert take_until(vhost, "success")[-1]["data"]["response"] == "done"


def test_both_spellings_are_understood(vhost: Vhost, worker: Build) -> None:
    with running(worker(lambda body: body["n"])) as run:
        run.ready()
        other = {"task_id": "t1", "data": {"message_type": "submission", "body": {"n": 1}}}
        vhost.publish("resize-in", json.dumps(other))
        assert take_until(vhost, "success")[-1]["taskId"] == "t1"


def test_failures_are_reported_and_acknowledged(vhost: Vhost, worker: Build) -> None:
    def fail(body: dict[str, Any]) -> None:
        if body["final"]:
            raise Failure("no such picture", retryable=False, retry_after=90, kind="picture")
        raise ValueError("bad width")

    with running(worker(fail)) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1", final=False))
        told = take_until(vhost, "failure")[-1]["data"]
        assert "in fail" in told.pop("errorTrace")
        assert told == {
            "messageType": "failure",
            "errorMessage": "ValueError: bad width",
            "errorKind": "ValueError",
        }
        vhost.publish("resize-in", submission("t2", final=True))
        assert take_until(vhost, "failure")[-1]["data"] == {
            "messageType": "failure",
            "errorMessage": "no such picture",
            "retryable": False,
            "retryAfter": "1m30s",
            "errorKind": "picture",
        }
        assert run.stop().failed == 2
    assert vhost.take("resize-in") == []


def test_a_deadline_is_read_and_nonsense_is_none(vhost: Vhost, worker: Build) -> None:
    def told(body: Any, context: Context) -> str:
        return repr(context.deadline and context.deadline.isoformat())

    with running(worker(told)) as run:
        run.ready()
        for deadline, read in (
            ("2100-01-31T08:30:00.000Z", "'2100-01-31T08:30:00+00:00'"),
            ("soon", "None"),
            (7, "None"),
        ):
            vhost.publish("resize-in", json.dumps({**json.loads(submission("t1")), "deadline": deadline}))
            assert take_until(vhost, "success")[-1]["data"]["response"] == read


def test_numbers_keep_their_digits(vhost: Vhost, worker: Build) -> None:
    text = '{"big":1208925819614629174706177,"long":0.1234567890123456789012345}'
    with running(worker(lambda body: body, parse_float=Decimal)) as run:
        run.ready()
        vhost.publish("resize-in", f'{{"taskId":"t1","data":{{"messageType":"submission","body":{text}}}}}')
        vhost.take_one("resize-out")
        assert f'"response":{text}' in vhost.take_one("resize-out")["body"]


def test_a_failure_comes_after_the_progress_that_was_reached(vhost: Vhost, worker: Build) -> None:
    async def give_up(body: Any, context: Context) -> None:
        context.progress(10)
        await asyncio.sleep(0.05)  # It is told; the next one would only be a little later.
        context.progress(70)
        raise Failure("too hard")

    with running(worker(give_up)) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        told = take_until(vhost, "failure")
        assert told[-2] == {"taskId": "t1", "data": {"messageType": "progress", "progress": 70.0}}


def test_a_redelivered_task_begins_after_its_start_is_confirmed(vhost: Vhost, worker: Build) -> None:
    # Without room for it, the broker refuses the start.
    vhost.declare("resize-out", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    vhost.publish("resize-out", '{"data": {"messageType": "of another time"}}')
    vhost.declare("resize-in")
    vhost.publish("resize-in", submission("t1"))
    vhost.look("resize-in")
    room = threading.Event()
    with running(worker(lambda body: room.is_set(), once=True)) as run:
        until("the worker has it", lambda: vhost.ready("resize-in") == 0)
        room.set()
        assert take_until(vhost, "success")[-1]["data"]["response"] is True
        assert run.ended().done == 1


def test_a_task_whose_start_can_not_be_reported_is_returned_at_a_stop(vhost: Vhost, worker: Build) -> None:
    vhost.declare("resize-out", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    vhost.publish("resize-out", '{"data": {"messageType": "of another time"}}')
    vhost.declare("resize-in")
    vhost.publish("resize-in", submission("t1"))
    vhost.look("resize-in")
    gate = Gate()
    with running(worker(gate, grace=DEADLINE)) as run:
        until("the worker has it", lambda: vhost.ready("resize-in") == 0)
        assert run.stop().returned == 1
    assert gate.contexts == []
    assert len(vhost.take("resize-in")) == 1


def _cancelled(body: Any, context: Context) -> None:
    context.cancelled.wait(DEADLINE)
    context.check()


async def _interrupted(body: Any) -> None:
    await asyncio.Event().wait()


def _deaf(body: Any) -> None:
    time.sleep(8)


@pytest.mark.parametrize("handler", [_cancelled, _interrupted, _deaf])
def test_a_task_past_the_timeout_of_its_message_is_stopped_and_fails(
    vhost: Vhost, worker: Build, handler: Callable[..., Any]
) -> None:
    with running(worker(handler)) as run:
        run.ready()
        for limit in ({"timeoutMs": 200}, {"timeout_ms": 200}):
            vhost.publish("resize-in", json.dumps({**json.loads(submission("t1")), **limit}))
            told = take_until(vhost, "failure")
            late = {"errorMessage": "It ran for longer than it may.", "errorKind": "timeout"}
            assert told[-1] == {"taskId": "t1", "data": {"messageType": "failure", **late}}
        assert run.stop().failed == 2
    assert vhost.take("resize-in") == []


def test_the_deadline_is_the_messages_or_when_its_time_is_over(vhost: Vhost, worker: Build) -> None:
    def told(body: Any, context: Context) -> float:
        assert context.deadline is not None
        return (context.deadline - datetime.now(timezone.utc)).total_seconds()

    with running(worker(told, timeout=300)) as run:
        run.ready()
        soon = (datetime.now(timezone.utc) + timedelta(seconds=200)).isoformat()
        for limit, seconds in (
            ({"timeoutMs": 100_000}, 100),
            ({"timeoutMs": 1, "deadline": soon}, 200),
            ({"timeoutMs": "soon"}, 300),
            ({"timeoutMs": 2**64}, 300),
        ):
            vhost.publish("resize-in", json.dumps({**json.loads(submission("t1")), **limit}))
            left = take_until(vhost, "success")[-1]["data"]["response"]
            assert seconds - DEADLINE < left <= seconds
    with running(worker(_cancelled)) as run:
        run.ready()
        vhost.publish("resize-in", json.dumps({**json.loads(submission("t1")), "deadline": "2020-01-01T00:00:00Z"}))
        assert take_until(vhost, "failure")[-1]["data"]["errorKind"] == "timeout"


@pytest.mark.parametrize(
    ("query", "setting", "agreed"), [("", {}, 10), ("", {"heartbeat": 7}, 7), ("?heartbeat=4", {}, 4)]
)
def test_missing_heartbeats_end_a_connection(vhost: Vhost, query: str, setting: dict[str, Any], agreed: int) -> None:
    with running(Worker(Gate(), RabbitMq("resize", vhost.url + query, **setting))) as run:
        run.ready()
        assert until("the broker shows it", vhost.heartbeats) == [agreed]


def test_no_more_tasks_are_prefetched_than_run_at_once(vhost: Vhost, worker: Build) -> None:
    gate = Gate()
    with running(worker(gate, concurrency=2)) as run:
        run.ready()
        for number in range(5):
            vhost.publish("resize-in", submission(f"t{number}"))
        gate.wait_begun(2)
        left = [json.loads(message["body"])["taskId"] for message in vhost.take("resize-in")]
        assert left == ["t2", "t3", "t4"], "what waits can be taken by others"
        gate.open.set()
        assert run.stop().done == 2


def test_nothing_is_acknowledged_before_its_result_is_in_a_queue(vhost: Vhost, worker: Build) -> None:
    gate = Gate()
    with running(worker(gate)) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        gate.wait_begun()
        vhost.delete("resize-out")  # A broker confirms what goes nowhere, too.
        gate.open.set()
        until("the queue is there again", lambda: "resize-out" in vhost.queues())
        assert take_until(vhost, "success")[-1]["taskId"] == "t1"
        assert run.stop().done == 1
    assert len(gate.contexts) == 1
    assert vhost.take("resize-in") == []


def test_a_disconnected_worker_reconnects_and_does_not_run_a_task_twice(
    vhost: Vhost, worker: Build, proxy: Proxy
) -> None:
    gate = Gate()
    with running(worker(gate, vhost.url_via(proxy.port))) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        gate.wait_begun()
        proxy.cut()
        until("the worker has noticed", lambda: not run.worker.ready)
        proxy.open()
        run.ready()
        gate.open.set()
        assert take_until(vhost, "success")[-1]["taskId"] == "t1"
        vhost.publish("resize-in", submission("t2"))
        assert take_until(vhost, "success")[-1]["taskId"] == "t2"
        assert run.stop().done == 2
    assert len(gate.contexts) == 2
    assert vhost.take("resize-in") == []


def test_a_result_while_disconnected_is_sent_later(vhost: Vhost, worker: Build, proxy: Proxy) -> None:
    gate = Gate()
    with running(worker(gate, vhost.url_via(proxy.port))) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        gate.wait_begun()
        take(vhost, "started")
        proxy.cut()
        until("the worker has noticed", lambda: not run.worker.ready)
        gate.open.set()
        proxy.open()
        take_until(vhost, "success")
        run.stop()
    assert vhost.take("resize-in") == []


def test_a_broker_that_is_away_at_the_start_is_waited_for(vhost: Vhost, worker: Build, proxy: Proxy) -> None:
    proxy.cut()
    with running(worker(lambda body: "done", vhost.url_via(proxy.port))) as run:
        proxy.open()
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        take_until(vhost, "success")


def test_a_private_authority_is_trusted_where_it_is_named(vhost: Vhost, tmp_path: Path) -> None:
    tls = Tls(vhost.port, tmp_path)
    try:
        url = vhost.url_via(tls.port).replace("amqp://", "amqps://")
        with running(Worker(lambda body: "done", RabbitMq("resize", url, ca=tls.ca))) as run:
            run.ready()
            vhost.publish("resize-in", submission("t1"))
            take_until(vhost, "success")
            run.stop()
        with running(Worker(lambda body: "done", RabbitMq("resize", url), idle=1)) as run:
            assert run.ended().done == 0
            assert not run.worker.ready
    finally:
        tls.close()


def test_a_queue_that_is_deleted_is_declared_again(vhost: Vhost, worker: Build) -> None:
    with running(worker(lambda body: "done")) as run:
        run.ready()
        vhost.delete("resize-in")
        until("the queue is there again", lambda: "resize-in" in vhost.queues())
        vhost.publish("resize-in", submission("t1"))
        take_until(vhost, "success")


def test_wrong_credentials_are_an_error(vhost: Vhost, worker: Build) -> None:
    wrong = vhost.url.replace("guest:guest@", "guest:wrong@")
    assert wrong != vhost.url
    with running(worker(Gate(), wrong)) as run, pytest.raises(ConnectionError, match="ACCESS_REFUSED"):
        run.ended()


@pytest.mark.parametrize("kind", ["function", "coroutine", "deaf function"])
def test_a_stopping_worker_reports_a_return_and_requeues_the_message(vhost: Vhost, worker: Build, kind: str) -> None:
    begun, end = threading.Event(), threading.Event()

    def function(body: Any, context: Context) -> None:
        begun.set()
        context.cancelled.wait(DEADLINE)
        context.check()

    async def coroutine(body: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    def deaf(body: Any) -> None:
        begun.set()
        end.wait(DEADLINE)

    handlers: dict[str, Callable[..., Any]] = {"function": function, "coroutine": coroutine, "deaf function": deaf}
    with running(worker(handlers[kind], grace=0.0)) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        assert begun.wait(DEADLINE)
        vhost.publish("resize-in", submission("t2"))
        assert run.stop().returned == 1
    end.set()
    take(vhost, "started")
    returned = take(vhost, "returned")
    assert returned == {"taskId": "t1", "data": {"messageType": "returned", "hostName": "pod-1"}}
    back = vhost.take("resize-in")
    assert [(json.loads(message["body"])["taskId"], message["redelivered"]) for message in back] == [
        ("t1", True),
        ("t2", False),
    ]


def test_a_stopping_worker_finishes_its_tasks(vhost: Vhost, worker: Build) -> None:
    gate = Gate()
    with running(worker(gate, grace=DEADLINE)) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        gate.wait_begun()
        run.worker.stop()
        assert gate.contexts[0].stopping.wait(DEADLINE)
        gate.open.set()
        assert run.ended().done == 1
    take_until(vhost, "success")
    assert vhost.take("resize-in") == []


def test_try_again_returns_the_task_and_the_next_worker_knows(vhost: Vhost, worker: Build) -> None:
    seen: list[bool] = []

    def later(body: Any, context: Context) -> str:
        seen.append(context.redelivered)
        if len(seen) < 3:
            raise TryAgain(after=0.0)
        return "now"

    with running(worker(later)) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        kinds = [message["data"]["messageType"] for message in take_until(vhost, "success")]
        assert kinds == ["started", "returned", "started", "returned", "started", "success"]
        assert seen == [False, True, True]
        assert run.stop().returned == 2


def test_a_malformed_message_becomes_a_dead_letter_and_blocks_nothing(vhost: Vhost, worker: Build) -> None:
    vhost.declare("aside")
    vhost.policy("aside", "^resize-in$", {"dead-letter-exchange": "", "dead-letter-routing-key": "aside"})
    strange = [
        "{",
        "7",
        "[]",
        "{}",
        '{"taskId": "t1"}',
        '{"taskId": 7, "data": {"messageType": "submission", "body": {}}}',
        '{"taskId": "t1", "data": {"messageType": "dance", "body": {}}}',
        '{"taskId": "t1", "data": {"messageType": "submission"}}',
        "[" * 100_000,
    ]
    with running(worker(lambda body: "done", once=True)) as run:
        run.ready()
        for body in strange:
            vhost.publish("resize-in", body)
        vhost.publish("resize-in", submission("t2"))
        assert take_until(vhost, "success")[-1]["taskId"] == "t2"
        assert run.ended().done == 1
    assert [message["body"] for message in vhost.take("aside")] == strange


def test_a_duplicate_task_is_started_once(vhost: Vhost, worker: Build) -> None:
    gate = Gate()
    with running(worker(gate, concurrency=3)) as run:
        run.ready()
        for task_id in ("t1", "t1", "t2"):
            vhost.publish("resize-in", submission(task_id))
        gate.wait_begun(2)
        gate.open.set()
        assert run.stop().done == 2
    assert [context.task_id for context in gate.contexts] == ["t1", "t2"]
    assert vhost.take("resize-in") == []


def test_a_flood_of_progress_becomes_a_trickle(vhost: Vhost, worker: Build) -> None:
    go_on = threading.Event()

    def flood(body: Any, context: Context) -> str:
        for step in range(50_000):
            context.progress(step / 1000)
        assert go_on.wait(DEADLINE)
        return "done"

    with running(worker(flood)) as run:
        run.ready()
        vhost.publish("resize-in", submission("t1"))
        take(vhost, "started")
        told = [take(vhost, "progress")["data"]["progress"]]
        while told[-1] < 49.999:
            told.append(take(vhost, "progress")["data"]["progress"])
        go_on.set()
        take(vhost, "success")
        assert told == sorted(told)
        assert len(told) < 20


def test_once_takes_one_message_and_leaves_the_rest(vhost: Vhost, worker: Build) -> None:
    vhost.declare("resize-in")
    for number in range(3):
        vhost.publish("resize-in", submission(f"t{number}"))
    with running(worker(lambda body: "done", once=True, grace=0.0)) as run:
        assert run.ended().done == 1
    assert take_until(vhost, "success")[-1]["taskId"] == "t0"
    left = [(json.loads(message["body"])["taskId"], message["redelivered"]) for message in vhost.take("resize-in")]
    assert left == [("t1", False), ("t2", False)]
    assert vhost.take("resize-out") == []


def test_idle_ends_a_worker_without_messages(worker: Build) -> None:
    with running(worker(Gate(), idle=0.2)) as run:
        assert run.ended().done == 0


def test_many_tasks_run_once_each(vhost: Vhost, worker: Build) -> None:
    for queue in ("resize-in", "resize-out"):
        vhost.declare(queue)
    for number in range(200):
        vhost.publish("resize-in", submission(f"t{number}", n=number))

    async def echo(body: dict[str, Any]) -> int:
        n: int = body["n"]
        return n

    results: list[int] = []
    with running(worker(echo, concurrency=20)) as run:
        while len(results) < 200:
            for message in until("messages", lambda: vhost.take("resize-out")):
                data = json.loads(message["body"])["data"]
                if data["messageType"] == "success":
                    results.append(data["response"])
        assert run.stop().done == 200
    assert sorted(results) == list(range(200))


def test_an_address_is_needed() -> None:
    with pytest.raises(ValueError, match="RELAIS_BROKER_URL"):
        RabbitMq("resize", "http://localhost")
