"""How long to wait before the next try.

The waits grow so that a server that comes back is not run over, and vary so that a hundred callers do not come back at
the same instant.
"""

from __future__ import annotations

import random
import time

from .errors import Refused, RelaisError

_FIRST = 0.1
_LONGEST = 5.0


class Backoff:
    """Waits of 0.1 s, 0.2 s, 0.4 s… up to 5 s, each shortened by up to half of it. Without an end."""

    def __init__(self) -> None:
        self._failures = 0

    def next(self) -> float:
        """The next wait."""
        whole = min(_FIRST * 2.0 ** min(self._failures, 10), _LONGEST)
        self._failures += 1
        return whole * (1 - random.random() / 2)

    def reset(self) -> None:
        """It worked: the next failure starts over."""
        self._failures = 0


class Patience:
    """Tries for some seconds, then gives up."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._backoff = Backoff()
        self.reset()

    def reset(self) -> None:
        """It worked: there is as much time again."""
        self._deadline = time.monotonic() + self._seconds
        self._backoff.reset()

    def wait_after(self, error: RelaisError) -> float | None:
        """How long to wait before the next try; None if there is no time for it."""
        wait = self._backoff.next()
        if isinstance(error, Refused) and error.retry_after is not None:
            wait = max(wait, error.retry_after)
        return wait if time.monotonic() + wait < self._deadline else None
