"""One log line when the other side goes away, and one when it is back."""

from __future__ import annotations

import logging

log = logging.getLogger("relais.worker")


class Outage:
    """Whether the other side is away, as all kinds of calls see it together."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._failing: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._failing)

    def failed(self, call: str, error: object) -> None:
        """A call brought nothing."""
        if not self._failing:
            log.warning("%s does not answer as it should (%s: %s); trying again", self._who, call, error)
        self._failing.add(call)

    def worked(self, call: str) -> None:
        """A call worked."""
        if self._failing and not self._failing - {call}:
            log.info("%s answers again", self._who)
        self._failing.discard(call)
