"""The seam between a worker and the way its tasks and messages travel."""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from .job import Job
from .verdict import Failed, Success

if TYPE_CHECKING:
    from .crew import Crew


class Transport(ABC):
    """How tasks come and results go. One object serves one worker, once."""

    host_name: str
    """Shown beside the tasks that this worker runs."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether it could take tasks right now, as far as it knows."""

    @abstractmethod
    async def take(self, crew: Crew) -> None:
        """Hands tasks to the crew, until the crew wants no more or this is cancelled; being away is waited out.

        Raises what will never do, as long as nothing has worked: no such service, wrong credentials. When it has
        ended, or was cancelled, no task comes any more; what was on its way is given back.
        """

    def beginning(self, job: Job) -> asyncio.Future[bool] | None:
        """What a task's handler has to wait for before it begins; False: the task is not to be begun. None: nothing."""
        return None

    @abstractmethod
    async def deliver(self, job: Job, verdict: Success | Failed) -> bool:
        """Tells a result, until it is certain that it was taken. False: it was not wanted any more."""

    @abstractmethod
    async def give_back(self, job: Job) -> None:
        """Gives a task back unfinished."""

    @abstractmethod
    async def drop(self, job: Job) -> None:
        """A task that was taken away has been stopped."""

    @abstractmethod
    async def tell_progress(self, batch: dict[Job, float]) -> None:
        """Tells how far tasks are; once, and raises if that does not work."""

    @abstractmethod
    async def run_beside(self, crew: Crew) -> None:
        """What must run as long as there are running tasks; cancelled in the end."""

    @abstractmethod
    async def close(self) -> None:
        """Hangs up. Tasks that are still running are redelivered to other workers."""


def this_host() -> str:
    """The host's or pod's name."""
    return (os.environ.get("HOSTNAME") or socket.gethostname())[:255]
