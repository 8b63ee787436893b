"""Notifications, audiences and tickets, against a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import httpx
import pytest

from house import DEADLINE, RelaisServer, until
from relais import (
    AsyncClient,
    Audience,
    Client,
    MembersChange,
    Notification,
    NotificationRetry,
    NotificationStatus,
    Refused,
    Target,
)

EMITTER = ("emitter", "emitter-secret")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelaisServer]:
    """A server whose users have little time, and a client that may do everything with notifications."""
    server = RelaisServer(tmp_path_factory.mktemp("server"), RELAIS_NOTIFICATIONS_ACK_TIMEOUT="200ms")
    rights = {"emit": ["*"], "audience": ["*"], "ticket": ["*"]}
    server.declare(clients=[{"clientId": EMITTER[0], "clientSecret": EMITTER[1], "notifications": rights}])
    yield server
    server.close()


@pytest.fixture
def emitter(server: RelaisServer) -> Iterator[Client]:
    with Client(server.url, *EMITTER) as client:
        yield client


def to(payload: Any, *users: str) -> Notification:
    return Notification(payload, Audience("USER", users))


def seen(server: RelaisServer, emitter: Client, user: str) -> list[dict[str, Any]]:
    """What a user has, by a ticket."""
    ticket = emitter.issue_ticket(user, ttl=timedelta(minutes=5))
    assert timedelta(minutes=4) < ticket.expires - datetime.now(timezone.utc) < timedelta(minutes=6)
    headers = {"Authorization": f"Bearer {ticket.ticket}"}
    answer = httpx.get(f"{server.url}/v1/notifications", headers=headers, timeout=DEADLINE)
    return [one["message"] for one in answer.json()["data"]["notifications"]]


def test_notifications_reach_who_they_are_for(server: RelaisServer, emitter: Client) -> None:
    expiration = datetime(2100, 1, 1, tzinfo=timezone.utc)
    audience = Audience("USER", ["ann"])
    message = Notification({"n": 1}, audience, type="SYSTEM", priority="HIGH", source="orders", expiration=expiration)
    first = emitter.notify(message)
    second, third = emitter.notify_many([to(Decimal("0.1234567890123456789"), "ann", "bob"), to(None, "bob")])
    newer, older = seen(server, emitter, "ann")
    assert older["metadata"]["expiration"].startswith("2100-01-01T00:00:00")
    assert older["metadata"]["id"] == first
    assert (older["metadata"]["type"], older["metadata"]["emitter"], older["payload"]) == (
        "SYSTEM",
        "emitter",
        {"n": 1},
    )
    assert newer["metadata"]["id"] == second
    assert [one["metadata"]["id"] for one in seen(server, emitter, "bob")] == [third, second]


def test_a_repeated_idempotency_key_stores_a_message_once(server: RelaisServer, emitter: Client) -> None:
    first = emitter.notify(to(1, "cem"), idempotency_key="k")
    assert emitter.notify(to(1, "cem"), idempotency_key="k") == first
    assert emitter.notify(to(1, "cem")) != first
    with pytest.raises(Refused):
        emitter.notify(to(2, "cem"), idempotency_key="k")
    assert len(seen(server, emitter, "cem")) == 2


def test_a_notification_is_withdrawn_or_replaced(server: RelaisServer, emitter: Client) -> None:
    first, second = emitter.notify_many([to(1, "eve"), to(2, "eve")])
    emitter.withdraw_notification(first)
    third = emitter.replace_notification(second, to(3, "eve"))
    assert [one["metadata"]["id"] for one in seen(server, emitter, "eve")] == [third]
    with pytest.raises(Refused) as refused:
        emitter.withdraw_notification("0198c7c2-0000-7000-8000-000000000000")
    assert refused.value.number == 404013


def test_who_has_not_acknowledged_is_in_the_error_log(emitter: Client) -> None:
    retry = NotificationRetry(ack_required=True, limit=1, backoff="FIXED")
    with pytest.raises(Refused) as refused:
        emitter.notify(Notification(1, Audience("GROUP", ["nobody"]), retry))
    assert refused.value.number == 400016
    emitter.set_audience("GROUP", "staff", ["fay"])
    id_ = emitter.notify(Notification("read this", Audience("GROUP", ["staff"]), retry))
    until("it has failed", lambda: emitter.notification_errors().notifications)
    page = emitter.notification_errors(limit=7)
    (failed,) = page.notifications
    assert (failed.message.id, failed.status, failed.client_id) == (id_, NotificationStatus.FAILED, "emitter")
    assert failed.message.retry == NotificationRetry(True, True, 1, "FIXED", attempts=1)
    assert failed.message.expiration is not None
    (line,) = failed.ledger
    assert (line.user, line.awaited, line.acknowledged) == ("fay", True, None)
    assert page.next is None


def test_members_are_set_added_removed_and_listed(emitter: Client) -> None:
    assert emitter.set_audience("GROUP", "1b", ["ann", "bob"]) == MembersChange(2, 0)
    assert emitter.add_to_audience("GROUP", "1b", ["bob", Target("a/b", "GROUP")]) == MembersChange(1, 0)
    assert emitter.remove_from_audience("GROUP", "1b", ["ann", "nobody"]) == MembersChange(0, 1)
    assert list(emitter.audience_members("GROUP", "1b")) == [Target("a/b", "GROUP"), Target("bob")]
    with pytest.raises(Refused) as refused:
        emitter.set_audience("GROUP", "1b", [Target("1b", "GROUP")])
    assert refused.value.number == 400017


def test_all_members_are_listed_page_after_page(emitter: Client) -> None:
    users = [f"user-{number:04}" for number in range(1001)]
    assert emitter.set_audience("GROUP", "all", users).joined == 1001
    assert [member.target for member in emitter.audience_members("GROUP", "all")] == users


def test_a_client_does_only_what_it_has_the_rights_for(server: RelaisServer, client: Client) -> None:
    calls: list[Callable[[], object]] = [
        lambda: client.notify(to(1, "ann")),
        lambda: client.add_to_audience("GROUP", "1b", ["ann"]),
        lambda: client.issue_ticket("ann", audiences={"GROUP": ["1b"]}),
    ]
    for call in calls:
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.number == 403001


async def test_the_asyncio_client_has_the_same_calls(server: RelaisServer) -> None:
    async with AsyncClient(server.url, *EMITTER) as client:
        id_ = await client.notify(to(1, "gil"))
        (second,) = await client.notify_many([to(2, "gil")])
        await client.withdraw_notification(id_)
        assert await client.replace_notification(second, to(3, "gil")) != second
        assert (await client.issue_ticket("gil", audiences={"GROUP": ["2b"]})).ticket
        assert await client.set_audience("GROUP", "2b", ["gil"]) == MembersChange(1, 0)
        assert await client.add_to_audience("GROUP", "2b", ["hal"]) == MembersChange(1, 0)
        assert await client.remove_from_audience("GROUP", "2b", ["gil"]) == MembersChange(0, 1)
        assert [member async for member in client.audience_members("GROUP", "2b")] == [Target("hal")]
        assert (await client.notification_errors(limit=1)).notifications is not None
