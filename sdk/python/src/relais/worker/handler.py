"""From somebody's function to a handler that takes JSON, and that can not fail other than with a verdict.

An `async def` runs in the event loop; a plain `def` in a thread of its own, so that it may block.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any

from ..wire import dumps
from .body import WrongBody, converter
from .context import Context
from .verdict import Cancelled, Failed, Failure, GiveBack, Success, TryAgain, Verdict

log = logging.getLogger("relais.worker")

# Enough to see where it happened; the whole of a deep recursion helps nobody.
_TRACE = -8


class Handler:
    """A function of a body, and of a context if it takes two."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        parameters = list(inspect.signature(function).parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if not positional or len([p for p in positional if p.default is p.empty]) > 2:
            raise TypeError("a handler takes a body, or a body and a context")
        self._with_context = len(positional) > 1
        self._convert = converter(_annotation(function, positional[0]))

    async def __call__(self, body: Any, context: Context) -> Verdict:
        """Does the work. Never raises, unless it is cancelled."""
        try:
            arguments = [self._convert(body), context] if self._with_context else [self._convert(body)]
        except WrongBody as error:
            return Failed(f"the body is not what the handler expects: {error}", retryable=False, kind="body")
        try:
            work = self._function(*arguments) if self.is_async else _in_thread(self._function, *arguments)
            return _success(await work)
        except TryAgain as again:
            return GiveBack(again.after)
        except Cancelled:
            return GiveBack()
        except Failure as failure:
            return Failed(str(failure), failure.retryable, failure.retry_after, failure.kind)
        except (Exception, SystemExit) as error:
            trace = "".join(traceback.format_exception(error))  # All of it: what is logged is cut.
            log.warning("task %s failed", context.task_id, exc_info=_short(error))
            kind, said = type(error).__name__, _said(error)
            return Failed(f"{kind}: {said}" if said else kind, kind=kind, trace=trace)


def _success(result: Any) -> Verdict:
    try:
        return Success(dumps(result))
    except (TypeError, ValueError, RecursionError) as error:
        return Failed(f"the handler's result can not be written as JSON: {error}", retryable=False, kind="result")


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """What the body is to be. Only that is looked up: other annotations may be there for type checkers alone."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    inner = inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)
    try:
        return eval(annotation, inner.__globals__, dict(inspect.getclosurevars(inner).nonlocals))
    except (NameError, AttributeError, SyntaxError) as error:
        raise TypeError(f"the annotation {annotation!r} of the handler's body can not be looked up: {error}") from error


def _in_thread(function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """Runs a function in a thread that does not keep the process alive, unlike those of an executor."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    variables = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = variables.run(function, *arguments)
        except StopIteration as stop:
            error = RuntimeError(f"StopIteration: {stop}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # The worker has ended without waiting for this.
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True, name="relais-handler").start()
    return future


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "an error that can not be shown"


def _short(error: BaseException) -> BaseException:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return error.with_traceback(frames[_TRACE:][0]) if frames else error
