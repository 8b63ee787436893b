"""Tasks that wait for others, batches, and what goes from task to task, against a real server."""

from __future__ import annotations

import asyncio

import pytest

from house import CONSUMER, ManualWorker, RelaisServer
from relais import After, AsyncClient, BatchStatus, Client, Refused, Status, Submission, Submitted, TaskFailed
from relais.worker.job import read_submission

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_dependent_task_gets_the_correlation_id_and_trace(client: Client, service: str, manual: ManualWorker) -> None:
    first = client.submit(service, {}, correlation_id="order 7", traceparent=TRACEPARENT).task_id
    second = client.submit(service, {}, after=After([first])).task_id
    seen = client.get(service, second)
    assert [(one.task_id, one.status) for one in seen.after] == [(first, None)]
    assert (seen.status, seen.correlation_id) == (Status.PENDING, "order 7")
    child = client.submit(service, {}, parent_id=first, priority=0).task_id
    found = client.list_tasks(service, parent_id=first)
    assert [(task.task_id, task.parent_id) for task in found.tasks] == [(child, first)]
    assert len(client.list_tasks(service, correlation_id="order 7").tasks) == 3

    claim = manual.claim()
    job = read_submission(claim)
    assert (job.task_id, job.correlation_id, job.traceparent) == (first, "order 7", TRACEPARENT)
    manual.report(claim, messageType="success", response={})
    client.cancel(service, child)
    claim = manual.claim()
    assert (claim["taskId"], claim["traceparent"]) == (second, TRACEPARENT)
    assert client.get(service, second).after[0].status is Status.SUCCESS
    manual.report(claim, messageType="failure", errorMessage="no")
    third = client.submit(service, {}, after=After([second])).task_id
    with pytest.raises(TaskFailed, match=second) as failed:
        client.wait(service, third, timeout=10).result()
    assert failed.value.task.error_kind == "dependency"


def test_tasks_of_one_submission_can_depend_on_each_other(client: Client, service: str) -> None:
    results = client.submit_many(
        service,
        [
            Submission({}, ref="one"),
            Submission({}, after=After(refs=["one"])),
            Submission({}, after=After(refs=["nobody"], when="anyEnded")),
        ],
    )
    first, second, refused = results
    assert isinstance(first, Submitted)
    assert isinstance(second, Submitted)
    assert isinstance(refused, Refused)
    assert refused.number == 400011
    assert client.get(service, second.task_id).after[0].task_id == first.task_id
    with pytest.raises(ValueError, match="one call"):
        client.submit_many(service, [Submission({}, ref=str(n)) for n in range(1001)])


def test_a_batch_is_created_followed_and_cancelled(client: Client, service: str, manual: ManualWorker) -> None:
    made = client.make_batch(
        [Submission({}, service=service, ref="a"), Submission({}, service=service, after=After(refs=["a"]))],
        correlation_id="b",
        open=True,
    )
    assert len(made.tasks) == 2
    late = client.submit(service, {}, batch_id=made.batch_id)
    task = client.get(service, late.task_id)
    assert (task.batch_id, task.correlation_id) == (made.batch_id, "b")
    batch = client.batch(made.batch_id)
    assert (batch.status, batch.total, batch.pending, batch.done) == (BatchStatus.OPEN, 3, 3, False)
    manual.report(manual.claim(), messageType="success", response={})
    assert client.close_batch(made.batch_id).status is BatchStatus.IN_PROGRESS
    ended = client.cancel_batch(made.batch_id)
    assert (ended.status, ended.success, ended.cancelled) == (BatchStatus.ENDED, 1, 2)
    keyed = [client.make_batch([Submission({}, service=service)], idempotency_key="album") for _ in range(2)]
    assert keyed[0] == keyed[1] != made
    with pytest.raises(Refused) as refused:
        client.make_batch([Submission({}, service=service), Submission({}, service="nowhere")])
    assert (refused.value.number, refused.value.details[0].path) == (404001, "/tasks/1")


def test_the_same_for_asyncio(server: RelaisServer, service: str) -> None:
    async def go() -> None:
        async with AsyncClient(server.url, *CONSUMER) as client:
            made = await client.make_batch([Submission({}, service=service)], traceparent=TRACEPARENT)
            after = After([made.tasks[0].task_id], when="allEnded")
            waits = await client.submit(service, {}, after=after)
            assert (await client.batch(made.batch_id)).total == 1
            assert (await client.cancel_batch(made.batch_id)).done
            task = await client.get(service, waits.task_id)
            assert task.after[0].task_id == made.tasks[0].task_id

    asyncio.run(go())
