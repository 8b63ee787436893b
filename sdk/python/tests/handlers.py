"""Handlers for workers that are processes of their own. They act on what the body says."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from relais import Context, Failure


def act(body: dict[str, Any], context: Context) -> Any:
    """Says that it has begun by a file; then ends as it is told, or waits until it is stopped."""
    begun = body.get("begun")
    if begun:
        Path(begun).write_text(f"{os.getpid()} {context.redelivered}")
    if "fail" in body:
        raise Failure(body["fail"])
    until = body.get("until")
    while until and not Path(until).exists():
        context.cancelled.wait(0.01)
        context.check()
    return {"pid": os.getpid(), "redelivered": context.redelivered}


def stubborn(body: dict[str, Any]) -> None:
    """Never ends, and does not listen."""
    Path(body["begun"]).touch()
    while True:
        os.read(os.pipe()[0], 1)


async def patient(body: dict[str, Any]) -> None:
    """Never ends by itself, but can be interrupted."""
    await asyncio.to_thread(Path(body["begun"]).touch)
    await asyncio.Event().wait()


async def die(body: dict[str, Any]) -> None:
    """Takes the whole process with it, at once."""
    os.kill(os.getpid(), signal.SIGKILL)


not_a_function = 7
