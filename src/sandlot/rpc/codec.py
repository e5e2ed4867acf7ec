"""Messages as bytes: the two codecs of the wire. What cannot be read is an InvalidArgument, whatever it is."""

import json
from typing import Any, NoReturn

from sandlot.model import InvalidArgument, limits
from sandlot.rpc.messages import AnyMessage


class Binary:
    name = "proto"

    def encode(self, message: AnyMessage) -> bytes:
        return message.to_binary()

    def decode(self, data: bytes | bytearray, kind: type[AnyMessage]) -> AnyMessage:
        try:
            return kind.from_binary(data)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _unreadable(kind, error) from None


class Json:
    """JSON as protobuf has it. It is read with care first: the library's reader does not survive what is very deep."""

    name = "json"

    def encode(self, message: AnyMessage) -> bytes:
        return message.to_json(always_emit_implicit=True).encode()

    def decode(self, data: bytes | bytearray, kind: type[AnyMessage]) -> AnyMessage:
        try:
            text = data.decode()
            check_json(text)
            return kind.from_json(text, ignore_unknown_fields=True)
        except InvalidArgument:
            raise
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _unreadable(kind, error) from None


def check_json(text: str) -> None:
    """An object, not too deep, with each name once, and numbers that are some. Raises InvalidArgument, ValueError."""
    deep = text.count("[") + text.count("{")
    if deep > limits.JSON_DEPTH_MAX and _depth(text) > limits.JSON_DEPTH_MAX:
        raise InvalidArgument(f"the JSON is more than {limits.JSON_DEPTH_MAX} levels deep", limit="json_depth")
    found: object = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    if not isinstance(found, dict):
        raise InvalidArgument("a message is a JSON object")


def _depth(text: str) -> int:
    """Of brackets outside of strings."""
    deepest = depth = 0
    in_string = is_escaped = False
    for character in text:
        if in_string:
            if is_escaped:
                is_escaped = False
            elif character == "\\":
                is_escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > limits.JSON_DEPTH_MAX:
                return deepest
        elif character in "]}":
            depth -= 1
    return deepest


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidArgument("a name stands twice in one JSON object")
    return found


def _no_number(name: str) -> NoReturn:
    raise InvalidArgument(f"{name} is no JSON")


def _unreadable(kind: type[AnyMessage], error: Exception) -> InvalidArgument:
    shown = str(error).encode(errors="backslashreplace").decode()[:200]
    return InvalidArgument(f"this is no {kind.desc().name}: {shown}")


BINARY = Binary()
JSON = Json()
Codec = Binary | Json


def of_content_type(content_type: str) -> Codec | None:
    """`application/json`, `application/connect+proto` and what is behind a semicolon."""
    kind = content_type.partition(";")[0].strip().lower()
    return _CODECS.get(kind)


_CODECS: dict[str, Codec] = {
    f"application/{prefix}{codec.name}": codec for prefix in ("", "connect+") for codec in (BINARY, JSON)
}
