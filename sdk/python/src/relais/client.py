"""The consumer's side, for code that blocks. `AsyncClient` is the same for asyncio."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

import httpx

from . import calls
from .backoff import Patience
from .errors import NotDone, Refused, RelaisError, Unreachable
from .model import (
    After,
    Batch,
    BatchMade,
    Callback,
    Retry,
    Service,
    Status,
    Submission,
    SubmitResult,
    Submitted,
    Task,
    TaskEvent,
    TaskPage,
)
from .notifications import (
    Member,
    MembersChange,
    Notification,
    NotificationPage,
    Target,
    Ticket,
)
from .wire import Duration, ParseFloat

T = TypeVar("T")


class Client:
    """Calls the services of one server.

    What is not given is taken from the environment: RELAIS_URL, RELAIS_CLIENT, RELAIS_SECRET. Threads may share it.

    `patience` is for how many seconds a call is tried again that brought nothing and may well succeed later: the
    server is away, stopping or busy (503), or the service is full (429). Zero: never. Only what can not be done twice
    by that is tried again. With `parse_float=Decimal`, numbers with a point keep every digit.
    """

    def __init__(
        self,
        url: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        *,
        patience: float = 10.0,
        parse_float: ParseFloat = float,
    ) -> None:
        self._base, auth = calls.settings(url, client_id, client_secret)
        self._http = httpx.Client(auth=httpx.BasicAuth(*auth))
        self._patience = patience
        self._parse_float = parse_float

    def submit(
        self,
        service: str,
        body: Any,
        *,
        idempotency_key: str | None = None,
        callback: Callback | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        scheduled_date: datetime | str | None = None,
        delay: Duration | None = None,
        expires_after: Duration | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        unique_key: str | None = None,
        unique_for: Duration | None = None,
        after: After | None = None,
        parent_id: str | None = None,
        batch_id: str | None = None,
        traceparent: str | None = None,
    ) -> Submitted:
        """Submits a task; it is stored for good when this returns.

        Submitting again under the same `idempotency_key` gives the same task. Without one, a key is made up for this
        call, so that its own tries never make two tasks. `traceparent` says whose trace the task is part of, as the
        W3C writes it. The rest is what `Submission` says of it; durations are seconds or a timedelta.
        """
        submission = Submission(
            body,
            callback=callback,
            correlation_id=correlation_id,
            priority=priority,
            scheduled_date=scheduled_date,
            delay=delay,
            expires_after=expires_after,
            timeout=timeout,
            retry=retry,
            unique_key=unique_key,
            unique_for=unique_for,
            after=after,
            parent_id=parent_id,
            batch_id=batch_id,
        )
        return self._call(calls.submit(service, submission, idempotency_key, traceparent))

    def submit_many(self, service: str, tasks: Iterable[Any]) -> list[SubmitResult]:
        """Submits many tasks: bodies, or `Submission`s. Each has its own result, in the same order.

        They go in calls of up to 1000. If the first one fails, that is raised; if a later one does, its tasks have the
        error as their result.
        """
        results: list[SubmitResult] = []
        for count, call in calls.submit_many(service, tasks):
            try:
                answers = self._call(call)
                results.extend(answers)
            except RelaisError as error:
                if not results:
                    raise
                results += [error] * count
        return results

    def get(self, service: str, task_id: str) -> Task:
        """A task as it is now."""
        return self._call(calls.get(service, task_id))

    def wait(self, service: str, task_id: str, timeout: float | None = None) -> Task:
        """Waits until a task has ended, in whatever way. Raises NotDone, a TimeoutError, when the time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            wait = calls.WAIT if left is None else min(left, calls.WAIT)
            task = self._call(calls.get(service, task_id, wait), max(self._patience, left or 0.0))
            if task.done:
                return task
            if deadline is not None and time.monotonic() >= deadline:
                raise NotDone(task)

    def run(self, service: str, body: Any, *, timeout: float | None = None, **options: Any) -> Any:
        """Submits, waits, and returns the result. Raises what `Task.result` does.

        Options are `submit`'s, except that `timeout` is how long to wait here.
        """
        return self.wait(service, self.submit(service, body, **options).task_id, timeout).result()

    def stream(self, service: str, task_id: str) -> Iterator[TaskEvent]:
        """Follows a task to its end: how it is now, then every change.

        Changes that come faster than they can be sent come as one. A stream that breaks off is taken up again.
        """
        follow = calls.Follow(self._base, service, task_id, self._parse_float)
        patience = Patience(self._patience)
        while not follow.done:
            error: RelaisError = Unreachable("the stream broke off")
            try:
                with self._http.stream(**follow.request()) as response:
                    if response.status_code == 204:
                        return
                    if response.status_code != 200:
                        response.read()
                        raise calls.refusal(response)
                    for chunk in response.iter_bytes():
                        yield from follow.feed(chunk)
                        patience.reset()
            except httpx.TransportError as cause:
                error = calls.unreachable(cause)
            except Refused as refused:
                if not refused.passing:
                    raise
                error = refused
            if not follow.done:
                wait = patience.wait_after(error)
                if wait is None:
                    raise error
                time.sleep(wait)

    def list_tasks(
        self,
        service: str,
        *,
        status: Status | Sequence[Status] | None = None,
        from_: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        correlation_id: str | None = None,
        parent_id: str | None = None,
    ) -> TaskPage:
        """A page of one's own tasks, the newest first; `next_cursor` of one page is `cursor` of the next.

        With `correlation_id` or `parent_id` (not both), only tasks that have it; a page may then be shorter.
        """
        call = calls.list_tasks(service, status, from_, before, limit, cursor, correlation_id, parent_id)
        return self._call(call)

    def iter_tasks(
        self,
        service: str,
        *,
        status: Status | Sequence[Status] | None = None,
        from_: datetime | None = None,
        before: datetime | None = None,
    ) -> Iterator[Task]:
        """All of one's own tasks, the newest first, page after page."""
        cursor: str | None = None
        while True:
            page = self.list_tasks(service, status=status, from_=from_, before=before, limit=200, cursor=cursor)
            yield from page.tasks
            cursor = page.next_cursor
            if cursor is None:
                return

    def cancel(self, service: str, task_id: str) -> Task:
        """Cancels a task. Once it has ended otherwise, this is refused with 409002."""
        return self._call(calls.cancel(service, task_id))

    def retry(self, service: str, task_id: str) -> Task:
        """Does a task once more: one that has ended, with all its retries anew, or one that waits for its time, now.

        One that waits for a worker, or that a worker has, is refused with 409003.
        """
        return self._call(calls.retry(service, task_id))

    def make_batch(
        self,
        tasks: Iterable[Submission] = (),
        *,
        callback: Callback | None = None,
        correlation_id: str | None = None,
        open: bool = False,
        idempotency_key: str | None = None,
        traceparent: str | None = None,
    ) -> BatchMade:
        """Makes a batch of tasks, each with its `service`: all are taken, or none.

        When all have ended, and the batch was closed if it was made `open`, its callback tells so, once. Making
        it again under the same `idempotency_key` gives the same batch; without one, a key is made up for this call.
        """
        return self._call(calls.make_batch(tasks, callback, correlation_id, open, idempotency_key, traceparent))

    def batch(self, batch_id: str) -> Batch:
        """A batch as it is now."""
        return self._call(calls.batch(batch_id))

    def close_batch(self, batch_id: str) -> Batch:
        """Takes no more tasks into a batch; it ends when all of them have."""
        return self._call(calls.change_batch(batch_id, "close"))

    def cancel_batch(self, batch_id: str) -> Batch:
        """Closes a batch, and cancels all of its tasks that have not ended."""
        return self._call(calls.change_batch(batch_id, "cancel"))

    def services(self) -> list[Service]:
        """The services that one may use."""
        return self._call(calls.services())

    def service(self, name: str) -> Service:
        """One of them, with the JSON Schema of its bodies."""
        return self._call(calls.service(name))

    def notify(self, message: Notification, *, idempotency_key: str | None = None) -> str:
        """Sends a notification, and returns its id; it is stored for good by then.

        Sending again under the same `idempotency_key` stores nothing more; without one, a key is made up for this call.
        """
        return self._call(calls.notify(message, idempotency_key))

    def notify_many(self, messages: Iterable[Notification], *, idempotency_key: str | None = None) -> list[str]:
        """Sends up to 1000 notifications in one call: all are stored, or none. Returns their ids in the same order."""
        return self._call(calls.notify_many(messages, idempotency_key))

    def withdraw_notification(self, id: str) -> None:
        """Takes a notification back: it is not sent any more, and pages that show it are told."""
        self._call(calls.withdraw_notification(id))

    def replace_notification(self, id: str, message: Notification) -> str:
        """Puts another notification in the place of one, and returns its id. Not tried again without an answer."""
        return self._call(calls.replace_notification(id, message))

    def notification_errors(self, *, limit: int | None = None, before: str | None = None) -> NotificationPage:
        """One's own notifications that not all who had to have acknowledged, the newest first.

        `next` of one page is `before` of the next.
        """
        return self._call(calls.notification_errors(limit, before))

    def issue_ticket(
        self, user: str, *, audiences: Mapping[str, Iterable[str]] | None = None, ttl: Duration | None = None
    ) -> Ticket:
        """A ticket for a user, with which a web page gets that user's notifications.

        `audiences` says what the user belongs to, beside what is declared: targets by type. `ttl` is at most a day; an
        hour if absent.
        """
        return self._call(calls.issue_ticket(user, audiences, ttl))

    def set_audience(self, type: str, target: str, members: Iterable[Member]) -> MembersChange:
        """An audience has exactly these members from now on: users' names, or `Target`s."""
        return self._call(calls.change_audience("PUT", type, target, members))

    def add_to_audience(self, type: str, target: str, members: Iterable[Member]) -> MembersChange:
        """An audience has these members as well."""
        return self._call(calls.change_audience("POST", type, target, members))

    def remove_from_audience(self, type: str, target: str, members: Iterable[Member]) -> MembersChange:
        """An audience does not have these members any more. They are removed one by one."""
        changes = [self._call(call) for call in calls.remove_from_audience(type, target, members)]
        return MembersChange(0, sum(change.left for change in changes))

    def audience_members(self, type: str, target: str) -> Iterator[Target]:
        """The members of an audience, in the order of their names, page after page."""
        after: str | None = None
        while True:
            page, after = self._call(calls.audience_members(type, target, after))
            yield from page
            if after is None:
                return

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._base!r})"

    def _call(self, call: calls.Call[T], patience: float | None = None) -> T:
        tries = Patience(self._patience if patience is None else patience)
        while True:
            try:
                return call.answer(self._send(call), self._parse_float)
            except RelaisError as error:
                wait = tries.wait_after(error) if call.may_try_again(error) else None
                if wait is None:
                    raise
            time.sleep(wait)

    def _send(self, call: calls.Call[T]) -> httpx.Response:
        try:
            return self._http.request(**call.request(self._base))
        except httpx.HTTPError as error:
            raise calls.unreachable(error) from error
