"""The mark in the handler's own transaction on PostgreSQL: mark and effect commit together, or neither does.

The table is that of the Rust library (`relais_dedup`). Of two transactions with the same message one writes the mark;
the other finds the message busy while the first is open, and done once it has committed. Nobody waits for a lock.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..wire import Duration
from .model import DAY, Once, OnceStatus, check_id, check_name, check_window, seconds

T = TypeVar("T")

_WAIT = 1.0
"""After so many seconds a message may be asked for again whose transaction is open."""

_NAME = re.compile(r"[A-Za-z0-9_]{1,40}(\.[A-Za-z0-9_]{1,40})?")

_LOCK = "pg_try_advisory_xact_lock(hashtextextended(%(id)s::text, hashtext(%(consumer)s::text)))"
_LATER = "clock_timestamp() + make_interval(secs => %(window)s)"

_INSERT = f"""
INSERT INTO {{table}} (consumer, id, processed_at, expires_at)
SELECT %(consumer)s::text, %(id)s::text, clock_timestamp(), {_LATER} WHERE {_LOCK}
ON CONFLICT (consumer, id) DO NOTHING"""

_REPLACE = f"""
UPDATE {{table}} SET token = NULL, processed_at = clock_timestamp(), expires_at = {_LATER}
WHERE consumer = %(consumer)s AND id = %(id)s AND expires_at <= clock_timestamp() AND {_LOCK}"""

_LOOK = """
SELECT token IS NULL, extract(epoch FROM expires_at - clock_timestamp())::float8
FROM {table} WHERE consumer = %(consumer)s AND id = %(id)s"""

_PURGE = """
DELETE FROM {table} WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {table} WHERE expires_at <= statement_timestamp()
    ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED))"""

_IS_THERE = "SELECT to_regclass(%(table)s) IS NOT NULL"

# Programs that start at once take turns.
_CREATE = """
SELECT pg_advisory_xact_lock(hashtext('relais_dedup'));
CREATE TABLE IF NOT EXISTS {table} (
    consumer     text COLLATE "C" NOT NULL,
    id           text COLLATE "C" NOT NULL,
    token        text,
    processed_at timestamptz,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (consumer, id)
);
CREATE INDEX IF NOT EXISTS "{name}_expires" ON {table} (expires_at)"""


class _Table:
    """What both kinds of connection have in common."""

    def __init__(self, consumer: str, *, window: Duration = DAY, table: str = "relais_dedup") -> None:
        if not consumer:
            raise ValueError("a consumer has a name")
        if not _NAME.fullmatch(table):
            raise ValueError(f"{table!r} is not the name of a table: letters, digits and underscores")
        self._consumer, self._window = check_name(consumer), seconds(window, "window")
        self._table = ".".join(f'"{part}"' for part in table.split("."))
        self._name = table.split(".")[-1]

    def check(self, longest_retry: Duration) -> None:
        """Checks that a repeat finds the mark. Raises ValueError if it may come later."""
        check_window(self._window, longest_retry)

    def _sql(self, statement: str) -> str:
        return statement.format(table=self._table, name=self._name)

    def _values(self, message_id: str) -> dict[str, Any]:
        return {"consumer": self._consumer, "id": check_id(message_id), "window": self._window}

    @staticmethod
    def _found(row: tuple[bool, float] | None) -> Once[Any] | None:
        """What a row means that is there; nothing if there is none, or if it is over."""
        if row is None or row[1] <= 0:
            return None
        return Once(OnceStatus.ALREADY_DONE) if row[0] else Once(OnceStatus.BUSY, wait=row[1])


class PostgresDedup(_Table):
    """Processes messages once, with marks in the table `table`, for the consumer of this name.

    `window` is how long a message counts as processed.
    """

    def create(self, connection: Any) -> None:
        """Makes the table, if it is not there."""
        with connection.cursor() as cursor:
            # Where it is, nothing is locked: others write to it.
            cursor.execute(_IS_THERE, {"table": self._table})
            if not cursor.fetchone()[0]:
                cursor.execute(self._sql(_CREATE))

    def once(self, connection: Any, message_id: str, handler: Callable[[Any], T]) -> Once[T]:
        """Runs the handler in a transaction with the mark, unless the message was processed or is being processed.

        `connection` is a `psycopg.Connection`, which the handler gets. What the handler raises is raised, and all of
        its transaction is rolled back.
        """
        with connection.transaction():
            found = self.mark(connection, message_id)
            if found is not None:
                return found
            result = handler(connection)
        return Once(OnceStatus.DONE, result)

    def mark(self, connection: Any, message_id: str) -> Once[Any] | None:
        """Writes the mark in the transaction that is open; then process the message and commit.

        If it does not, because the message is done or busy, it returns that: do not process it, and roll back. Any
        connection of psycopg 3 or 2 will do, unless each of its statements commits by itself.
        """
        values = self._values(message_id)
        with connection.cursor() as cursor:
            for _ in range(2):
                cursor.execute(self._sql(_INSERT), values)
                if cursor.rowcount:
                    return None
                cursor.execute(self._sql(_LOOK), values)
                row = cursor.fetchone()
                if found := self._found(row):
                    return found
                if row is not None:
                    cursor.execute(self._sql(_REPLACE), values)
                    if cursor.rowcount:
                        return None
        # A transaction that is open has it.
        return Once(OnceStatus.BUSY, wait=_WAIT)

    def purge(self, connection: Any, limit: int = 1000) -> int:
        """Removes at most `limit` marks and claims that are over; how many there were.

        The Rust library does it by itself.
        """
        with connection.cursor() as cursor:
            cursor.execute(self._sql(_PURGE), {"limit": limit})
            return int(cursor.rowcount)


class AsyncPostgresDedup(_Table):
    """The same with asyncio: connections are `psycopg.AsyncConnection`."""

    async def create(self, connection: Any) -> None:
        """Makes the table, if it is not there."""
        async with connection.cursor() as cursor:
            await cursor.execute(_IS_THERE, {"table": self._table})
            if not (await cursor.fetchone())[0]:
                await cursor.execute(self._sql(_CREATE))

    async def once(self, connection: Any, message_id: str, handler: Callable[[Any], Awaitable[T]]) -> Once[T]:
        """Runs the handler in a transaction with the mark, unless the message was processed or is being processed.

        What the handler raises is raised, and all of its transaction is rolled back.
        """
        async with connection.transaction():
            found = await self.mark(connection, message_id)
            if found is not None:
                return found
            result = await handler(connection)
        return Once(OnceStatus.DONE, result)

    async def mark(self, connection: Any, message_id: str) -> Once[Any] | None:
        """Writes the mark in the transaction that is open; then process the message and commit.

        If it does not, because the message is done or busy, it returns that: do not process it, and roll back.
        """
        values = self._values(message_id)
        async with connection.cursor() as cursor:
            for _ in range(2):
                await cursor.execute(self._sql(_INSERT), values)
                if cursor.rowcount:
                    return None
                await cursor.execute(self._sql(_LOOK), values)
                row = await cursor.fetchone()
                if found := self._found(row):
                    return found
                if row is not None:
                    await cursor.execute(self._sql(_REPLACE), values)
                    if cursor.rowcount:
                        return None
        # A transaction that is open has it.
        return Once(OnceStatus.BUSY, wait=_WAIT)

    async def purge(self, connection: Any, limit: int = 1000) -> int:
        """Removes at most `limit` marks and claims that are over; how many there were."""
        async with connection.cursor() as cursor:
            await cursor.execute(self._sql(_PURGE), {"limit": limit})
            return int(cursor.rowcount)
