"""Processing a message once: a delivery that comes again within a window does nothing.

Brokers deliver at least once. `RedisDedup` claims the id of a message in Redis before its handler runs, and marks it
after; `PostgresDedup` writes the mark in the handler's own transaction, so that mark and effect commit together.
Programs in Rust, Python and JavaScript share a window: the keys, the scripts and the table are the same.

The clients and connections are yours (redis-py, psycopg): this package installs neither.
"""

from .model import ClaimExpired, Once, OnceStatus
from .postgres import AsyncPostgresDedup, PostgresDedup
from .redis import AsyncRedisDedup, RedisDedup

__all__ = [
    "AsyncPostgresDedup",
    "AsyncRedisDedup",
    "ClaimExpired",
    "Once",
    "OnceStatus",
    "PostgresDedup",
    "RedisDedup",
]
