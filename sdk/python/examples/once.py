"""Processes a message once, however often it is delivered: `python once.py URL ID`.

By `redis://…` the id is kept in Redis, by `postgresql://…` in the transaction of the handler.
"""

import sys

import psycopg
import redis

from relais.dedup import Once, PostgresDedup, RedisDedup


def once_in_redis(url: str, message_id: str) -> Once[str]:
    """A claim before the handler, a mark after it."""
    dedup = RedisDedup(redis.Redis.from_url(url), "billing")
    dedup.check(longest_retry=17 * 3600)  # A repeat that comes after the window runs again.
    return dedup.once(message_id, lambda: "billed")


def once_in_a_transaction(url: str, message_id: str) -> Once[str]:
    """The bill and the mark commit together: exactly one bill."""
    dedup = PostgresDedup("billing")

    def bill(connection: psycopg.Connection) -> str:
        connection.execute("INSERT INTO bill (message) VALUES (%s)", [message_id])
        return "billed"

    with psycopg.connect(url, autocommit=True) as connection:
        dedup.create(connection)
        connection.execute("CREATE TABLE IF NOT EXISTS bill (message text)")
        return dedup.once(connection, message_id, bill)


if __name__ == "__main__":
    url, message_id = sys.argv[1:]
    once = once_in_redis if url.startswith("redis") else once_in_a_transaction
    outcome = once(url, message_id)
    print(outcome.status.value)  # done; already done; busy, which is not to be acknowledged
