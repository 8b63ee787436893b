"""What a consumer sees, as typed values.

Names are the wire's, in Python's spelling. Fields that this version does not know are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal

from .errors import NotDone, RelaisError, TaskCancelled, TaskFailed
from .wire import Duration, duration, read_date, write_date


class Status(str, Enum):
    """Where a task is in its life."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    CANCELLED = "CANCELLED"

    @property
    def final(self) -> bool:
        """Whether nothing can follow."""
        return self not in (Status.PENDING, Status.IN_PROGRESS)


@dataclass(frozen=True)
class Callback:
    """Where to tell what becomes of a task: `Callback(url="https://…")`, or a destination on the broker."""

    url: str | None = None
    destination: str | None = None
    type: str | None = None
    """`https`, `http` or `amqp`; found out from the rest if absent."""
    events: Sequence[str] | None = None
    """`started`, `progress`, `success`, `failure`, `cancelled`; the end, whichever it is, if absent."""
    compression: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As it stands in a submission."""
        kind = self.type or ("amqp" if self.url is None else self.url.partition(":")[0])
        events = None if self.events is None else list(self.events)
        wire = {"type": kind, "url": self.url, "destination": self.destination, "events": events}
        wire["compression"] = self.compression
        return _given(wire)


@dataclass(frozen=True)
class RetryRule:
    """How often a task that failed is tried again, and when."""

    limit: int
    """At most so many retries."""
    base: Duration | None = None
    """How long to wait before the first one; a minute if absent."""
    factor: float | None = None
    """Each wait is so many times as long as the one before; 2 if absent."""
    cap: Duration | None = None
    """No wait is longer than this."""
    jitter: float | None = None
    """The share of each wait that is left to chance, from 0 to 1; 0 if absent."""
    within: Duration | None = None
    """No retry begins later than this after the task was submitted, or was to begin."""
    except_kinds: Sequence[str] = ()
    """Failures of these kinds are not tried again."""

    def to_wire(self) -> dict[str, Any]:
        """As it stands in a submission."""
        wire = {
            "limit": self.limit,
            "base": _span(self.base),
            "factor": self.factor,
            "cap": _span(self.cap),
            "jitter": self.jitter,
            "within": _span(self.within),
            "exceptKinds": list(self.except_kinds) or None,
        }
        return _given(wire)


Retry = RetryRule | Literal["none", "classic"]
"""A rule of one's own, or one that has a name: `none`, or `classic`, 10 retries that are 1, 2, 4, … minutes apart."""


@dataclass(frozen=True)
class After:
    """What a task waits for: it is not started before."""

    tasks: Sequence[str] = ()
    """The ids of tasks of one's own, of any service; with `refs`, at most 100."""
    refs: Sequence[str] = ()
    """Among tasks that go in one call: those before it with these words as `ref`."""
    when: Literal["allSucceeded", "allEnded", "anyEnded"] = "allSucceeded"
    """When it need not wait any more. With `allSucceeded`, it fails as soon as one of them ends otherwise."""

    def to_wire(self) -> dict[str, Any]:
        """As it stands in a submission."""
        return {"tasks": list(self.tasks), "refs": list(self.refs), "when": self.when}


@dataclass(frozen=True)
class Prerequisite:
    """A task that another one waits for."""

    task_id: str
    status: Status | None = None
    """How it ended, as far as the other was told; None while it has not."""


@dataclass(frozen=True)
class Submission:
    """A task to be done, and on what terms. What is absent is up to its service."""

    body: Any
    """A JSON object: a mapping, a dataclass, a pydantic model."""
    callback: Callback | None = None
    correlation_id: str | None = None
    """One id through a chain of tasks."""
    priority: int | None = None
    """How urgent it is, from 0 to 9; 4 if absent. More urgent ones go first, and none waits for ever."""
    scheduled_date: datetime | str | None = None
    """Not to be started before this time."""
    delay: Duration | None = None
    """Not to be started before so long from now; instead of a date."""
    expires_after: Duration | None = None
    """If no worker has started it so long after it was to start, it fails."""
    timeout: Duration | None = None
    """How long an attempt may take."""
    retry: Retry | None = None
    """How often to try again if it fails."""
    unique_key: str | None = None
    """If one has a task with this key on the service that has not ended, that one is the answer."""
    unique_for: Duration | None = None
    """With `unique_key`: for so long after the submission, whether that task has ended or not."""
    after: After | None = None
    """What it waits for."""
    parent_id: str | None = None
    """The task that it is a part of: one's own, or the one that is being worked on. It gets that one's correlation
    id and trace, unless it has its own."""
    batch_id: str | None = None
    """The open batch that it is to belong to."""
    ref: str | None = None
    """Among tasks that go in one call: a word by which later ones can wait for this one."""
    service: str | None = None
    """In a batch: the service."""

    def to_wire(self) -> dict[str, Any]:
        """As it stands in a request. Raises ValueError for a duration that is none."""
        when = self.scheduled_date
        wire = {
            "callback": None if self.callback is None else self.callback.to_wire(),
            "correlationId": self.correlation_id,
            "priority": self.priority,
            "scheduledDate": write_date(when) if isinstance(when, datetime) else when,
            "delay": _span(self.delay),
            "expiresAfter": _span(self.expires_after),
            "timeout": _span(self.timeout),
            "retry": self.retry.to_wire() if isinstance(self.retry, RetryRule) else self.retry,
            "uniqueKey": self.unique_key,
            "uniqueFor": _span(self.unique_for),
            "after": None if self.after is None else self.after.to_wire(),
            "parentId": self.parent_id,
            "batchId": self.batch_id,
            "ref": self.ref,
            "service": self.service,
        }
        return {"body": self.body, **_given(wire)}


@dataclass(frozen=True)
class Submitted:
    """A task that was taken."""

    task_id: str
    task_position: int
    """Its place in its service's queue, counted from 1."""
    estimated_start_date: datetime | None = None
    duplicate: bool = False
    """Whether it is a task that was there before, with the same `unique_key`."""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Submitted:
        """From the answer's `data`."""
        start = read_date(wire.get("estimatedStartDate"))
        return cls(wire["taskId"], wire["taskPosition"], start, bool(wire.get("duplicate")))


SubmitResult = Submitted | RelaisError
"""What became of one task of many: taken, or why not."""


@dataclass(frozen=True)
class Task:
    """A task, as its consumer sees it. Which fields there are depends on the status."""

    task_id: str
    status: Status
    submition_date: datetime
    start_date: datetime | None = None
    end_date: datetime | None = None
    progress: float | None = None
    task_position: int | None = None
    estimated_start_date: datetime | None = None
    response: Any = None
    error_message: str | None = None
    correlation_id: str | None = None
    scheduled_date: datetime | None = None
    """For when it was asked, if not for at once."""
    retry_date: datetime | None = None
    """PENDING after a failure: when it is tried again."""
    priority: int | None = None
    """How urgent it is, where that was said."""
    error_kind: str | None = None
    """FAILURE: a word for programs, if known. `timeout`, `expired`, `lost` and `dependency` are the server's own."""
    parent_id: str | None = None
    """The task that it is a part of."""
    batch_id: str | None = None
    """The batch that it belongs to."""
    after: Sequence[Prerequisite] = ()
    """What it waits for, or waited for; not in lists."""

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.status.final

    def result(self) -> Any:
        """The worker's result; raises TaskFailed, TaskCancelled or NotDone where there is none."""
        if self.status is Status.SUCCESS:
            return self.response
        if self.status is Status.FAILURE:
            raise TaskFailed(self)
        if self.status is Status.CANCELLED:
            raise TaskCancelled(self)
        raise NotDone(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Task:
        """From the poll's `data`."""
        submitted = read_date(wire["submitionDate"])
        assert submitted is not None
        progress = wire.get("progress")
        return cls(
            task_id=wire["taskId"],
            status=Status(wire["status"]),
            submition_date=submitted,
            start_date=read_date(wire.get("startDate")),
            end_date=read_date(wire.get("endDate")),
            progress=None if progress is None else float(progress),
            task_position=wire.get("taskPosition"),
            estimated_start_date=read_date(wire.get("estimatedStartDate")),
            response=wire.get("response"),
            error_message=wire.get("errorMessage"),
            correlation_id=wire.get("correlationId"),
            scheduled_date=read_date(wire.get("scheduledDate")),
            retry_date=read_date(wire.get("retryDate")),
            priority=wire.get("priority"),
            error_kind=wire.get("errorKind"),
            parent_id=wire.get("parentId"),
            batch_id=wire.get("batchId"),
            after=tuple(_prerequisite(one) for one in (wire.get("after") or {}).get("tasks", [])),
        )


@dataclass(frozen=True)
class TaskPage:
    """A page of tasks, the newest first, without their responses."""

    tasks: list[Task]
    next_cursor: str | None = None
    """Give this as `cursor` to get the next page; None on the last one."""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> TaskPage:
        """From the answer's `data`."""
        return cls([Task.from_wire(task) for task in wire["tasks"]], wire.get("nextCursor"))


class BatchStatus(str, Enum):
    """Where a batch is in its life."""

    OPEN = "OPEN"
    IN_PROGRESS = "IN_PROGRESS"
    ENDED = "ENDED"


@dataclass(frozen=True)
class Batch:
    """A batch: tasks that are followed as one."""

    batch_id: str
    status: BatchStatus
    total: int
    pending: int
    in_progress: int
    success: int
    failure: int
    cancelled: int
    submition_date: datetime
    close_date: datetime | None = None
    end_date: datetime | None = None
    correlation_id: str | None = None

    @property
    def done(self) -> bool:
        """Whether it was closed, and all of its tasks have ended."""
        return self.status is BatchStatus.ENDED

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Batch:
        """From the poll's `data`."""
        made = read_date(wire["submitionDate"])
        assert made is not None
        return cls(
            batch_id=wire["batchId"],
            status=BatchStatus(wire["status"]),
            total=wire["total"],
            pending=wire["pending"],
            in_progress=wire["inProgress"],
            success=wire["success"],
            failure=wire["failure"],
            cancelled=wire["cancelled"],
            submition_date=made,
            close_date=read_date(wire.get("closeDate")),
            end_date=read_date(wire.get("endDate")),
            correlation_id=wire.get("correlationId"),
        )


@dataclass(frozen=True)
class BatchMade:
    """A batch that was made, with its tasks in their order."""

    batch_id: str
    tasks: list[Submitted]

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> BatchMade:
        """From the answer's `data`."""
        return cls(wire["batchId"], [Submitted.from_wire(task) for task in wire["tasks"]])


@dataclass(frozen=True)
class TaskEvent:
    """Something changed with a task."""

    kind: str
    """`status`, `progress` or `position`: what changed."""
    task: Task
    id: str
    """The task's revision."""


@dataclass(frozen=True)
class Service:
    """A service that one may use."""

    service_name: str
    roles: list[str] = field(default_factory=list)
    """`consume`, `work`."""
    paused: bool = False
    json_schema: Mapping[str, Any] | None = None
    """What a request's body must conform to."""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Service:
        """From the answer's `data`."""
        return cls(wire["serviceName"], list(wire["roles"]), bool(wire.get("paused")), wire.get("jsonSchema"))


def _prerequisite(wire: Mapping[str, Any]) -> Prerequisite:
    status = wire.get("status")
    return Prerequisite(wire["taskId"], None if status is None else Status(status))


def _span(span: Duration | None) -> str | None:
    return None if span is None else duration(span)


def _given(wire: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wire.items() if value is not None}
