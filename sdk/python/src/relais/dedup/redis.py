"""Claims and marks in Redis, Valkey or KeyDB: one key for each message.

A claim is `SET key claim:TOKEN NX PX ms`, a mark the value `1` under the same key. Any other value is somebody else's
code that says `SET key value NX EX n` before it processes a message: it counts as a mark.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..wire import Duration
from .model import DAY, ClaimExpired, Once, OnceStatus, check_id, check_name, check_window, seconds

log = logging.getLogger("relais.dedup")

T = TypeVar("T")

EXTEND = """-- Lets a claim (ARGV[1]) last for ARGV[2] ms, unless somebody else has the message (KEYS[1]) by now.
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

MARK = """-- Turns a claim (ARGV[1]) into a mark for ARGV[2] ms, unless somebody else has the message (KEYS[1]) by now.
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
return 1
"""

RELEASE = """-- Removes a claim (ARGV[1]), unless somebody else has the message (KEYS[1]) by now.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""

_CLAIM = b"claim:"

_PAUSE = 0.05
"""The first pause before a mark is tried again. It doubles each time."""


class _Window:
    """What both kinds of client have in common."""

    def __init__(
        self,
        client: Any,
        consumer: str = "",
        *,
        window: Duration = DAY,
        claim: Duration = 30.0,
        prefix: str = "dedup:processed:",
    ) -> None:
        self._client = client
        self._window, self._claim = seconds(window, "window"), seconds(claim, "claim")
        name = check_name(consumer).replace("%", "%25").replace(":", "%3A")
        self._prefix = f"{prefix}{name}:" if name else prefix
        self._extend = client.register_script(EXTEND)
        self._mark = client.register_script(MARK)
        self._release = client.register_script(RELEASE)

    def check(self, longest_retry: Duration) -> None:
        """Checks that a repeat finds the mark. Raises ValueError if it may come later."""
        check_window(self._window, longest_retry)

    def _key(self, message_id: str) -> str:
        return self._prefix + check_id(message_id)

    def _busy(self, value: bytes | str | None, left: int) -> Once[Any]:
        """What a key that is there means."""
        value = value.encode() if isinstance(value, str) else value
        if value is not None and not value.startswith(_CLAIM):
            return Once(OnceStatus.ALREADY_DONE)
        # What is not there any more was a claim: a mark would not end just now.
        return Once(OnceStatus.BUSY, wait=max(left, 0) / 1000)


def _token() -> str:
    return _CLAIM.decode() + secrets.token_hex(16)


def _millis(span: float) -> int:
    return max(1, round(span * 1000))


class RedisDedup(_Window):
    """Processes messages once, by keys in the Redis of `client`, a `redis.Redis`.

    Consumers with different names process each message for themselves; processes that share the work have the same
    name. `window` is how long a message counts as processed, `claim` how long a claim lasts without a sign of its
    process. `prefix` is what keys begin with.
    """

    def once(self, message_id: str, handler: Callable[[], T]) -> Once[T]:
        """Runs the handler unless the message was processed within the window, or is being processed.

        The claim is extended by a thread while the handler runs. What the handler raises is raised; then there is no
        mark, and the message can be tried again. A handler cannot be stopped: where Redis was away for longer than a
        claim lasts, somebody else may run it too, and the log says so.
        """
        key, token = self._key(message_id), _token()
        try:
            claimed = self._client.set(key, token, nx=True, px=_millis(self._claim))
        except BaseException:
            self._give_up(key, token)  # There may be a claim whose answer was lost.
            raise
        if not claimed:
            return self._busy(self._client.get(key), self._client.pttl(key))
        ended = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(key, token, ended), daemon=True)
        keeper.start()

        def stop() -> None:
            # An extension that arrives after a release would bring the claim back.
            ended.set()
            keeper.join()

        try:
            result = handler()
        except BaseException:
            stop()
            self._give_up(key, token)
            raise
        try:
            self._mark_until_done(key, token, message_id)
        finally:
            stop()
        return Once(OnceStatus.DONE, result)

    def _give_up(self, key: str, token: str) -> None:
        with contextlib.suppress(Exception):  # It expires.
            self._release(keys=[key], args=[token])

    def _keep(self, key: str, token: str, ended: threading.Event) -> None:
        while not ended.wait(self._claim / 3):
            try:
                if not self._extend(keys=[key], args=[token, _millis(self._claim)]):
                    log.warning("the claim of %s had expired and was taken over: it may run twice at once", key)
                    return
            except Exception as error:
                log.debug("the claim of %s could not be extended: %s", key, error)

    def _mark_until_done(self, key: str, token: str, message_id: str) -> None:
        end, pause = time.monotonic() + self._claim, _PAUSE
        while True:
            try:
                if not self._mark(keys=[key], args=[token, _millis(self._window)]):
                    log.warning("message %s was processed, but its claim was taken over", message_id)
                return
            except Exception as error:
                if time.monotonic() + pause >= end:
                    log.error("message %s was processed, but could not be marked: %s", message_id, error)
                    return
            time.sleep(pause)
            pause *= 2


class AsyncRedisDedup(_Window):
    """The same with asyncio, by the Redis of `client`, a `redis.asyncio.Redis`."""

    async def once(self, message_id: str, handler: Callable[[], Awaitable[T]]) -> Once[T]:
        """Runs the handler unless the message was processed within the window, or is being processed.

        What the handler raises is raised; then there is no mark. A handler whose claim was taken over is cancelled, and
        the message is busy; one whose claim ran out because Redis could not be reached is cancelled too, which raises
        `ClaimExpired`.
        """
        key, token = self._key(message_id), _token()
        asked = time.monotonic()
        try:
            claimed = await self._client.set(key, token, nx=True, px=_millis(self._claim))
        except BaseException:
            await self._give_up(key, token)  # There may be a claim whose answer was lost.
            raise
        if not claimed:
            return self._busy(await self._client.get(key), await self._client.pttl(key))
        ended = asyncio.Event()
        work = asyncio.ensure_future(handler())
        keeper = asyncio.ensure_future(self._keep(key, token, asked, ended))

        async def stop() -> None:
            # An extension that arrives after a release would bring the claim back.
            ended.set()
            await asyncio.wait([keeper])

        try:
            await asyncio.wait([work, keeper], return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await _cancel(work)
                if keeper.result():
                    return Once(OnceStatus.BUSY, wait=self._claim)
                raise ClaimExpired(f"the claim of {key} ran out while Redis could not be reached")
            result = work.result()
        except BaseException:
            await _cancel(work)
            await stop()
            await self._give_up(key, token)
            raise
        try:
            await self._mark_until_done(key, token, message_id)
        finally:
            await stop()
        return Once(OnceStatus.DONE, result)

    async def _give_up(self, key: str, token: str) -> None:
        with contextlib.suppress(Exception):  # It expires.
            await self._release(keys=[key], args=[token])

    async def _keep(self, key: str, token: str, asked: float, ended: asyncio.Event) -> bool:
        """Returns if the claim is lost: whether somebody else has taken it over."""
        end, pause = asked + self._claim, self._claim / 3
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(ended.wait(), min(pause, max(0.0, end - time.monotonic())))
                return False
            asked = time.monotonic()
            try:
                extending = self._extend(keys=[key], args=[token, _millis(self._claim)])
                if not await asyncio.wait_for(extending, max(0.001, end - asked)):
                    return True
                end, pause = asked + self._claim, self._claim / 3
            except Exception as error:
                log.debug("the claim of %s could not be extended: %s", key, error)
                pause = self._claim / 10
                if time.monotonic() >= end:
                    return False

    async def _mark_until_done(self, key: str, token: str, message_id: str) -> None:
        end, pause = time.monotonic() + self._claim, _PAUSE
        while True:
            try:
                if not await self._mark(keys=[key], args=[token, _millis(self._window)]):
                    log.warning("message %s was processed, but its claim was taken over", message_id)
                return
            except Exception as error:
                if time.monotonic() + pause >= end:
                    log.error("message %s was processed, but could not be marked: %s", message_id, error)
                    return
            await asyncio.sleep(pause)
            pause *= 2


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancels a task, and waits until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
