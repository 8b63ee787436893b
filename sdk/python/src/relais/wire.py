"""How values are written and read: JSON, dates, durations.

Integers are exact at any size. Floats are Python's unless `Decimal` is asked for, which keeps every digit in both
directions. NaN and infinities are not JSON and are refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import secrets
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

ParseFloat = Callable[[str], Any]

Duration = float | timedelta
"""Seconds, or a timedelta."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))

_PART = re.compile(r"(\d+)(ms|[dhms])")
_DURATION = re.compile(f"(?:{_PART.pattern})+")
_SECONDS = re.compile(r"\d+(\.\d+)?")

# Python refuses to turn more digits than this into an integer at once.
_MOST_DIGITS = 4000

# A Decimal goes through the encoder as a text with this mark, which nobody else can know, and loses its quotes after.
_MARK = f"decimal-{secrets.token_hex(8)}:"
_MARKED = re.compile(f'"{_MARK}([^"]*)"')


def dumps(value: Any) -> str:
    """Writes a value as JSON.

    Beside what JSON has: dataclasses, pydantic models, enums, dates, UUIDs, Decimals (as numbers) and tuples. Raises
    TypeError or ValueError if it can not be written.
    """
    text = json.dumps(value, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    text.encode()  # A half of a surrogate pair is no text: better known here than when it is sent.
    return _MARKED.sub(r"\1", text) if _MARK in text else text


def loads(text: str | bytes, parse_float: ParseFloat = float) -> Any:
    """Reads JSON. Raises ValueError if it is none."""
    try:
        return json.loads(text, parse_float=parse_float, parse_int=_integer)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def duration(span: Duration) -> str:
    """As the server reads it: `1h30m`, `250ms`. Raises ValueError if it is less than nothing, or no number."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{span} is not a duration: it must be seconds from 0, or a timedelta")
    left = round(seconds * 1000)
    parts = []
    for unit, factor in _UNITS:
        count, left = divmod(left, factor)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def read_duration(text: str) -> float:
    """Seconds, of what people write: `90s`, `1h30m`, `250ms`, or their number. Raises ValueError if it is none."""
    if _SECONDS.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a duration like 30s, 5m or 250ms")
    units = dict(_UNITS)
    return sum(int(count) * units[unit] for count, unit in _PART.findall(text)) / 1000


def read_date(text: str | None) -> datetime | None:
    """A date of the server, which is RFC 3339 in UTC."""
    if text is None:
        return None
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def write_date(moment: datetime) -> str:
    """A date for the server. One without a time zone is taken for local time, as Python does."""
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) <= _MOST_DIGITS else Decimal(digits)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} can not be written as JSON")
        return f"{_MARK}{value}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return write_date(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} can not be written as JSON")
