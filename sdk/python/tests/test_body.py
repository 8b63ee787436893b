"""From JSON to the types that handlers ask for, and from values to JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, TypedDict
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from relais.wire import dumps, loads
from relais.worker.body import WrongBody, converter


class Color(Enum):
    RED = "red"


@dataclass
class Size:
    width: int
    height: int | None = None


@dataclass
class Picture:
    size: Size
    ratio: float
    name: str = "x"
    tags: list[str] = field(default_factory=list)
    sizes: dict[str, Size] = field(default_factory=dict)
    color: Color = Color.RED
    kind: Literal["png", "jpeg"] = "png"
    taken: datetime | None = None
    day: date | None = None
    id: UUID | None = None
    price: Decimal = Decimal(0)
    points: tuple[int, ...] = ()


class Order(TypedDict):
    pages: int


class Model(BaseModel):
    pages: int = Field(gt=0)


def test_a_dataclass_is_built_with_all_that_is_in_it() -> None:
    body = {
        "size": {"width": 1, "height": 2, "unknown": 3},
        "ratio": 2,
        "tags": ["a"],
        "sizes": {"s": {"width": 3}},
        "color": "red",
        "kind": "jpeg",
        "taken": "2030-01-01T00:00:00Z",
        "day": "2030-01-01",
        "id": "0198c7c2-0000-7000-8000-000000000000",
        "price": 1.5,
        "points": [1, 2],
    }
    assert converter(Picture)(body) == Picture(
        size=Size(1, 2),
        ratio=2.0,
        tags=["a"],
        sizes={"s": Size(3)},
        kind="jpeg",
        taken=datetime(2030, 1, 1, tzinfo=timezone.utc),
        day=date(2030, 1, 1),
        id=UUID("0198c7c2-0000-7000-8000-000000000000"),
        price=Decimal("1.5"),
        points=(1, 2),
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (7, "/ is not an object"),
        ({"ratio": 1}, "/size is missing"),
        ({"size": {}, "ratio": 1}, "/size/width is missing"),
        ({"size": {"width": "1"}, "ratio": 1}, "/size/width is not an integer"),
        ({"size": {"width": True}, "ratio": 1}, "/size/width is not an integer"),
        ({"size": {"width": 1, "height": "x"}, "ratio": 1}, "/size/height is not an integer"),
        ({"size": {"width": 1}, "ratio": "1"}, "/ratio is not a number"),
        ({"size": {"width": 1}, "ratio": 1, "tags": "a"}, "/tags is not a list"),
        ({"size": {"width": 1}, "ratio": 1, "tags": ["a", 1]}, "/tags/1 is not a text"),
        ({"size": {"width": 1}, "ratio": 1, "sizes": {"s": {}}}, "/sizes/s/width is missing"),
        ({"size": {"width": 1}, "ratio": 1, "color": "blue"}, "/color is not Color"),
        ({"size": {"width": 1}, "ratio": 1, "kind": "gif"}, "/kind is not one of 'png', 'jpeg'"),
        ({"size": {"width": 1}, "ratio": 1, "taken": "soon"}, "/taken is not datetime"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(body: Any, says: str) -> None:
    with pytest.raises(WrongBody) as wrong:
        converter(Picture)(body)
    assert says in str(wrong.value)


def test_a_typed_dict_is_checked_for_its_keys() -> None:
    assert converter(Order)({"pages": 1, "more": 2}) == {"pages": 1, "more": 2}
    with pytest.raises(WrongBody, match="/pages is missing"):
        converter(Order)({})


def test_a_pydantic_model_validates_itself() -> None:
    assert converter(Model)({"pages": 1}) == Model(pages=1)
    with pytest.raises(WrongBody, match="greater than 0"):
        converter(Model)({"pages": 0})
    assert dumps({"a": Model(pages=2)}) == '{"a":{"pages":2}}'


def test_without_a_type_the_json_is_given_as_it_is() -> None:
    for annotation in (Any, dict, dict[str, Any], object):
        assert converter(annotation)({"a": 1}) == {"a": 1}


def test_what_looks_like_a_decimal_but_is_a_text_stays_a_text() -> None:
    assert dumps({"a": "decimal-:1", "b": [Decimal("1.10"), Decimal("-1E+3")]}) == '{"a":"decimal-:1","b":[1.10,-1E+3]}'
    assert loads("[1.10, 12345678901234567890]", Decimal) == [Decimal("1.10"), 12345678901234567890]
    for strange in ("[" * 100_000, "", "{"):
        with pytest.raises(ValueError):  # noqa: PT011
            loads(strange)
