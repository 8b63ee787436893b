"""What a handler knows of its task beside the body, and what it can say meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .job import Job
from .verdict import Cancelled


class Context:
    """One task's context. Everything here may be used from any thread."""

    def __init__(self, job: Job, progress: Callable[[float], None], stopping: threading.Event) -> None:
        self.task_id = job.task_id
        """The task's public name: a good key for whatever the work writes, since it may be done twice."""
        self.attempt = job.attempt
        """The number of this attempt, counted from 1; None where the way the task came does not say."""
        self.correlation_id = job.correlation_id
        """One id through a chain of tasks, where one was given."""
        self.traceparent = job.traceparent
        """Whose trace the task is part of, where that is known, as the W3C writes it: for what the work calls."""
        self.tracestate = job.tracestate
        """What goes with it."""
        self.redelivered = job.redelivered
        """Whether somebody may have begun it before."""
        self.deadline = job.deadline
        """When this attempt has taken too long, where that is limited and the way the task came says so."""
        self.cancelled = threading.Event()
        """Set when the work is in vain: the consumer cancelled the task, its deadline has passed, somebody else has it,
        or the time to stop is over. An `async def` is cancelled as well, at its next `await`."""
        self.stopping = stopping
        """Set as soon as the worker is told to stop. Whoever can interrupt the work raises `TryAgain` then; whoever
        can not goes on, and has the grace period to finish."""
        self._progress = progress

    def progress(self, percent: float) -> None:
        """Says how far it is, from 0 to 100. As often as you like: only the newest is sent, a few times a second."""
        if percent == percent:  # What is not a number says nothing.
            self._progress(min(max(float(percent), 0.0), 100.0))

    def check(self) -> None:
        """Raises `Cancelled` if the work is in vain."""
        if self.cancelled.is_set():
            raise Cancelled("the task is no longer wanted from this worker")
