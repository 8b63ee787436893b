"""What whoever runs the process says by its environment, as the Helm chart does to an image that is a worker by itself.

What the program says wins over it. What is empty is not said; what makes no sense is an error that names the variable.
"""

from __future__ import annotations

import os

from ..wire import read_duration

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def text(name: str) -> str | None:
    """A text."""
    return os.environ.get(name) or None


def number(name: str) -> int | None:
    """A whole number."""
    said = text(name)
    if said is not None and not said.isdecimal():
        raise ValueError(f"{name} is {said!r}, and not a whole number")
    return None if said is None else int(said)


def seconds(name: str) -> float | None:
    """A duration, like `90s`, `1h30m`, or a number of seconds."""
    said = text(name)
    try:
        return None if said is None else read_duration(said)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def flag(name: str) -> bool | None:
    """Whether something is so."""
    said = text(name)
    if said is not None and said.lower() not in _FLAGS:
        raise ValueError(f"{name} is {said!r}, and neither true nor false")
    return None if said is None else _FLAGS[said.lower()]
