"""A task of a worker, and its messages on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ..wire import dumps, duration, read_date
from .verdict import Failed, Success

# What a consumer is shown need not be longer; a server may refuse what is.
_LONGEST_MESSAGE = 10_000

# Of a trace the end says where it happened.
_LONGEST_TRACE = 16 * 1024


@dataclass(eq=False)
class Job:
    """A task that was taken. Two jobs are never equal, not even of the same task."""

    task_id: str
    body: Any
    attempt: int | None = None
    correlation_id: str | None = None
    redelivered: bool = False
    deadline: datetime | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    timeout: float | None = None
    """For how many seconds it may be worked on, where that is for the worker to see to."""
    revision: int = 0
    """How often it had changed when it was published, where a broker brings it."""

    @property
    def held(self) -> dict[str, Any]:
        """How it is named in a call."""
        return {"taskId": self.task_id} if self.attempt is None else {"taskId": self.task_id, "attempt": self.attempt}

    def started(self, host_name: str) -> str:
        """It has begun."""
        return self._message(dumps({"messageType": "started", "hostName": host_name}))

    def returned(self, host_name: str) -> str:
        """It is given back unfinished."""
        return self._message(dumps({"messageType": "returned", "hostName": host_name}))

    def progress(self, progress: float) -> str:
        """It is so far."""
        return self._message(dumps({"messageType": "progress", "progress": progress}))

    def ended(self, verdict: Success | Failed) -> str:
        """It has a result."""
        if isinstance(verdict, Success):
            return self._message(f'{{"messageType":"success","response":{verdict.response}}}')
        wait = verdict.retry_after
        data = {
            "messageType": "failure",
            "errorMessage": _text(verdict.message[:_LONGEST_MESSAGE]),
            "retryable": verdict.retryable,
            "retryAfter": None if wait is None else duration(wait),
            "errorKind": None if verdict.kind is None else _text(verdict.kind),
            "errorTrace": None if verdict.trace is None else _text(verdict.trace[-_LONGEST_TRACE:]),
        }
        return self._message(dumps({name: value for name, value in data.items() if value is not None}))

    def _message(self, data: str) -> str:
        return f'{dumps(self.held)[:-1]},"data":{data}}}'


def read_submission(message: Any, *, redelivered: bool = False) -> Job:
    """A task as it is handed to a worker, in either spelling. Raises ValueError if it is none."""
    if not isinstance(message, dict):
        raise ValueError("it is not a JSON object")
    task_id = message.get("taskId", message.get("task_id"))
    data = message.get("data")
    if not isinstance(task_id, str) or not task_id:
        raise ValueError("taskId is missing")
    if not isinstance(data, dict) or "body" not in data:
        raise ValueError("data.body is missing")
    kind = data.get("messageType", data.get("message_type"))
    if kind != "submission":
        raise ValueError(f"messageType {kind!r} is not submission")
    attempt, deadline = message.get("attempt"), _moment(message.get("deadline"))
    redelivered = redelivered or (isinstance(attempt, int) and attempt > 1)
    return Job(
        task_id,
        data["body"],
        attempt if isinstance(attempt, int) else None,
        message.get("correlationId"),
        redelivered,
        deadline,
        message.get("traceparent"),
        message.get("tracestate"),
        _limit(message.get("timeoutMs", message.get("timeout_ms"))) if deadline is None else None,
        revision if isinstance(revision := message.get("revision"), int) else 0,
    )


def _text(said: str) -> str:
    """As it can be sent: half of a surrogate pair is no text, and an error may well be about one."""
    return said.encode(errors="replace").decode()


def _limit(said: Any) -> float | None:
    """Seconds, of milliseconds; nonsense is no limit."""
    return said / 1000 if isinstance(said, int) and not isinstance(said, bool) and said >= 0 else None


def _moment(said: Any) -> datetime | None:
    """A date; nonsense is none."""
    try:
        moment = read_date(said) if isinstance(said, str) else None
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or timezone.utc) if moment else None
