"""What becomes of a message, and what a window and a claim are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Generic, TypeVar

from ..errors import RelaisError
from ..wire import Duration

T = TypeVar("T")

DAY = 24 * 3600.0

_LONGEST_ID = 1024
_LONGEST_CONSUMER = 255


class OnceStatus(Enum):
    """What became of a message."""

    DONE = "done"
    """The handler has processed it now."""
    ALREADY_DONE = "already done"
    """It was processed before, within the window. The handler did not run."""
    BUSY = "busy"
    """Somebody else is processing it. Do not acknowledge it: if the other one fails, it must come again."""


@dataclass(frozen=True)
class Once(Generic[T]):
    """What became of a message."""

    status: OnceStatus
    result: T | None = None
    """What the handler returned, if it is done now."""
    wait: float | None = None
    """If it is busy: after so many seconds, ask again."""

    @property
    def processed(self) -> bool:
        """Whether the message may be acknowledged."""
        return self.status is not OnceStatus.BUSY


class ClaimExpired(RelaisError):
    """The claim ran out because Redis could not be reached, and the handler was stopped."""


def seconds(span: Duration, name: str) -> float:
    """A duration that is longer than nothing."""
    span = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if not 0 < span < float("inf"):
        raise ValueError(f"{name} must be longer than zero")
    return span


def check_name(consumer: str) -> str:
    """A consumer's name, which may be empty."""
    if not _fits(consumer, _LONGEST_CONSUMER):
        raise ValueError(f"a consumer's name has at most {_LONGEST_CONSUMER} bytes, and no zero byte")
    return consumer


def check_id(message_id: str) -> str:
    """The id of a message."""
    if not message_id or not _fits(message_id, _LONGEST_ID):
        raise ValueError(f"a message id has 1 to {_LONGEST_ID} bytes, and no zero byte")
    return message_id


def check_window(window: float, longest_retry: Duration) -> None:
    """Whether a repeat finds the mark."""
    longest = longest_retry.total_seconds() if isinstance(longest_retry, timedelta) else longest_retry
    if window <= longest:
        raise ValueError(
            f"the window of deduplication is {window:.0f} s, and a message may be retried {longest:.0f} s after it was "
            "first delivered: the window must be longer"
        )


def _fits(text: str, longest: int) -> bool:
    return len(text.encode()) <= longest and "\0" not in text
