"""What can go wrong between this library and a server.

A task that failed is not here by itself: `Task.result` raises `TaskFailed`, everything else just shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .model import Task


class RelaisError(Exception):
    """Any error of this library."""


class Unreachable(RelaisError):
    """There was no answer: the server is away, or the way to it is."""


class Unreadable(RelaisError):
    """There was an answer, but not one of Relais."""


@dataclass(frozen=True)
class Detail:
    """One thing that is wrong with a request."""

    path: str
    """Where, as a JSON pointer into the request; empty for the whole of it."""
    message: str
    """What is wrong there."""


class Refused(RelaisError):
    """The server refused.

    `number` stands for the kind of refusal, for programs; its first three digits are the HTTP status.
    """

    def __init__(self, number: int, description: str, details: tuple[Detail, ...] = ()) -> None:
        self.number = number
        self.description = description
        self.details = details
        self.retry_after: float | None = None
        """How many seconds the server asks to wait before the next try."""
        where = "".join(f"; {detail.path or '/'}: {detail.message}" for detail in details)
        super().__init__(f"{description} ({number}){where}")

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.number // 1000

    @property
    def passing(self) -> bool:
        """Whether the same call may well succeed later: the server is busy or stopping, or something before it is."""
        return self.status in (408, 429) or self.status >= 500


class TaskFailed(RelaisError):
    """The task ended with FAILURE; the message is the worker's."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.error_message or "the task failed")
        self.task = task


class TaskCancelled(RelaisError):
    """The task was cancelled."""

    def __init__(self, task: Task) -> None:
        super().__init__(f"task {task.task_id} was cancelled")
        self.task = task


class NotDone(RelaisError, TimeoutError):
    """The task has not ended, or not within the time that was given."""

    def __init__(self, task: Task) -> None:
        super().__init__(f"task {task.task_id} has not ended: it is {task.status.value}")
        self.task = task
