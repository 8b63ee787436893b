"""When and how often a task is done, as a consumer asks for it and a worker over HTTP hears of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from house import DEADLINE, WORKER, ManualWorker, RelaisServer
from relais import (
    AsyncClient,
    Client,
    Context,
    Duration,
    Failure,
    Http,
    Refused,
    RetryRule,
    Status,
    Submission,
    Submitted,
    Task,
    TaskFailed,
    Worker,
)
from relais.wire import duration
from relais.worker.job import Job
from relais.worker.verdict import Failed
from workers import Gate, running

SOON = {"limit": 2, "base": "50ms"}
MUCH_LATER = {"limit": 2, "base": "1h"}

Build = Callable[..., Worker]


@pytest.fixture
def working(server: RelaisServer) -> Build:
    def build(service: str, handler: Callable[..., Any], lease: float = 60.0) -> Worker:
        return Worker(handler, Http(service, server.url, *WORKER, lease=lease, host_name="pod-1"))

    return build


def waited_for(client: Client, service: str, submitted: Submitted) -> Task:
    return client.wait(service, submitted.task_id, timeout=DEADLINE)


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (90, "1m30s"),
        (5400, "1h30m"),
        (timedelta(days=7, milliseconds=5), "7d5ms"),
        (100 * 86_400, "100d"),
        (59.9996, "1m"),
    ],
)
def test_durations_are_written_as_the_server_reads_them(span: Duration, text: str) -> None:
    assert duration(span) == text


@pytest.mark.parametrize("span", [-1, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_an_invalid_duration_is_refused(client: Client, service: str, span: Duration) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        client.submit(service, {}, delay=span)
    with pytest.raises(ValueError, match="is not a duration"):
        client.submit(service, {}, retry=RetryRule(1, base=span))
    with pytest.raises(ValueError, match="is not a duration"):
        Failure("no", retry_after=span)


def test_all_terms_are_as_the_server_has_them(client: Client, service: str, manual: ManualWorker) -> None:
    rule = RetryRule(
        5, base=10, factor=3, cap=timedelta(hours=1), jitter=0.2, within=86_400, except_kinds=("paper", "ink")
    )
    assert rule.to_wire() == {
        "limit": 5,
        "base": "10s",
        "factor": 3,
        "cap": "1h",
        "jitter": 0.2,
        "within": "1d",
        "exceptKinds": ["paper", "ink"],
    }
    when = datetime(2100, 1, 31, 9, 30, tzinfo=timezone(timedelta(hours=1)))
    terms: dict[str, Any] = {"priority": 7, "expires_after": 7200, "timeout": 300, "unique_key": "a", "unique_for": 60}
    for retry in (rule, "none", "classic"):
        terms["unique_key"] += "a"
        later = client.submit(service, {}, scheduled_date=when, retry=retry, **terms)
        task = client.get(service, later.task_id)
        assert (task.status, task.scheduled_date, task.priority) == (Status.PENDING, when, 7)
        assert (task.task_position, task.retry_date, later.duplicate) == (None, None, False)
    as_text = client.submit(service, {}, scheduled_date="2100-01-31T08:30:00Z")
    assert client.get(service, as_text.task_id).scheduled_date == when
    client.submit(service, {}, timeout=timedelta(minutes=5))
    claimed = manual.claim()
    deadline = datetime.fromisoformat(claimed["deadline"].replace("Z", "+00:00"))
    assert timedelta(minutes=4) < deadline - datetime.now(timezone.utc) <= timedelta(minutes=5)


def test_invalid_terms_are_refused(client: Client, service: str) -> None:
    for wrong, path in (
        ({"priority": 10}, "/priority"),
        ({"scheduled_date": "tomorrow"}, "/scheduledDate"),
        ({"scheduled_date": datetime(2100, 1, 1), "delay": 1}, "/delay"),
        ({"expires_after": 0}, "/expiresAfter"),
        ({"timeout": timedelta(days=31)}, "/timeout"),
        ({"unique_for": 1}, "/uniqueFor"),
        ({"retry": RetryRule(1, jitter=7)}, "/retry/jitter"),
    ):
        with pytest.raises(Refused) as error:
            client.submit(service, {}, **wrong)
        assert (error.value.number, error.value.details[0].path) == (400003, path)


def test_a_delayed_task_runs_later(client: Client, service: str, working: Build) -> None:
    with running(working(service, lambda body: "done")):
        later = client.submit(service, {}, delay=0.4)
        waiting = client.get(service, later.task_id)
        done = waited_for(client, service, later)
    assert (waiting.scheduled_date, done.result()) == (done.scheduled_date, "done")
    assert done.scheduled_date is not None
    assert done.start_date is not None
    assert done.submition_date + timedelta(seconds=0.3) < done.scheduled_date <= done.start_date


def test_tasks_with_higher_priority_go_first(client: Client, service: str, manual: ManualWorker) -> None:
    ids = [client.submit(service, {}, priority=priority).task_id for priority in (None, 0, 9)]
    assert [manual.claim()["taskId"] for _ in ids] == [ids[2], ids[0], ids[1]]


def test_a_task_that_is_not_started_in_time_expires(client: Client, service: str) -> None:
    task = waited_for(client, service, client.submit(service, {}, expires_after=0.05))
    assert (task.status, task.error_kind) == (Status.FAILURE, "expired")


def test_a_unique_key_allows_one_unfinished_task(client: Client, service: str, manual: ManualWorker) -> None:
    first = client.submit(service, {}, unique_key="report 7")
    second = client.submit(service, {}, unique_key="report 7")
    assert (first.duplicate, second.duplicate) == (False, True)
    assert second.task_id == first.task_id
    many = client.submit_many(service, [Submission({}, unique_key="report 7"), Submission({}, unique_key="report 8")])
    assert [result.duplicate for result in many if isinstance(result, Submitted)] == [True, False]
    manual.report(manual.claim(), messageType="success", response=1)
    third = client.submit(service, {}, unique_key="report 7", unique_for=timedelta(hours=1))
    assert (third.duplicate, third.task_id == first.task_id) == (False, False)
    client.cancel(service, third.task_id)
    assert client.submit(service, {}, unique_key="report 7").duplicate, "it has ended, but its hour is not over"


def test_a_failing_task_is_retried_and_each_attempt_is_shown(
    server: RelaisServer, client: Client, working: Build
) -> None:
    service = server.service(retry=SOON)

    def third_time_lucky(body: Any, context: Context) -> str:
        assert context.attempt is not None
        if context.attempt == 1:
            raise ValueError("bad width")
        if context.attempt == 2:
            raise Failure("no paper", kind="paper", retry_after=timedelta(milliseconds=10))
        return "done"

    with running(working(service, third_time_lucky)) as run:
        submitted = client.submit(service, {})
        assert waited_for(client, service, submitted).result() == "done"
        report = run.stop()
        assert (report.done, report.failed) == (1, 2)
    first, second, third = server.task(submitted.task_id)["attempts"]
    assert [attempt["outcome"] for attempt in (first, second, third)] == ["failure", "failure", "success"]
    assert (first["errorMessage"], first["errorKind"]) == ("ValueError: bad width", "ValueError")
    assert "in third_time_lucky" in first["errorTrace"]
    assert first["errorTrace"].endswith("ValueError: bad width\n")
    assert (second["errorMessage"], second["errorKind"]) == ("no paper", "paper")
    assert "errorTrace" not in second, "a Failure says what is to be known"
    assert {attempt["workerHost"] for attempt in (first, second, third)} == {"pod-1"}


def test_a_failure_that_is_not_retryable_is_final(server: RelaisServer, client: Client, working: Build) -> None:
    service = server.service(retry=SOON)

    def fail(body: dict[str, Any]) -> Any:
        if body["how"] == "result":
            return object()
        raise Failure("never", retryable=False, kind=body["how"])

    with running(working(service, fail)):
        for how in ("paper", "result"):
            submitted = client.submit(service, {"how": how})
            task = waited_for(client, service, submitted)
            with pytest.raises(TaskFailed):
                task.result()
            assert task.error_kind == how
            assert len(server.task(submitted.task_id)["attempts"]) == 1
        submitted = client.submit(service, {"how": "ink"}, retry=RetryRule(9, base=0, except_kinds=["ink"]))
        assert waited_for(client, service, submitted).error_kind == "ink"


def test_a_body_of_the_wrong_type_is_not_retried(server: RelaisServer, client: Client, working: Build) -> None:
    service = server.service(retry=SOON)

    def count(body: dict[str, int]) -> int:
        return len(body)

    with running(working(service, count)):
        submitted = client.submit(service, {"n": "text"})
        assert waited_for(client, service, submitted).error_kind == "body"
        assert len(server.task(submitted.task_id)["attempts"]) == 1


def test_errors_of_all_kinds_can_be_reported(server: RelaisServer, client: Client, working: Build) -> None:
    service = server.service()

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not a word")

    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("at the bottom " + "é" * 100)
        shallow(n - 1)

    def shallow(n: int) -> None:
        deep(n)

    def fail(body: dict[str, Any]) -> None:
        if body["how"] == "mute":
            raise Mute
        deep(400)

    def attempt(how: str) -> dict[str, Any]:
        submitted = client.submit(service, {"how": how})
        assert waited_for(client, service, submitted).status is Status.FAILURE
        (only,) = server.task(submitted.task_id)["attempts"]
        shown: dict[str, Any] = only
        return shown

    with running(working(service, fail)) as run:
        assert attempt("mute")["errorMessage"] == "Mute: an error that can not be shown"
        trace = attempt("deep")["errorTrace"]
        assert len(trace) == 16 * 1024
        assert trace.endswith("é\n")
        assert run.stop().failed == 2
    half = Job("t", {}).ended(Failed("half \ud800 a letter", kind="\ud800", trace="\ud800"))
    assert json.loads(half)["data"] == {
        "messageType": "failure",
        "errorMessage": "half ? a letter",
        "errorKind": "?",
        "errorTrace": "?",
    }


def test_an_ended_task_is_retried(server: RelaisServer, client: Client) -> None:
    service = server.service(retry=MUCH_LATER)
    manual = ManualWorker(server, service)
    task_id = client.submit(service, {}).task_id
    with pytest.raises(Refused) as refused:
        client.retry(service, task_id)
    assert refused.value.number == 409003
    manual.report(manual.claim(), messageType="failure", errorMessage="no")
    waiting = client.get(service, task_id)
    assert waiting.status is Status.PENDING
    assert waiting.retry_date is not None
    assert waiting.retry_date - waiting.submition_date >= timedelta(hours=1)
    now = client.retry(service, task_id)
    assert (now.status, now.task_position, now.retry_date) == (Status.PENDING, 1, None)
    manual.report(manual.claim(), messageType="failure", errorMessage="no", retryable=False)
    assert client.wait(service, task_id).status is Status.FAILURE
    assert client.retry(service, task_id).status is Status.PENDING
    assert manual.claim()["attempt"] == 3
    manual.close()
    with pytest.raises(Refused) as refused:
        client.retry(service, "0198c7c2-0000-7000-8000-000000000000")
    assert refused.value.number == 404002


async def test_the_same_with_asyncio(server: RelaisServer, service: str) -> None:
    async with AsyncClient(server.url, "consumer", "consumer-secret") as asked:
        first = await asked.submit(service, {}, delay=3600, priority=9, retry="classic", unique_key="k")
        assert (await asked.submit(service, {}, unique_key="k")).duplicate
        task = await asked.get(service, first.task_id)
        assert (task.priority, task.task_position) == (9, None)
        assert (await asked.retry(service, first.task_id)).task_position == 1


def test_a_handler_knows_its_deadline_and_is_stopped_after_it(client: Client, service: str, working: Build) -> None:
    gate = Gate()
    with running(working(service, gate, lease=1.0)) as run:
        client.submit(service, {}, timeout=0.2)
        gate.wait_begun()
        deadline = gate.contexts[0].deadline
        assert deadline is not None
        assert gate.contexts[0].cancelled.wait(DEADLINE)
        assert datetime.now(timezone.utc) >= deadline
        assert run.stop().lost == 1


def test_without_a_limit_there_is_no_deadline(client: Client, service: str, working: Build) -> None:
    seen: list[datetime | None] = []
    told = threading.Event()

    def look(body: Any, context: Context) -> None:
        seen.append(context.deadline)
        told.set()

    with running(working(service, look)):
        client.submit(service, {})
        assert told.wait(DEADLINE)
    assert seen == [None]
