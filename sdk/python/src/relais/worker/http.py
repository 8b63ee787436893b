"""Tasks over HTTP: claimed under a lease, which heartbeats keep.

The protocol is described in `docs/guides/worker-http.md`. Results are told until the server has them, or the process
ends; they are not kept on disk, because a task without a result is handed out again anyway.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from .. import calls
from ..backoff import Backoff
from ..errors import Refused, RelaisError, Unreadable
from ..wire import ParseFloat, dumps, duration
from . import environment
from .job import Job, read_submission
from .outage import Outage
from .transport import Transport, this_host
from .verdict import Failed, Success

if TYPE_CHECKING:
    from .crew import Crew

log = logging.getLogger("relais.worker")

Outcome = dict[str, Any]

_CLAIM_WAIT = 30.0
"""How long a claim waits at the server for a first task."""

_EARLY = 1.0
"""An answer without tasks that comes sooner than this is not a long poll that ran out."""

_CLAIM_LIMIT = 0.5
"""How long a claim on its way is waited for when the worker stops. Where there are tasks it answers in far less; where
there are none, nothing is lost by hanging up."""

_RETURN_LIMIT = 5.0
"""How long to try to give back what it brings."""

_MOST = 1000
_BATCH_BYTES = 256 * 1024
"""About as much as one call carries, so that many results together are not refused for their size."""

_TAKEN = ("accepted", "unchanged")
_TAKEN_AWAY = ("cancelled", "ended", "lost", "notFound")


class Http(Transport):
    """Tasks of `service` on the server at `url`, whose client needs the role `work` on it.

    What is not given is taken from the environment: RELAIS_SERVICE, RELAIS_URL, RELAIS_CLIENT, RELAIS_SECRET. `lease`
    is for how many seconds the server waits for a sign of life before it hands a task to another worker; there are
    three per lease. With `parse_float=Decimal`, numbers with a point keep every digit.
    """

    def __init__(
        self,
        service: str | None = None,
        url: str | None = None,
        client_id: str | None = None,
        client_secret: str | None = None,
        *,
        lease: float = 60.0,
        host_name: str | None = None,
        parse_float: ParseFloat = float,
    ) -> None:
        service = service or environment.text("RELAIS_SERVICE")
        if service is None:
            raise ValueError("a service is needed: give its name, or set RELAIS_SERVICE")
        self._service: str = service
        self._base, auth = calls.settings(url, client_id, client_secret)
        self._lease = lease
        self.host_name = host_name or this_host()
        self._parse_float = parse_float
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._http = httpx.AsyncClient(auth=httpx.BasicAuth(*auth), limits=limits)
        self._outage = Outage("the server")
        self._results = _Lane(self._send_messages, self._outage, "messages")
        self._returns = _Lane(self._send_returns, self._outage, "returns")
        self._welcome = False

    @property
    def ready(self) -> bool:
        """Whether the server let this worker in, and answers."""
        return self._welcome and not self._outage

    async def take(self, crew: Crew) -> None:
        """Claims as many tasks as there are free slots, again and again."""
        backoff = Backoff()
        while not crew.enough:
            free = await crew.free()
            if crew.enough:
                return
            asked = time.monotonic()
            # The first one does not wait: whether this worker is welcome is known at once.
            wait = _CLAIM_WAIT if self._welcome else 0.0
            try:
                jobs = await self._claim(min(free, _MOST), wait)
                first, self._welcome = not self._welcome, True
                self._outage.worked("claims")
                if jobs or first or time.monotonic() - asked >= _EARLY:
                    backoff.reset()
                    for job in jobs:
                        crew.start(job)
                    continue
            except RelaisError as error:
                if not self._welcome and isinstance(error, Refused) and not error.passing:
                    raise
                self._outage.failed("claims", error)
            await asyncio.sleep(backoff.next())

    async def deliver(self, job: Job, verdict: Success | Failed) -> bool:
        """Tells a result until the server has it. One that it will never take, e.g. for its size, becomes a failure."""
        told = self._results.put(job, job.ended(verdict))
        if isinstance(verdict, Failed) and verdict.progress is not None:
            # One after the other, mostly in one call.
            _, outcome = await asyncio.gather(self._results.put(job, job.progress(verdict.progress)), told)
        else:
            outcome = await told
        if outcome["outcome"] == "rejected":
            reason = outcome.get("reason") or "it was not understood"
            log.warning("the server does not take the result of task %s: %s", job.task_id, reason)
            message = f"the server did not take the worker's result: {reason}"
            substitute = Failed(message, retryable=False, kind="result")
            outcome = await self._results.put(job, job.ended(substitute))
        if outcome["outcome"] in _TAKEN or (outcome["outcome"] == "ended" and outcome.get("again")):
            return True
        log.info("the result of task %s came too late: %s", job.task_id, outcome["outcome"])
        return False

    async def give_back(self, job: Job) -> None:
        """Others can take it at once."""
        await self._returns.put(job, dumps(job.held))

    async def drop(self, job: Job) -> None:
        """Nobody waits to hear of it."""

    async def tell_progress(self, batch: dict[Job, float]) -> None:
        """All tasks in one call."""
        jobs = list(batch)[:_MOST]
        self._heed(jobs, await self._send_messages([job.progress(batch[job]) for job in jobs]))

    async def run_beside(self, crew: Crew) -> None:
        """Keeps the leases, and carries results and returns."""
        self._gone = crew.gone
        await asyncio.gather(self._heartbeats(crew), self._results.run(), self._returns.run())

    async def close(self) -> None:
        """Hangs up."""
        await self._http.aclose()

    def _heed(self, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome["outcome"] in _TAKEN_AWAY:
                self._gone(job, outcome["outcome"])

    async def _claim(self, free: int, wait: float) -> list[Job]:
        """A claim that is heard out: if this is cancelled, what it brings is given back."""
        body = {"max": free, "lease": duration(self._lease), "hostName": self.host_name}
        if wait > 0:
            body["wait"] = duration(wait)
        claim = asyncio.ensure_future(self._call("claims", dumps(body), wait))
        try:
            data = await asyncio.shield(claim)
        except asyncio.CancelledError:
            await asyncio.wait({claim}, timeout=_CLAIM_LIMIT)
            if claim.done() and not claim.cancelled() and claim.exception() is None:
                returns = [asyncio.ensure_future(self.give_back(job)) for job in self._jobs(claim.result())]
                if returns:
                    await asyncio.wait(returns, timeout=_RETURN_LIMIT)
            claim.cancel()
            raise
        return self._jobs(data)

    def _jobs(self, data: Any) -> list[Job]:
        try:
            return [read_submission(task) for task in data["tasks"]]
        except (KeyError, TypeError, ValueError) as error:
            raise Unreadable(f"the server's answer makes no sense: {error!r}") from error

    async def _heartbeats(self, crew: Crew) -> None:
        period = max(self._lease / 3, 0.01)
        # A call that hangs must leave time for another one before the lease is over.
        limit = min(max(period, 1.0), calls.ANSWER_TIMEOUT)
        backoff = Backoff()
        pause = period
        while True:
            await asyncio.sleep(pause)
            held = crew.held
            try:
                for start in range(0, len(held), _MOST):
                    jobs = held[start : start + _MOST]
                    body = dumps({"tasks": [job.held for job in jobs], "lease": duration(self._lease)})
                    self._heed(jobs, self._outcomes(await self._call("heartbeats", body, limit=limit), len(jobs)))
                backoff.reset()
                self._outage.worked("heartbeats")
                pause = period
            except RelaisError as error:
                self._outage.failed("heartbeats", error)
                pause = min(backoff.next(), period)  # Sooner than the next regular one: the lease runs.

    async def _send_messages(self, messages: Sequence[str]) -> list[Outcome]:
        data = await self._call("messages", f'{{"messages":[{",".join(messages)}]}}')
        return self._outcomes(data, len(messages))

    async def _send_returns(self, tasks: Sequence[str]) -> list[Outcome]:
        data = await self._call("returns", f'{{"tasks":[{",".join(tasks)}]}}')
        return self._outcomes(data, len(tasks))

    def _outcomes(self, data: Any, asked: int) -> list[Outcome]:
        outcomes: list[Outcome] = data["outcomes"]
        # They are matched by their order: with one missing, all would be wrong.
        if len(outcomes) != asked:
            raise Unreadable(f"the server answered {len(outcomes)} outcomes to {asked} messages")
        return outcomes

    async def _call(self, verb: str, body: str, wait: float = 0.0, limit: float | None = None) -> Any:
        call: calls.Call[Any] = calls.Call("POST", (self._service, verb), lambda data: data, body=body, wait=wait)
        request = call.request(self._base)
        if limit is not None:
            request["timeout"] = limit
        try:
            response = await self._http.request(**request)
        except httpx.HTTPError as error:
            raise calls.unreachable(error) from error
        return call.answer(response, self._parse_float)


class _Report:
    """Something to tell of a task, and who waits for the outcome."""

    def __init__(self, job: Job, text: str) -> None:
        self.job = job
        self.text = text
        self.sent_before = False
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()


class _Lane:
    """One call at a time; what comes meanwhile goes together in the next. Tries until it is told."""

    def __init__(self, send: Callable[[Sequence[str]], Awaitable[list[Outcome]]], outage: Outage, name: str) -> None:
        self._send = send
        self._outage = outage
        self._name = name
        self._waiting: list[_Report] = []
        self._came = asyncio.Event()

    async def put(self, job: Job, text: str) -> Outcome:
        """Waits for the outcome. `rejected` if the server will never take it."""
        report = _Report(job, text)
        self._waiting.append(report)
        self._came.set()
        return await report.outcome

    async def run(self) -> None:
        """Until it is cancelled."""
        backoff = Backoff()
        alone = 0
        while True:
            batch = self._next(1 if alone else _MOST)
            if not batch:
                self._came.clear()
                await self._came.wait()
                continue
            alone = max(0, alone - len(batch))
            try:
                outcomes = await self._send([report.text for report in batch])
            except RelaisError as error:
                if isinstance(error, Refused) and error.status in (400, 413, 422):
                    # One of them is not wanted, whoever sends it and however often: which one?
                    if len(batch) == 1:
                        self._complete(batch[0], {"outcome": "rejected", "reason": str(error)})
                    else:
                        alone = len(batch)
                        self._waiting[:0] = batch
                    continue
                self._outage.failed(self._name, error)
                for report in batch:
                    report.sent_before = True
                self._waiting[:0] = batch
                await asyncio.sleep(backoff.next())
                continue
            backoff.reset()
            self._outage.worked(self._name)
            for report, outcome in zip(batch, outcomes, strict=True):
                # Ended, at the second try: by the first one, which had no answer.
                self._complete(report, {**outcome, "again": report.sent_before})

    def _next(self, most: int) -> list[_Report]:
        size, count = 0, 0
        for report in self._waiting[:most]:
            size += len(report.text)
            if count and size > _BATCH_BYTES:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return [report for report in batch if not report.outcome.done()]

    def _complete(self, report: _Report, outcome: Outcome) -> None:
        if not report.outcome.done():
            report.outcome.set_result(outcome)
