"""The calls of the API as values: what is sent, what is made of the answer, and what may be tried again.

Nothing here talks to a server; `Client` and `AsyncClient` do, each in its own way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx

from .errors import Detail, Refused, RelaisError, Unreachable, Unreadable
from .model import (
    Batch,
    BatchMade,
    Callback,
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
from .wire import Duration, ParseFloat, dumps, duration, loads, write_date

T = TypeVar("T")

ANSWER_TIMEOUT = 30.0
"""How long an answer may take, beside what the server is asked to wait."""

WAIT = 30.0
"""How long one call waits for the end of a task; then there is another. Proxies like to cut what lasts longer."""

STREAM_SILENCE = 60.0
"""A stream that is silent for so long is broken: the server says something every 15 s."""

MOST_TASKS = 1000
_MOST_BYTES = 512 * 1024

# Refused before anything was stored, for certain.
_NOTHING_DONE = {429001, 429002, 503002, 503003}


@dataclass(frozen=True)
class Call(Generic[T]):
    """One call."""

    method: str
    path: tuple[str, ...]
    read: Callable[[Any], T]
    body: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """Whether it does no harm if the server does it twice."""
    wait: float = 0.0
    root: str = "services"
    """What the path is under."""

    def request(self, base: str) -> dict[str, Any]:
        """The arguments of httpx's `request`."""
        headers = dict(self.headers)
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        return {
            "method": self.method,
            "url": address(base, self.path, self.root),
            "params": self.query or None,
            "headers": headers,
            "content": None if self.body is None else self.body.encode(),
            "timeout": httpx.Timeout(ANSWER_TIMEOUT, read=ANSWER_TIMEOUT + self.wait),
        }

    def answer(self, response: httpx.Response, parse_float: ParseFloat = float) -> T:
        """Takes the answer out of its envelope."""
        if not response.is_success:
            raise refusal(response)
        try:
            return self.read(loads(response.content, parse_float)["data"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unreadable(f"the server's answer makes no sense: {error!r}") from error

    def may_try_again(self, error: RelaisError) -> bool:
        """Whether another try may succeed, and can not do the same thing twice."""
        if isinstance(error, Refused):
            return error.passing and (self.repeatable or error.number in _NOTHING_DONE)
        if isinstance(error, Unreachable):
            # Without a connection nothing can have been done.
            return self.repeatable or isinstance(error.__cause__, (httpx.ConnectError, httpx.ConnectTimeout))
        return False


def address(base: str, path: Iterable[str], root: str = "services") -> str:
    """Where a call goes."""
    return "/".join([base, "v1", root, *(quote(part, safe="") for part in path)])


def settings(url: str | None, client_id: str | None, client_secret: str | None) -> tuple[str, tuple[str, str]]:
    """What was given, or what the environment says: where the server is, and who calls."""
    url = url or os.environ.get("RELAIS_URL") or "http://127.0.0.1:8080"
    client_id = client_id or os.environ.get("RELAIS_CLIENT")
    client_secret = client_secret or os.environ.get("RELAIS_SECRET")
    if not client_id or client_secret is None:
        raise ValueError("a client id and its secret are needed: give them, or set RELAIS_CLIENT and RELAIS_SECRET")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an http or https address")
    return url.rstrip("/"), (client_id, client_secret)


def refusal(response: httpx.Response) -> Refused:
    """A refusal of Relais, or of whatever stands before it and speaks no JSON."""
    try:
        error = loads(response.content)["error"]
        details = tuple(Detail(detail["path"], detail["message"]) for detail in error.get("details", []))
        refused = Refused(int(error["number"]), str(error["description"]), details)
    except (ValueError, KeyError, TypeError, AttributeError):
        refused = Refused(response.status_code * 1000, f"HTTP status {response.status_code}")
    seconds = response.headers.get("retry-after", "")
    refused.retry_after = float(seconds) if seconds.isdecimal() else None
    return refused


def unreachable(error: httpx.HTTPError) -> Unreachable:
    """No answer came."""
    return Unreachable(f"the server can not be reached: {error or type(error).__name__}")


def submit(
    service: str, submission: Submission, idempotency_key: str | None, traceparent: str | None = None
) -> Call[Submitted]:
    """Under a key of its own if none is given: then trying again never makes a second task."""
    headers = {"Idempotency-Key": idempotency_key or str(uuid4()), **_trace(traceparent)}
    return Call("POST", (service, "tasks"), Submitted.from_wire, body=dumps(submission.to_wire()), headers=headers)


def _trace(traceparent: str | None) -> dict[str, str]:
    return {} if traceparent is None else {"traceparent": traceparent}


def submit_many(service: str, submissions: Iterable[Any]) -> list[tuple[int, Call[list[SubmitResult]]]]:
    """As many calls as it takes, each with the number of its tasks."""
    batches: list[list[str]] = [[]]
    size = 0
    related = False
    for submission in submissions:
        one = submission if isinstance(submission, Submission) else Submission(submission)
        related = related or one.ref is not None
        text = dumps(one.to_wire())
        if batches[-1] and (len(batches[-1]) == MOST_TASKS or size + len(text) > _MOST_BYTES):
            batches.append([])
            size = 0
        batches[-1].append(text)
        size += len(text)
    if related and len(batches) > 1:
        raise ValueError("tasks that know each other by `ref` must fit one call: 1000 tasks, half a megabyte")
    path = (service, "tasks", "batch")
    return [
        (len(batch), Call("POST", path, _batch_answer, body=f'{{"tasks":[{",".join(batch)}]}}', repeatable=False))
        for batch in batches
        if batch
    ]


def get(service: str, task_id: str, wait: float = 0.0) -> Call[Task]:
    """A task as it is now, or when it ends within `wait` seconds."""
    query = {"wait": duration(wait)} if wait > 0 else {}
    return Call("GET", (service, "tasks", task_id), Task.from_wire, query=query, wait=wait)


def cancel(service: str, task_id: str) -> Call[Task]:
    """Cancels a task."""
    return Call("DELETE", (service, "tasks", task_id), Task.from_wire)


def retry(service: str, task_id: str) -> Call[Task]:
    """Does a task once more. Not tried again without an answer: it may have ended once more meanwhile."""
    return Call("POST", (service, "tasks", task_id, "retry"), Task.from_wire, repeatable=False)


def list_tasks(
    service: str,
    status: Status | Sequence[Status] | None,
    from_: datetime | None,
    before: datetime | None,
    limit: int | None,
    cursor: str | None,
    correlation_id: str | None = None,
    parent_id: str | None = None,
) -> Call[TaskPage]:
    """A page of one's own tasks."""
    statuses = [status] if isinstance(status, Status) else status
    query = {
        "status": ",".join(status.value for status in statuses) if statuses else None,
        "from": None if from_ is None else write_date(from_),
        "before": None if before is None else write_date(before),
        "limit": None if limit is None else str(limit),
        "cursor": cursor,
        "correlationId": correlation_id,
        "parentId": parent_id,
    }
    given = {name: value for name, value in query.items() if value is not None}
    return Call("GET", (service, "tasks"), TaskPage.from_wire, query=given)


def make_batch(
    tasks: Iterable[Submission],
    callback: Callback | None,
    correlation_id: str | None,
    open_: bool,
    idempotency_key: str | None,
    traceparent: str | None,
) -> Call[BatchMade]:
    """Under a key of its own if none is given: then trying again never makes a second batch."""
    body: dict[str, Any] = {"tasks": [task.to_wire() for task in tasks], "open": open_}
    if callback is not None:
        body["callback"] = callback.to_wire()
    if correlation_id is not None:
        body["correlationId"] = correlation_id
    headers = {"Idempotency-Key": idempotency_key or str(uuid4()), **_trace(traceparent)}
    return Call("POST", (), BatchMade.from_wire, body=dumps(body), headers=headers, root="batches")


def batch(batch_id: str) -> Call[Batch]:
    """A batch as it is now."""
    return Call("GET", (batch_id,), Batch.from_wire, root="batches")


def change_batch(batch_id: str, what: str) -> Call[Batch]:
    """Closes or cancels a batch; again is the same."""
    return Call("POST", (batch_id, what), Batch.from_wire, root="batches")


def services() -> Call[list[Service]]:
    """The services that the caller may use."""
    return Call("GET", (), lambda data: [Service.from_wire(service) for service in data["services"]])


def service(name: str) -> Call[Service]:
    """One of them."""
    return Call("GET", (name,), Service.from_wire)


def notify(message: Notification, idempotency_key: str | None) -> Call[str]:
    """Under a key of its own if none is given: then trying again never stores it twice."""
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    body = dumps(message.to_wire())
    return Call("POST", (), lambda data: str(data["id"]), body=body, headers=headers, root="notifications")


def notify_many(messages: Iterable[Notification], idempotency_key: str | None) -> Call[list[str]]:
    """All of them in one call: all are stored, or none."""
    headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
    body = dumps([message.to_wire() for message in messages])
    return Call("POST", (), lambda data: list(data["ids"]), body=body, headers=headers, root="notifications")


def withdraw_notification(id_: str) -> Call[None]:
    """Takes a notification back; again is the same."""
    return Call("DELETE", (id_,), lambda data: None, root="notifications")


def replace_notification(id_: str, message: Notification) -> Call[str]:
    """Not tried again without an answer: that could send another one."""
    body = dumps(message.to_wire())
    return Call("PUT", (id_,), lambda data: str(data["id"]), body=body, repeatable=False, root="notifications")


def notification_errors(limit: int | None, before: str | None) -> Call[NotificationPage]:
    """A page of the error log of one's own notifications."""
    query = {"limit": None if limit is None else str(limit), "before": before}
    given = {name: value for name, value in query.items() if value is not None}
    return Call("GET", ("errors",), NotificationPage.from_wire, query=given, root="notifications")


def issue_ticket(user: str, audiences: Mapping[str, Iterable[str]] | None, ttl: Duration | None) -> Call[Ticket]:
    """A ticket for a user."""
    body: dict[str, Any] = {"user": user}
    if audiences is not None:
        body["audiences"] = {kind: list(targets) for kind, targets in audiences.items()}
    if ttl is not None:
        body["ttl"] = duration(ttl)
    return Call("POST", ("tickets",), Ticket.from_wire, body=dumps(body), root="notifications")


def change_audience(method: str, type_: str, target: str, members: Iterable[Member]) -> Call[MembersChange]:
    """PUT: exactly these members; POST: these as well. Again is the same."""
    body = dumps({"members": [Target.of(member).to_wire() for member in members]})
    return Call(method, (type_, target, "members"), MembersChange.from_wire, body=body, root="audiences")


def remove_from_audience(type_: str, target: str, members: Iterable[Member]) -> list[Call[MembersChange]]:
    """One call for each member."""
    paths = [(type_, target, "members", one.type, one.target) for one in map(Target.of, members)]
    return [Call("DELETE", path, MembersChange.from_wire, root="audiences") for path in paths]


def audience_members(type_: str, target: str, after: str | None) -> Call[tuple[list[Target], str | None]]:
    """A page of members, and where the next one begins."""
    query = {} if after is None else {"after": after}

    def read(data: Any) -> tuple[list[Target], str | None]:
        return [Target.from_wire(member) for member in data["members"]], data.get("next")

    return Call("GET", (type_, target, "members"), read, query=query, root="audiences")


class Follow:
    """What was seen of a task's stream, so that one that breaks off is taken up where it was."""

    def __init__(self, base: str, service: str, task_id: str, parse_float: ParseFloat) -> None:
        self._url = address(base, (service, "tasks", task_id, "events"))
        self._parse_float = parse_float
        self._last_id: str | None = None
        self._rest = b""
        self.done = False

    def request(self) -> dict[str, Any]:
        """The arguments of httpx's `stream`."""
        self._rest = b""
        headers = {"Accept": "text/event-stream"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        timeout = httpx.Timeout(ANSWER_TIMEOUT, read=STREAM_SILENCE)
        return {"method": "GET", "url": self._url, "headers": headers, "timeout": timeout}

    def feed(self, chunk: bytes) -> list[TaskEvent]:
        """The events that are complete with these bytes."""
        *blocks, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        return [event for block in blocks if (event := self._event(block)) is not None]

    def _event(self, block: bytes) -> TaskEvent | None:
        fields: dict[str, str] = {}
        for line in block.decode().split("\n"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
        if "data" not in fields:
            return None  # A comment: the server is alive.
        try:
            task = Task.from_wire(loads(fields["data"], self._parse_float))
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"the server's event makes no sense: {error!r}") from error
        self._last_id = fields.get("id", self._last_id)
        self.done = task.done
        return TaskEvent(fields.get("event", "status"), task, self._last_id or "")


def _batch_answer(data: Any) -> list[SubmitResult]:
    return [_entry(entry) for entry in data["tasks"]]


def _entry(entry: Mapping[str, Any]) -> SubmitResult:
    if entry["status"] == "success":
        return Submitted.from_wire(entry["data"])
    error = entry["error"]
    details = tuple(Detail(detail["path"], detail["message"]) for detail in error.get("details", []))
    return Refused(error["number"], error["description"], details)
