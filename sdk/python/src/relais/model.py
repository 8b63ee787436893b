"""What a consumer sees, as typed values.

Names are the wire's, in Python's spelling. Fields that this version does not know are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from .errors import NotDone, RelaisError, TaskCancelled, TaskFailed
from .wire import read_date


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
        return {name: value for name, value in wire.items() if value is not None}


@dataclass(frozen=True)
class Submission:
    """One task of many that are submitted together."""

    body: Any
    """A JSON object: a mapping, a dataclass, a pydantic model."""
    callback: Callback | None = None
    correlation_id: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """As it stands in a request."""
        wire: dict[str, Any] = {"body": self.body}
        if self.callback is not None:
            wire["callback"] = self.callback.to_wire()
        if self.correlation_id is not None:
            wire["correlationId"] = self.correlation_id
        return wire


@dataclass(frozen=True)
class Submitted:
    """A task that was taken."""

    task_id: str
    task_position: int
    """Its place in its service's queue, counted from 1."""
    estimated_start_date: datetime | None = None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Submitted:
        """From the answer's `data`."""
        return cls(wire["taskId"], wire["taskPosition"], read_date(wire.get("estimatedStartDate")))


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
