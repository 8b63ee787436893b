"""A message is processed once: with claims and marks in a real Redis, and with marks in a real PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import redis.asyncio

from house import DEADLINE, environment, free_port, until
from relais.dedup import (
    AsyncPostgresDedup,
    AsyncRedisDedup,
    ClaimExpired,
    Once,
    OnceStatus,
    PostgresDedup,
    RedisDedup,
)

DONE, ALREADY_DONE, BUSY = OnceStatus.DONE, OnceStatus.ALREADY_DONE, OnceStatus.BUSY


class RedisServer:
    """A private Redis, which may be paused."""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.url = f"redis://127.0.0.1:{port}"
        with redis.Redis.from_url(self.url) as client:
            until("Redis answers", lambda: self._answers(client))

    @staticmethod
    def _answers(client: Any) -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
async def async_client(server: RedisServer) -> AsyncIterator[Any]:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def prefix() -> str:
    return f"dedup:{secrets.token_hex(6)}:"


class Runs:
    """A handler that counts how often it ran."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count

    async def later(self) -> int:
        return self()


def fail() -> None:
    raise LookupError("no")


async def fail_later() -> None:
    fail()


def test_a_second_delivery_does_nothing_and_a_failure_leaves_nothing(client: Any, prefix: str) -> None:
    dedup, runs = RedisDedup(client, "billing", prefix=prefix), Runs()
    with pytest.raises(LookupError):
        dedup.once("7", fail)
    assert dedup.once("7", runs) == Once(DONE, 1)
    assert dedup.once("7", runs) == Once(ALREADY_DONE)
    assert dedup.once("8", runs) == Once(DONE, 2)
    assert RedisDedup(client, "shipping", prefix=prefix).once("7", runs) == Once(DONE, 3)
    assert RedisDedup(client, prefix=prefix).once("7", runs) == Once(DONE, 4)


async def test_the_same_holds_with_asyncio(async_client: Any, prefix: str) -> None:
    dedup, runs = AsyncRedisDedup(async_client, "billing", prefix=prefix), Runs()
    with pytest.raises(LookupError):
        await dedup.once("7", fail_later)
    assert await dedup.once("7", runs.later) == Once(DONE, 1)
    assert await dedup.once("7", runs.later) == Once(ALREADY_DONE)


def test_a_message_that_is_being_processed_is_busy(client: Any, prefix: str) -> None:
    dedup = RedisDedup(client, prefix=prefix, claim=60)
    begun, go = threading.Event(), threading.Event()

    def handler() -> bool:
        begun.set()
        return go.wait(DEADLINE)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(dedup.once, "7", handler)
        assert begun.wait(DEADLINE)
        busy = dedup.once("7", handler)
        assert busy.status is BUSY
        assert not busy.processed
        assert busy.wait is not None
        assert 0 < busy.wait <= 60
        go.set()
        assert first.result(DEADLINE) == Once(DONE, True)
    assert dedup.once("7", handler).processed


def test_code_that_says_set_nx_ex_shares_the_window_both_ways(client: Any, prefix: str) -> None:
    for name, start in (("", prefix), ("a:b", f"{prefix}a%3Ab:")):
        dedup = RedisDedup(client, name, prefix=prefix)
        assert client.set(f"{start}7", "1", nx=True, ex=60)
        assert dedup.once("7", fail) == Once(ALREADY_DONE)
        key = f"{start}8"
        assert dedup.once("8", partial(client.set, key, "1", nx=True, ex=60)) == Once(DONE, None)
        assert client.get(key) == b"1"
        assert 86_300 < client.ttl(key) <= 86_400


def test_a_long_handler_keeps_its_claim(client: Any, prefix: str) -> None:
    dedup, begin = RedisDedup(client, prefix=prefix, claim=0.9), time.monotonic()

    def handler() -> bool:
        until("it takes longer than a claim", lambda: time.monotonic() - begin > 1.5)
        return bool(client.exists(f"{prefix}7"))

    assert dedup.once("7", handler) == Once(DONE, True)


def test_what_was_processed_by_two_is_said(client: Any, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "relais.dedup"):
        RedisDedup(client, prefix=prefix).once("7", lambda: client.set(f"{prefix}7", "claim:of somebody else"))
    assert "taken over" in caplog.text
    assert client.get(f"{prefix}7") == b"claim:of somebody else"


async def test_a_handler_whose_claim_was_taken_over_is_cancelled(async_client: Any, prefix: str) -> None:
    dedup, cancelled = AsyncRedisDedup(async_client, prefix=prefix, claim=0.6), asyncio.Event()

    async def handler() -> None:
        await async_client.set(f"{prefix}7", "claim:of somebody else")
        try:
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert await dedup.once("7", handler) == Once(BUSY, wait=0.6)
    assert cancelled.is_set()
    assert await async_client.get(f"{prefix}7") == b"claim:of somebody else"


async def test_a_handler_that_is_cancelled_leaves_nothing(async_client: Any, prefix: str) -> None:
    dedup, begun, runs = AsyncRedisDedup(async_client, prefix=prefix, claim=600), asyncio.Event(), Runs()

    async def handler() -> None:
        begun.set()
        await asyncio.sleep(DEADLINE)

    task = asyncio.ensure_future(dedup.once("7", handler))
    await asyncio.wait_for(begun.wait(), DEADLINE)
    task.cancel()
    await asyncio.wait([task], timeout=DEADLINE)
    assert task.cancelled()
    assert await dedup.once("7", runs.later) == Once(DONE, 1)


async def test_a_handler_is_cancelled_when_its_claim_ends_because_redis_is_away(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        async with redis.asyncio.Redis.from_url(server.url, socket_timeout=0.2) as client:

            async def handler() -> None:
                server.signal(signal.SIGSTOP)
                await asyncio.sleep(DEADLINE)

            with pytest.raises(ClaimExpired):
                await AsyncRedisDedup(client, claim=0.6).once("7", handler)
    finally:
        server.close()


def test_what_can_not_be_an_id_a_name_or_a_window_is_refused(client: Any) -> None:
    dedup = RedisDedup(client, window=24 * 3600)
    dedup.check(17 * 3600)
    with pytest.raises(ValueError, match="must be longer"):
        dedup.check(24 * 3600)
    for wrong in ("", "a\0b", "x" * 1025):
        with pytest.raises(ValueError, match="message id"):
            dedup.once(wrong, fail)
    with pytest.raises(ValueError, match="longer than zero"):
        RedisDedup(client, window=0)
    with pytest.raises(ValueError, match="name"):
        RedisDedup(client, "x" * 256)
    with pytest.raises(ValueError, match="not the name of a table"):
        PostgresDedup("billing", table="a; DROP TABLE b")


@pytest.fixture
def database() -> Iterator[str]:
    """A database of its own with a table of effects."""
    url, name = environment("RELAIS_TEST_POSTGRES"), f"relais_python_{secrets.token_hex(8)}"
    with psycopg.connect(f"{url.rstrip('/')}/postgres", autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        with psycopg.connect(f"{url.rstrip('/')}/{name}", autocommit=True) as connection:
            connection.execute("CREATE TABLE effect (message text)")
        yield f"{url.rstrip('/')}/{name}"
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def effect(connection: psycopg.Connection) -> str:
    connection.execute("INSERT INTO effect VALUES ('7')")
    return "billed"


def effects(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT count(*) FROM effect").fetchone()
    assert row is not None
    return int(row[0])


def test_in_a_transaction_effect_and_mark_commit_together(database: str) -> None:
    dedup = PostgresDedup("billing")
    past = "UPDATE relais_dedup SET expires_at = expires_at - interval '24 h'"
    with psycopg.connect(database, autocommit=True) as one, psycopg.connect(database, autocommit=True) as other:
        dedup.create(one)
        dedup.create(one)

        def fails(connection: psycopg.Connection) -> None:
            effect(connection)
            raise LookupError("no")

        def first(connection: psycopg.Connection) -> str:
            assert dedup.once(other, "7", effect) == Once(BUSY, wait=1.0), "while the transaction is open"
            return effect(connection)

        with pytest.raises(LookupError):
            dedup.once(one, "7", fails)
        assert effects(one) == 0
        assert dedup.once(one, "7", first) == Once(DONE, "billed")
        assert dedup.once(other, "7", effect) == Once(ALREADY_DONE)
        assert effects(one) == 1
        one.execute(past)
        assert dedup.once(one, "7", effect) == Once(DONE, "billed"), "after its window"
        assert dedup.purge(one) == 0
        one.execute(past)
        assert dedup.purge(one) == 1


async def test_in_a_transaction_of_asyncio_too(database: str) -> None:
    dedup = AsyncPostgresDedup("billing", table="public.done_messages")

    async def handler(connection: psycopg.AsyncConnection) -> str:
        await connection.execute("INSERT INTO effect VALUES ('7')")
        return "billed"

    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await dedup.create(connection)
        assert await dedup.once(connection, "7", handler) == Once(DONE, "billed")
        assert await dedup.once(connection, "7", handler) == Once(ALREADY_DONE)
        await connection.execute("UPDATE done_messages SET expires_at = expires_at - interval '24 h'")
        assert await dedup.once(connection, "7", handler) == Once(DONE, "billed")
        assert await dedup.purge(connection) == 0
    dedup.check(3600)


def test_many_transactions_at_once_have_one_effect(database: str) -> None:
    dedup = PostgresDedup("billing")
    with psycopg.connect(database, autocommit=True) as connection:
        dedup.create(connection)

    def deliver(seed: int) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            left = [f"order-{(seed * 7 + number) % 30}" for number in range(30)]
            while left:
                message = left[0]

                def handler(connection: psycopg.Connection, message: str = message) -> None:
                    connection.execute("INSERT INTO effect VALUES (%s)", [message])
                    if secrets.randbelow(3) == 0:
                        raise LookupError("no")

                try:
                    if dedup.once(connection, message, handler).processed:
                        left.pop(0)
                    else:
                        left.append(left.pop(0))
                except LookupError:
                    pass

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(deliver, range(6)))
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT message, count(*) FROM effect GROUP BY 1").fetchall()
    assert len(rows) == 30
    assert {count for _, count in rows} == {1}
