"""How a handler ends a task: with what it returns, or with one of these errors."""

from __future__ import annotations

from dataclasses import dataclass

from ..wire import Duration, duration


class Failure(Exception):
    """The task can not be done; the message is for the consumer to read.

    With `retryable=False`, trying again would not help, whatever the service's policy says. If there is a retry, it
    begins after `retry_after`: seconds, or a timedelta. `kind` is a word for programs, and for `except_kinds` of a
    policy.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after: Duration | None = None,
        kind: str | None = None,
    ) -> None:
        super().__init__(message)
        if retry_after is not None:
            duration(retry_after)  # What is no duration is known where it was written.
        self.retryable = retryable
        self.retry_after = retry_after
        self.kind = kind


class TryAgain(Exception):
    """Not now: the task is given back, and nothing is held against it.

    It is kept for `after` seconds first, so that a task nobody can do now does not go round and round.
    """

    def __init__(self, after: float = 1.0) -> None:
        super().__init__("the task is given back")
        self.after = after


class Cancelled(Exception):
    """Raised by `Context.check`: the task is no longer wanted, or the worker has to stop."""


@dataclass(frozen=True)
class Success:
    """It ended well."""

    response: str
    """The result, as JSON."""


@dataclass(frozen=True)
class Failed:
    """It ended badly. What is absent is left to the service's policy."""

    message: str
    retryable: bool | None = None
    retry_after: Duration | None = None
    kind: str | None = None
    trace: str | None = None
    """Where it happened."""
    progress: float | None = None
    """How far it was, where that is not told yet: it is told first, for consumers see how far a failure got."""


@dataclass(frozen=True)
class GiveBack:
    """It did not end: somebody else is to do it."""

    after: float = 0.0


Verdict = Success | Failed | GiveBack
