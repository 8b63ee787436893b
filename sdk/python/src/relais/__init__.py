"""Relais in Python: `Client` and `AsyncClient` submit tasks and wait for them, `Worker` does them."""

from .async_client import AsyncClient
from .client import Client
from .errors import Detail, NotDone, Refused, RelaisError, TaskCancelled, TaskFailed, Unreachable, Unreadable
from .model import (
    After,
    Batch,
    BatchMade,
    BatchStatus,
    Callback,
    Prerequisite,
    Retry,
    RetryRule,
    Service,
    Status,
    Submission,
    SubmitResult,
    Submitted,
    Task,
    TaskEvent,
    TaskPage,
)
from .wire import Duration
from .worker import Cancelled, Context, Failure, Http, RabbitMq, TryAgain, Worker, WorkerReport

__all__ = [
    "After",
    "AsyncClient",
    "Batch",
    "BatchMade",
    "BatchStatus",
    "Callback",
    "Cancelled",
    "Client",
    "Context",
    "Detail",
    "Duration",
    "Failure",
    "Http",
    "NotDone",
    "Prerequisite",
    "RabbitMq",
    "Refused",
    "RelaisError",
    "Retry",
    "RetryRule",
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
    "TryAgain",
    "Unreachable",
    "Unreadable",
    "Worker",
    "WorkerReport",
]
