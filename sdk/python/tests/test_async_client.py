"""The asyncio client: the same calls, and many at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator

import pytest

from house import CONSUMER, ManualWorker, RelaisServer
from relais import AsyncClient, Client, NotDone, Refused, Status, Submitted, TaskFailed, Unreachable


@pytest.fixture
async def asked(server: RelaisServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, *CONSUMER) as client:
        yield client


async def by_hand(manual: ManualWorker, **data: object) -> None:
    """One task, by hand, beside the event loop."""
    claim = await asyncio.to_thread(manual.claim)
    await asyncio.to_thread(manual.report, claim, **data)


def test_both_clients_have_the_same_calls() -> None:
    def calls(kind: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(call).parameters) for name, call in methods if not name.startswith("_")}

    assert calls(Client) == calls(AsyncClient)


async def test_a_task_is_submitted_and_waited_for(asked: AsyncClient, service: str, manual: ManualWorker) -> None:
    waiting = asyncio.create_task(asked.run(service, {"n": 1}, timeout=20))
    await by_hand(manual, messageType="success", response=2)
    assert await waiting == 2
    submitted = await asked.submit(service, {}, correlation_id="c")
    assert (await asked.get(service, submitted.task_id)).correlation_id == "c"
    await by_hand(manual, messageType="failure", errorMessage="no")
    with pytest.raises(TaskFailed, match="no"):
        (await asked.wait(service, submitted.task_id)).result()


async def test_many_wait_at_once(asked: AsyncClient, service: str, manual: ManualWorker) -> None:
    results = await asked.submit_many(service, [{"n": n} for n in range(20)])
    ids = [result.task_id for result in results if isinstance(result, Submitted)]
    waiting = [asyncio.create_task(asked.wait(service, task_id, timeout=25)) for task_id in ids]
    for _ in ids:
        await by_hand(manual, messageType="success", response=True)
    assert [task.result() for task in await asyncio.gather(*waiting)] == [True] * 20


async def test_a_stream_sends_the_milestones_of_a_task(asked: AsyncClient, service: str, manual: ManualWorker) -> None:
    task_id = (await asked.submit(service, {})).task_id
    statuses = []
    async for event in asked.stream(service, task_id):
        statuses.append(event.task.status)
        if event.task.status is Status.PENDING:
            await by_hand(manual, messageType="success", response=1)
    assert statuses[0] is Status.PENDING
    assert statuses[-1] is Status.SUCCESS


async def test_tasks_are_listed_and_cancelled(asked: AsyncClient, service: str) -> None:
    ids = [(await asked.submit(service, {})).task_id for _ in range(3)]
    assert (await asked.cancel(service, ids[0])).status is Status.CANCELLED
    page = await asked.list_tasks(service, limit=2)
    assert [task.task_id for task in page.tasks] == [ids[2], ids[1]]
    assert [task.task_id async for task in asked.iter_tasks(service, status=Status.CANCELLED)] == [ids[0]]
    assert service in [one.service_name for one in await asked.services()]
    assert (await asked.service(service)).json_schema is None


async def test_errors_are_raised(asked: AsyncClient, service: str) -> None:
    with pytest.raises(Refused) as refused:
        await asked.submit("nowhere", {})
    assert refused.value.number == 404001
    with pytest.raises(Refused):
        await asked.submit_many("nowhere", [{}])
    with pytest.raises(Refused):
        await anext(asked.stream("nowhere", "0198c7c2-0000-7000-8000-000000000000"))
    task_id = (await asked.submit(service, {})).task_id
    with pytest.raises(NotDone):
        await asked.wait(service, task_id, timeout=0.05)
    async with AsyncClient("http://127.0.0.1:1", *CONSUMER, patience=0.2) as nobody:
        with pytest.raises(Unreachable):
            await nobody.get(service, task_id)
        with pytest.raises(Unreachable):
            await anext(nobody.stream(service, task_id))
