"""Relais in Python: `Client` and `AsyncClient` submit tasks and wait for them, `Worker` does them."""

from .async_client import AsyncClient
from .client import Client
from .errors import Detail, NotDone, Refused, RelaisError, TaskCancelled, TaskFailed, Unreachable, Unreadable
from .model import (
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

__all__ = [
    "AsyncClient",
    "Callback",
    "Client",
    "Detail",
    "NotDone",
    "Refused",
    "RelaisError",
    "Service",
    "Status",
    "Submission",
    "SubmitResult",
    "Submitted",
    "Task",
    "TaskCancelled",
    "TaskEvent",
    "TaskFailed",
    "TaskPage",
    "Unreachable",
    "Unreadable",
]
