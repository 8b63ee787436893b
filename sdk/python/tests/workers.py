"""Workers in a thread of the test, which it starts, waits for and stops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from house import DEADLINE, until
from relais import Context, Worker, WorkerReport


class Running:
    """A worker that runs."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.report: WorkerReport | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.report = self.worker.run()
        except BaseException as error:
            self.error = error

    def ready(self) -> Running:
        until("the worker is ready", lambda: self.worker.ready or self.error is not None)
        return self

    def stop(self) -> WorkerReport:
        self.worker.stop()
        return self.ended()

    def ended(self) -> WorkerReport:
        """Waits for the end, which must come."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the worker does not end"
        if self.error is not None:
            raise self.error
        assert self.report is not None
        return self.report

    def close(self) -> None:
        while self._thread.is_alive():
            self.worker.stop()
            self._thread.join(1)


@contextmanager
def running(worker: Worker) -> Iterator[Running]:
    """Runs a worker as long as the block lasts."""
    run = Running(worker)
    try:
        yield run
    finally:
        run.close()


class Gate:
    """A handler that says when it has begun, and ends when it is let go. It may be told to stop meanwhile."""

    def __init__(self, result: Any = "done", on_cancel: Callable[[], None] | None = None) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.contexts: list[Context] = []
        self._result = result

    def __call__(self, body: Any, context: Context) -> Any:
        self.contexts.append(context)
        self.begun.release()
        while not self.open.wait(0.01):
            context.check()
        return self._result

    def wait_begun(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.begun.acquire(timeout=DEADLINE), "the handler has not begun"
