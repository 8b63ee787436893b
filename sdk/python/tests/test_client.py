"""The blocking client against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest

from house import CONSUMER, ManualWorker, RelaisServer
from relais import (
    Callback,
    Client,
    NotDone,
    Refused,
    RelaisError,
    Status,
    Submission,
    Submitted,
    TaskCancelled,
    TaskFailed,
    Unreachable,
)

STRICT = {"type": "object", "properties": {"width": {"type": "integer", "maximum": 10}}, "required": ["width"]}


def refused(result: object) -> Refused:
    assert isinstance(result, Refused), result
    return result


def test_a_task_goes_from_pending_to_its_result(client: Client, service: str, manual: ManualWorker) -> None:
    submitted = client.submit(service, {"width": 7}, correlation_id="order 7")
    assert submitted.task_position == 1
    task = client.get(service, submitted.task_id)
    assert (task.status, task.task_position, task.correlation_id) == (Status.PENDING, 1, "order 7")
    assert abs(task.submition_date - datetime.now(timezone.utc)) < timedelta(minutes=1)
    with pytest.raises(NotDone):
        task.result()

    claim = manual.claim()
    assert (claim["data"]["body"], claim["correlationId"]) == ({"width": 7}, "order 7")
    manual.report(claim, messageType="progress", progress=12.5)
    task = client.get(service, submitted.task_id)
    assert (task.status, task.progress, task.done) == (Status.IN_PROGRESS, 12.5, False)
    manual.report(claim, messageType="success", response={"url": "x"})
    task = client.wait(service, submitted.task_id, timeout=10)
    assert (task.status, task.progress, task.result()) == (Status.SUCCESS, 100.0, {"url": "x"})
    assert task.start_date is not None
    assert task.end_date is not None
    assert task.submition_date <= task.start_date <= task.end_date


def test_a_failure_is_raised_with_the_workers_message(client: Client, service: str, manual: ManualWorker) -> None:
    task_id = client.submit(service, {}).task_id
    manual.report(manual.claim(), messageType="failure", errorMessage="no such picture")
    with pytest.raises(TaskFailed, match=r"^no such picture$") as failed:
        client.wait(service, task_id).result()
    assert failed.value.task.status is Status.FAILURE


def test_a_wait_ends_when_the_task_ends(client: Client, service: str, manual: ManualWorker) -> None:
    task_id = client.submit(service, {}).task_id
    claim = manual.claim()
    ended = threading.Timer(0.2, lambda: manual.report(claim, messageType="success", response=1))
    ended.start()
    task = client.wait(service, task_id, timeout=25)
    ended.join()
    assert task.result() == 1


def test_a_wait_that_is_too_short_says_how_far_the_task_is(client: Client, service: str) -> None:
    task_id = client.submit(service, {}).task_id
    with pytest.raises(TimeoutError) as late:
        client.wait(service, task_id, timeout=0.05)
    assert isinstance(late.value, NotDone)
    assert late.value.task.status is Status.PENDING


def test_run_submits_and_waits(client: Client, service: str, manual: ManualWorker) -> None:
    def work() -> None:
        claim = manual.claim()
        manual.report(claim, messageType="success", response=claim["data"]["body"]["n"] + 1)

    worker = threading.Thread(target=work)
    worker.start()
    assert client.run(service, {"n": 1}, timeout=20, correlation_id="c") == 2
    worker.join()


def test_a_repeated_idempotency_key_gives_the_same_task(client: Client, service: str) -> None:
    first = client.submit(service, {"n": 1}, idempotency_key="k")
    assert client.submit(service, {"n": 1}, idempotency_key="k").task_id == first.task_id
    assert client.submit(service, {"n": 1}).task_id != first.task_id
    with pytest.raises(Refused) as other:
        client.submit(service, {"n": 2}, idempotency_key="k")
    assert other.value.number == 409001


def test_numbers_keep_their_digits(server: RelaisServer, service: str, manual: ManualWorker) -> None:
    big, long, tiny = 2**80 + 1, Decimal("0.1234567890123456789012345"), Decimal("1E-400")
    with Client(server.url, *CONSUMER, parse_float=Decimal) as client:
        task_id = client.submit(service, {"big": big, "long": long, "tiny": tiny}).task_id
        claim = manual.claim()
        assert claim["data"]["body"]["big"] == big
        assert client.get(service, task_id).status is Status.IN_PROGRESS
        manual.report(claim, messageType="success", response={"big": big})
        assert client.wait(service, task_id).result() == {"big": big}


def test_typed_bodies_are_written_as_json(client: Client, service: str, manual: ManualWorker) -> None:
    @dataclass
    class Order:
        pages: int
        when: datetime

    client.submit(service, Order(3, datetime(2030, 1, 1, 12, tzinfo=timezone.utc)))
    assert manual.claim()["data"]["body"] == {"pages": 3, "when": "2030-01-01T12:00:00.000Z"}
    for strange in ({"x": object()}, {"x": float("nan")}, {"x": Decimal("NaN")}, {"x": "\ud800"}):
        with pytest.raises((TypeError, ValueError)):
            client.submit(service, strange)


def test_refusals_have_number_description_and_details(client: Client, server: RelaisServer) -> None:
    service = server.service(jsonSchema=STRICT)
    with pytest.raises(Refused) as error:
        client.submit(service, {"width": 11})
    assert (error.value.number, error.value.status, error.value.passing) == (400001, 400, False)
    assert error.value.description == "Error validating the body with the target service's json-schema."
    assert [(detail.path, detail.message) for detail in error.value.details] == [
        ("/width", "11 is greater than the maximum of 10")
    ]
    assert "/width: 11 is greater" in str(error.value)
    for call, number in (
        (lambda: client.submit("nowhere", {}), 404001),
        (lambda: client.get(service, "0198c7c2-0000-7000-8000-000000000000"), 404002),
        (lambda: client.get(service, "no uuid / really"), 404002),
        (lambda: client.submit(service, [1]), 400003),
        (lambda: client.submit(service, {"width": 1}, callback=Callback(type="pigeon", url="x:y")), 400004),
    ):
        with pytest.raises(Refused) as error:
            call()
        assert error.value.number == number


def test_wrong_credentials_are_refused(server: RelaisServer, service: str) -> None:
    with Client(server.url, "consumer", "wrong") as client, pytest.raises(Refused) as error:
        client.submit(service, {})
    assert error.value.number == 403001


def test_many_are_submitted_together_and_each_has_its_answer(client: Client, service: str) -> None:
    results = client.submit_many(service, [{"n": 1}, 7, Submission({"n": 2}, correlation_id="c"), {"n": 3}])
    assert [type(result) for result in results] == [Submitted, Refused, Submitted, Submitted]
    assert refused(results[1]).number == 400003
    second = results[2]
    assert isinstance(second, Submitted)
    assert client.get(service, second.task_id).correlation_id == "c"
    assert client.submit_many(service, []) == []


def test_more_than_one_call_takes_are_split(client: Client, service: str) -> None:
    results = client.submit_many(service, ({"n": number} for number in range(1200)))
    places = [result.task_position for result in results if isinstance(result, Submitted)]
    assert places == list(range(1, 1201))
    large = client.submit_many(service, [{"text": "x" * 400_000}] * 4)
    assert all(isinstance(result, Submitted) for result in large)


def test_many_on_a_service_that_is_not_there_is_an_error(client: Client) -> None:
    with pytest.raises(Refused) as error:
        client.submit_many("nowhere", [{}])
    assert error.value.number == 404001


def test_a_submission_to_a_full_service_is_retried(server: RelaisServer) -> None:
    service = server.service(capacity=1)
    manual = ManualWorker(server, service)
    with Client(server.url, *CONSUMER, patience=0) as hasty:
        hasty.submit(service, {})
        with pytest.raises(Refused) as error:
            hasty.submit(service, {})
        assert (error.value.number, error.value.retry_after, error.value.passing) == (429001, 1.0, True)
    claimed = threading.Timer(0.3, manual.claim)
    claimed.start()
    with Client(server.url, *CONSUMER, patience=10) as patient:
        assert patient.submit(service, {}).task_position == 1
    claimed.join()
    manual.close()


def test_retries_of_a_submission_end(server: RelaisServer) -> None:
    service = server.service(capacity=0)
    with Client(server.url, *CONSUMER, patience=0.5) as client, pytest.raises(Refused) as error:
        client.submit(service, {})
    assert error.value.number == 429001


def test_tasks_are_listed_page_by_page(client: Client, service: str) -> None:
    ids = [client.submit(service, {"n": number}).task_id for number in range(5)]
    client.cancel(service, ids[0])
    page = client.list_tasks(service, limit=2)
    assert [task.task_id for task in page.tasks] == [ids[4], ids[3]]
    assert page.next_cursor is not None
    page = client.list_tasks(service, limit=2, cursor=page.next_cursor)
    assert [task.task_id for task in page.tasks] == [ids[2], ids[1]]
    assert [task.task_id for task in client.iter_tasks(service)] == ids[::-1]
    assert [task.task_id for task in client.iter_tasks(service, status=Status.CANCELLED)] == [ids[0]]
    both = client.list_tasks(service, status=[Status.CANCELLED, Status.PENDING])
    assert len(both.tasks) == 5
    now = datetime.now(timezone.utc)
    assert client.list_tasks(service, from_=now + timedelta(hours=1)).tasks == []
    assert len(client.list_tasks(service, before=now + timedelta(hours=1)).tasks) == 5


def test_a_task_is_cancelled_and_an_ended_one_can_not_be(client: Client, service: str, manual: ManualWorker) -> None:
    task_id = client.submit(service, {}).task_id
    assert client.cancel(service, task_id).status is Status.CANCELLED
    with pytest.raises(TaskCancelled):
        client.wait(service, task_id).result()
    task_id = client.submit(service, {}).task_id
    manual.report(manual.claim(), messageType="success", response=None)
    assert client.wait(service, task_id).result() is None
    with pytest.raises(Refused) as error:
        client.cancel(service, task_id)
    assert error.value.number == 409002


def test_a_stream_sends_milestones_and_ends_with_the_task(client: Client, service: str, manual: ManualWorker) -> None:
    task_id = client.submit(service, {}).task_id
    events = client.stream(service, task_id)
    first = next(events)
    assert (first.kind, first.task.status) == ("status", Status.PENDING)
    claim = manual.claim()
    assert next(events).task.status is Status.IN_PROGRESS
    manual.report(claim, messageType="progress", progress=40)
    moved = next(events)
    assert (moved.kind, moved.task.progress) == ("progress", 40.0)
    odd = "line\nbreak\u2028and\x85more\r\n"  # What a reader of lines must not trip over.
    manual.report(claim, messageType="success", response=odd)
    last = next(events)
    assert (last.kind, last.task.result()) == ("status", odd)
    assert list(events) == []
    assert [event.task.status for event in client.stream(service, task_id)] == [Status.SUCCESS]


def test_a_stream_of_a_missing_task_is_refused(client: Client, service: str) -> None:
    with pytest.raises(Refused) as error:
        next(client.stream(service, "0198c7c2-0000-7000-8000-000000000000"))
    assert error.value.number == 404002


def test_services_are_listed_with_their_schemas(client: Client, server: RelaisServer) -> None:
    service = server.service(jsonSchema=STRICT)
    assert client.service(service).json_schema == STRICT
    (listed,) = (one for one in client.services() if one.service_name == service)
    assert (listed.roles, listed.paused, listed.json_schema) == (["consume"], False, STRICT)


def test_settings_come_from_the_environment_and_secrets_stay_hidden(
    server: RelaisServer, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(("RELAIS_URL", "RELAIS_CLIENT", "RELAIS_SECRET"), (server.url, *CONSUMER), strict=True):
        monkeypatch.setenv(name, value)
    with Client() as client:
        assert client.submit(service, {}).task_position == 1
        assert "secret" not in repr(client)
    monkeypatch.delenv("RELAIS_SECRET")
    with pytest.raises(ValueError, match="RELAIS_SECRET"):
        Client()
    with pytest.raises(ValueError, match="not an http"):
        Client("localhost:8080", *CONSUMER)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RelaisServer]:
    server = RelaisServer(tmp_path)
    yield server
    server.close()


def test_a_server_that_is_away_for_a_moment_is_waited_for(own_server: RelaisServer) -> None:
    service = own_server.service()
    manual = ManualWorker(own_server, service)
    with Client(own_server.url, *CONSUMER, patience=20) as client:
        task_id = client.submit(service, {}).task_id
        events = client.stream(service, task_id)
        assert next(events).task.status is Status.PENDING
        own_server.kill()
        back = threading.Timer(0.3, own_server.start)
        back.start()
        again = client.submit(service, {}, idempotency_key="k")
        back.join()
        assert client.submit(service, {}, idempotency_key="k").task_id == again.task_id
        manual.claim()
        assert next(events).task.status is Status.IN_PROGRESS
    manual.close()
    own_server.kill()
    with Client(own_server.url, *CONSUMER, patience=0.3) as client:
        for call in (lambda: client.get(service, task_id), lambda: next(client.stream(service, task_id))):
            with pytest.raises(Unreachable) as error:
                call()
            assert isinstance(error.value, RelaisError)
