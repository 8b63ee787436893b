"""From a JSON body to the type that a handler asks for.

Dataclasses are built field by field, TypedDicts are checked for their keys, pydantic models validate themselves;
whatever else is annotated gets the JSON as it is. Fields that are not asked for are ignored.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Union, get_args, get_origin
from uuid import UUID

Convert = Callable[[Any], Any]

_PLAIN: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (int, float, Decimal),
    bool: (bool,),
    type(None): (type(None),),
}
_FROM_TEXT: dict[Any, Callable[[str], Any]] = {
    datetime: lambda text: datetime.fromisoformat(text.replace("Z", "+00:00")),
    date: date.fromisoformat,
    UUID: UUID,
}


class WrongBody(ValueError):
    """The body is not what the handler expects."""


def converter(annotation: Any) -> Convert:
    """How to make `annotation` of a body. Raises WrongBody, when called, if that can not be done."""
    validate = getattr(annotation, "model_validate", None)
    if validate is not None:
        return lambda body: _validated(validate, body)
    return lambda body: _convert(body, annotation, "")


def _validated(validate: Convert, body: Any) -> Any:
    try:
        return validate(body)
    except ValueError as error:
        raise WrongBody(str(error)) from error


def _convert(value: Any, kind: Any, path: str) -> Any:
    if kind in _PLAIN:
        if not isinstance(value, _PLAIN[kind]) or (isinstance(value, bool) and kind is not bool):
            raise WrongBody(f"{path or '/'} is not {_name(kind)}")
        return float(str(value)) if kind is float else value
    if kind in _FROM_TEXT:
        return _made(_FROM_TEXT[kind], _convert(value, str, path), kind, path)
    if kind is Decimal and isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return Decimal(str(value))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _made(kind, value, kind, path)
    if dataclasses.is_dataclass(kind):
        return _dataclass(value, kind, path)
    if typing.is_typeddict(kind):
        return _typed_dict(value, kind, path)
    return _generic(value, kind, path)


def _generic(value: Any, kind: Any, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(value, arguments, path)
    if origin in (list, tuple, set, frozenset):
        if not isinstance(value, list):
            raise WrongBody(f"{path or '/'} is not a list")
        if origin is tuple and (len(arguments) != 2 or arguments[1] is not ...):
            return tuple(value)
        return origin(_convert(item, arguments[0], f"{path}/{index}") for index, item in enumerate(value))
    if origin is dict:
        _object(value, path)
        return {name: _convert(item, arguments[1], f"{path}/{name}") for name, item in value.items()}
    if origin is typing.Literal and value not in arguments:
        raise WrongBody(f"{path or '/'} is not one of {', '.join(map(repr, arguments))}")
    return value


def _union(value: Any, kinds: tuple[Any, ...], path: str) -> Any:
    problems = []
    for kind in kinds:
        try:
            return _convert(value, kind, path)
        except WrongBody as error:
            problems.append(str(error))
    raise WrongBody(problems[0])


def _dataclass(value: Any, kind: Any, path: str) -> Any:
    _object(value, path)
    hints = typing.get_type_hints(kind)
    arguments = {}
    for field in dataclasses.fields(kind):
        if not field.init:
            continue
        if field.name in value:
            arguments[field.name] = _convert(value[field.name], hints[field.name], f"{path}/{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise WrongBody(f"{path}/{field.name} is missing")
    return _made(lambda given: kind(**given), arguments, kind, path)


def _typed_dict(value: Any, kind: Any, path: str) -> Any:
    _object(value, path)
    for name in sorted(kind.__required_keys__):
        if name not in value:
            raise WrongBody(f"{path}/{name} is missing")
    hints = typing.get_type_hints(kind)
    return {
        name: _convert(item, hints[name], f"{path}/{name}") if name in hints else item for name, item in value.items()
    }


def _object(value: Any, path: str) -> None:
    if not isinstance(value, dict):
        raise WrongBody(f"{path or '/'} is not an object")


def _made(make: Convert, value: Any, kind: Any, path: str) -> Any:
    try:
        return make(value)
    except (ValueError, TypeError) as error:
        raise WrongBody(f"{path or '/'} is not {_name(kind)}: {error}") from error


def _name(kind: Any) -> str:
    words = {str: "a text", int: "an integer", float: "a number", bool: "a boolean", type(None): "null"}
    return words.get(kind) or str(getattr(kind, "__name__", kind))
