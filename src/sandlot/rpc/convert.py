"""Values of the model as messages, and back, by the fields that both have.

A message and the class of the model that it carries have one name, and so have their fields. What a message adds:
`no_x` says that `x` is None where leaving it out means its default; `x_json` has the text of what has no schema.
"""

import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from functools import cache, partial
from typing import Any, cast

from protobuf import Oneof

from sandlot import model
from sandlot.model import AttributesSet, Capability, InvalidArgument, TreeTally
from sandlot.rpc.messages import MESSAGES, AnyMessage

_PRESENT = 1  # what a descriptor says of a field that knows whether it was set
Function = Callable[[Any], Any]

_CAPABILITIES = {str(one): one for one in Capability}
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_ESCAPE = re.compile("\0(.{0,2})", re.DOTALL)


def to_text(value: str) -> str:
    """A text as UTF-8 can carry it: NUL introduces the two digits of a byte that is none, and of NUL itself."""
    if "\0" not in value:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            pass
        else:
            return value
    return _NO_TEXT.sub(_escape, value)


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code and not 0xDC80 <= code <= 0xDCFF:
        raise InvalidArgument(f"a text holds {found.group()!r}, which is no character")
    return f"\0{code & 0xFF:02x}"


def from_text(value: str) -> str:
    return _ESCAPE.sub(_unescape, value) if "\0" in value else value


def _unescape(found: re.Match[str]) -> str:
    digits = found.group(1)
    if not re.fullmatch("00|[89a-f][0-9a-f]", digits):
        raise InvalidArgument("a text holds a NUL byte that introduces none", next_step="write it as NUL and `00`")
    return chr(0xDC00 + int(digits, 16)) if digits != "00" else "\0"


class _Absent(Enum):
    """What it means that a field that knows whether it was set was not."""

    DEFAULT = 1
    NONE = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class _Place:
    """One field: where it is in the message, and how it gets there and back."""

    name: str
    wire: str
    out: Function | None
    into: Function | None
    none: str | None  # the field that says that it is None
    knows: bool  # whether the message knows that it was set
    is_many: bool
    absent: _Absent
    default: object  # one that is a message: it need not be told


@dataclass(frozen=True, slots=True)
class _Shape:
    kind: type
    message: type[AnyMessage]
    places: tuple[_Place, ...]

    def to(self, value: Any) -> AnyMessage:
        told: dict[str, Any] = {}
        for place in self.places:
            found = getattr(value, place.name)
            if found is None:
                if place.none and not place.is_many:
                    told[place.none] = True
            elif found is place.default:
                continue
            elif place.is_many and not found:
                if place.none:
                    told[place.none] = True
            else:
                told[place.wire] = found if place.out is None else place.out(found)
        return build(self.message, told)

    def back(self, message: AnyMessage) -> Any:
        told: dict[str, Any] = {}
        for place in self.places:
            found = getattr(message, place.wire)
            # Asking whether it was set takes long; what is not empty was, and a message that was not is None.
            if place.knows and not found and (found is None or not message.has_field(place.wire)):
                if place.absent is _Absent.NONE or (place.none and getattr(message, place.none)):
                    told[place.name] = None
                elif place.absent is _Absent.REFUSED:
                    raise InvalidArgument(f"{place.wire} of {type(message).__name__} is missing")
                continue
            if place.none and place.is_many and not found:
                told[place.name] = {} if getattr(message, place.none) else None
                continue
            told[place.name] = found if place.into is None else place.into(found)
        return self.kind(**told)


def build(message: type[AnyMessage], told: Mapping[str, Any]) -> AnyMessage:
    """Raises InvalidArgument for what the message cannot hold."""
    try:
        return message(**told)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{message.desc().name}: {error}") from None


def is_value(message: type[AnyMessage]) -> bool:
    """Whether it carries a value of the model."""
    return is_dataclass(getattr(model, message.desc().name, None))


def to_message(value: object) -> AnyMessage:
    """Raises InvalidArgument for what cannot travel: a number that is too large, a text that is none."""
    return _shape(type(value)).to(value)


def from_message(message: AnyMessage) -> Any:
    """Raises what making the value raises, InvalidArgument for words that nobody knows."""
    return _shape(getattr(model, type(message).__name__)).back(message)


def to_choice(message: type[AnyMessage], value: object) -> AnyMessage:
    """A message that is one of several."""
    choice = _choice(message)
    return message(**{choice.name: Oneof(choice.by_kind[type(value)], to_message(value))})


def from_choice(message: AnyMessage) -> Any:
    found: Oneof[Any, Any] | None = getattr(message, _choice(type(message)).name)
    if found is None:
        raise InvalidArgument(f"{type(message).__name__} is empty")
    return from_message(found.value)


@dataclass(frozen=True, slots=True)
class _Choice:
    name: str
    by_kind: Mapping[type, str]


@cache
def _choice(message: type[AnyMessage]) -> _Choice:
    desc = message.desc()
    (oneof,) = desc.oneofs
    kinds: dict[type, str] = {}
    for field in oneof.fields:
        kind = getattr(model, field.value.message.name, None)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
        if is_dataclass(kind):
            kinds[cast("type", kind)] = field.name
    return _Choice(oneof.name, kinds)


@cache
def _shape(kind: type) -> _Shape:
    hints = typing.get_type_hints(kind)
    message = MESSAGES[kind.__name__]
    known = {field.name: field.presence == _PRESENT for field in message.desc().fields}
    return _Shape(kind, message, tuple(_place(kind, field, hints[field.name], known) for field in fields(kind)))


def _place(kind: type, field: Field[Any], hint: Any, known: Mapping[str, bool]) -> _Place:
    name = field.name
    kinds = [one for one in typing.get_args(hint) if one is not types.NoneType] if _is_union(hint) else [hint]
    is_optional = _is_union(hint) and types.NoneType in typing.get_args(hint)
    inner = kinds[0] if is_optional and len(kinds) == 1 else hint
    wire = name if name in known else f"{name}_json"
    none = f"no_{name}" if f"no_{name}" in known else None
    is_many = typing.get_origin(inner) is not None and not wire.endswith("_json") and not _is_union(inner)
    out, into = _special(kind, name) or _ways(inner)
    has_default = field.default is not MISSING or field.default_factory is not MISSING
    absent = _Absent.DEFAULT if has_default else _Absent.NONE if is_optional else _Absent.REFUSED
    default = field.default if is_dataclass(field.default) else None
    return _Place(name, wire, out, into, none, known[wire], is_many, absent, default)


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def _special(kind: type, name: str) -> tuple[Function, Function] | None:
    if kind is AttributesSet and name == "values":
        attribute = MESSAGES["Attribute"]
        return (
            lambda values: [
                build(attribute, {"name": to_text(key), **({} if value is None else {"value": value})})
                for key, value in values.items()
            ],
            lambda found: {from_text(one.name): one.value if one.has_field("value") else None for one in found},
        )
    if kind is TreeTally and name == "skipped":
        skipped = MESSAGES["Skipped"]
        return (
            lambda values: [skipped(path=to_text(path), why=to_text(why)) for path, why in values],
            lambda found: [(from_text(one.path), from_text(one.why)) for one in found],
        )
    return None


def _ways(hint: Any) -> tuple[Function | None, Function | None]:
    """How a value of this type gets into a message, and out of it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (tuple, list, frozenset):
        out, into = _ways(inner[0])
        collect = cast("Function", origin)
        if inner[0] is Capability:  # a newer server knows more of them
            return lambda values: [str(one) for one in values], lambda found: collect(known(found))
        return (
            list if out is None else lambda values: [out(one) for one in values],
            collect if into is None else lambda found: collect(into(one) for one in found),
        )
    if origin is not None and issubclass(origin, Mapping):
        if inner[1] is Any:
            return _to_json, _from_json
        out, into = _ways(inner[1])
        return (
            lambda values: {to_text(key): value if out is None else out(value) for key, value in values.items()},
            lambda found: {from_text(key): value if into is None else into(value) for key, value in found.items()},
        )
    if _is_union(hint):
        message = next(
            one for one in MESSAGES.values() if one.desc().oneofs and set(_choice(one).by_kind) == set(inner)
        )
        return partial(to_choice, message), from_choice
    return _plain_ways(hint)


def _plain_ways(hint: Any) -> tuple[Function | None, Function | None]:
    if hint is str:
        return to_text, from_text
    if hint is float:
        return _to_float, None
    if hint in (int, bool, bytes):
        return None, None
    if issubclass(hint, StrEnum):
        return str, partial(from_word, hint)
    return to_message, from_message


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidArgument("a number is too large") from None


def known(found: list[str]) -> list[Capability]:
    return [_CAPABILITIES[one] for one in found if one in _CAPABILITIES]


def from_word(kind: type[StrEnum], value: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(str(one)) for one in kind)
        raise InvalidArgument(f"{value[:64]!r} is no {kind.__name__}", next_step=f"use one of: {known}") from None


def _to_json(value: Mapping[str, Any]) -> str:
    try:
        return json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"this is no JSON: {error}") from None


def _from_json(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"this is no JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise InvalidArgument("the JSON is no object")
    return cast("dict[str, Any]", found)
