"""Notifications, audiences and tickets, as typed values.

Names are the wire's, in Python's spelling. Fields that this version does not know are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal

from .wire import read_date, write_date

USER = "USER"
"""The type of audience whose targets are users."""


@dataclass(frozen=True)
class Target:
    """A user; or, with another type such as `GROUP`, an audience with all its members."""

    target: str
    type: str = USER

    def to_wire(self) -> dict[str, str]:
        """As it stands in a list of members."""
        return {"type": self.type, "target": self.target}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Target:
        """From a list of members."""
        return cls(wire["target"], wire.get("type", USER))

    @classmethod
    def of(cls, member: Member) -> Target:
        """A text is a user."""
        return cls(member) if isinstance(member, str) else member


Member = str | Target
"""A user's name, or a target."""


@dataclass(frozen=True)
class Audience:
    """Who gets a notification: targets of one type."""

    type: str
    targets: Sequence[str]


@dataclass(frozen=True)
class NotificationRetry:
    """Whether a notification must be acknowledged, and how it is sent again. What is None is up to the server."""

    ack_required: bool | None = None
    """Whether each member must acknowledge it; not if absent."""
    enabled: bool | None = None
    """Whether it is sent again to those who have not; it is if absent."""
    limit: int | None = None
    """How often it is sent again before it goes to the error log; 5 if absent."""
    backoff: Literal["FIXED", "LINEAR", "EXPONENTIAL"] | None = None
    """How the pauses grow; exponentially if absent."""
    attempts: int = 0
    """How often it was sent again so far. Relais counts that; it is not sent."""

    def to_wire(self) -> dict[str, Any]:
        """As it stands in a message."""
        wire = {"ack_required": self.ack_required, "enabled": self.enabled, "limit": self.limit}
        return _given({**wire, "backoff": self.backoff})


@dataclass(frozen=True)
class Notification:
    """A notification: what it says, and who gets it. What is None is filled in when it is sent."""

    payload: Any
    """Any JSON."""
    audience: Audience
    retry: NotificationRetry | None = None
    id: str | None = None
    """A message whose id is known is stored once."""
    priority: Literal["LOW", "NORMAL", "HIGH"] | None = None
    """Who is served first under load; `NORMAL` if absent."""
    type: Literal["REALTIME", "SYSTEM", "NOTIFICATION"] | None = None
    """What it is for; `NOTIFICATION` if absent."""
    emitter: str | None = None
    """A program's name, or a user's id; the client if absent."""
    source: str | None = None
    """What it is about, such as a table."""
    topic: str | None = None
    operation: Literal["create", "update", "delete"] | None = None
    """What happened to its source."""
    timestamp: datetime | None = None
    expiration: datetime | None = None
    """From when on it is not sent any more; ten days after its timestamp if absent."""

    def to_wire(self) -> dict[str, Any]:
        """As it is sent."""
        metadata = {
            "id": self.id,
            "priority": self.priority,
            "type": self.type,
            "emitter": self.emitter,
            "source": self.source,
            "topic": self.topic,
            "operation": self.operation,
            "timestamp": None if self.timestamp is None else write_date(self.timestamp),
            "expiration": None if self.expiration is None else write_date(self.expiration),
        }
        audience = {"type": self.audience.type, "targets": list(self.audience.targets)}
        routing: dict[str, Any] = {"audience": audience}
        if self.retry is not None:
            routing["retry"] = self.retry.to_wire()
        return {"metadata": _given(metadata), "payload": self.payload, "routing": routing}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Notification:
        """From a message as it is sent."""
        metadata, routing = wire["metadata"], wire["routing"]
        audience, retry = routing["audience"], routing["retry"]
        return cls(
            payload=wire["payload"],
            audience=Audience(audience["type"], list(audience["targets"])),
            retry=NotificationRetry(
                retry["ack_required"], retry["enabled"], retry["limit"], retry["backoff"], retry["attempts"]
            ),
            id=metadata["id"],
            priority=metadata["priority"],
            type=metadata["type"],
            emitter=metadata["emitter"],
            source=metadata.get("source"),
            topic=metadata.get("topic"),
            operation=metadata.get("operation"),
            timestamp=read_date(metadata["timestamp"]),
            expiration=read_date(metadata["expiration"]),
        )


@dataclass(frozen=True)
class LedgerLine:
    """A user in the ledger of a notification."""

    user: str
    awaited: bool
    """Whether the user must acknowledge it."""
    deliveries: int
    """How often it was sent to the user."""
    delivered: datetime | None = None
    """When it was sent to the user for the last time."""
    acknowledged: datetime | None = None

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> LedgerLine:
        """From a ledger."""
        delivered, acknowledged = read_date(wire.get("delivered")), read_date(wire.get("acknowledged"))
        return cls(wire["user"], wire["awaited"], wire["deliveries"], delivered, acknowledged)


class NotificationStatus(str, Enum):
    """How a notification stands."""

    OPEN = "OPEN"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    FAILED = "FAILED"
    EXPIRED = "EXPIRED"
    WITHDRAWN = "WITHDRAWN"


@dataclass(frozen=True)
class NotificationState:
    """A notification, and how it stands."""

    message: Notification
    status: NotificationStatus
    client_id: str | None = None
    replaced_by: str | None = None
    ledger: list[LedgerLine] = field(default_factory=list)
    """First those who must acknowledge it and have not. At most 1,000."""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> NotificationState:
        """From a list."""
        ledger = [LedgerLine.from_wire(line) for line in wire.get("ledger", ())]
        status = NotificationStatus(wire["status"])
        message = Notification.from_wire(wire["message"])
        return cls(message, status, wire.get("clientId"), wire.get("replacedBy"), ledger)


@dataclass(frozen=True)
class NotificationPage:
    """A page of notifications, the newest first."""

    notifications: list[NotificationState]
    next: str | None = None
    """What to give as `before` for the next page."""

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> NotificationPage:
        """From the answer's `data`."""
        return cls([NotificationState.from_wire(state) for state in wire["notifications"]], wire.get("next"))


@dataclass(frozen=True)
class Ticket:
    """What proves to Relais who a web page's user is: as a bearer token, or as `?ticket=`."""

    ticket: str
    expires: datetime

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Ticket:
        """From the answer's `data`."""
        expires = read_date(wire["expires"])
        assert expires is not None
        return cls(wire["ticket"], expires)


@dataclass(frozen=True)
class MembersChange:
    """What came of a change of members."""

    joined: int
    left: int

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> MembersChange:
        """From the answer's `data`."""
        return cls(wire["joined"], wire["left"])


def _given(wire: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wire.items() if value is not None}
