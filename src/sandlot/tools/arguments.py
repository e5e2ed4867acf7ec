"""Whether arguments are what a tool's schema asks for. Every mistake is told at once, in words that a model can act on.

Only the words of JSON schema that a tool needs are known: type, properties, required, additionalProperties, items,
enum, minimum, maximum, minLength, minItems. Others are not looked at.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from sandlot.model import ToolProblem

_SHOWN_CHARS = 80
_DEPTH_MAX = 32


def check_arguments(tool: str, schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, whole numbers as such. Raises ToolProblem."""
    mistakes = list(_mistakes("", schema, arguments, 0))
    if mistakes:
        raise ToolProblem(f"{tool}: " + "; ".join(mistakes))
    return {name: _whole(value) for name, value in arguments.items() if value is not None}


def _mistakes(where: str, schema: Mapping[str, Any], value: Any, depth: int) -> Iterator[str]:
    if depth > _DEPTH_MAX:
        yield f"{where} is nested too deeply"
        return
    wanted = schema.get("type", "")
    if wanted in _KINDS and not _KINDS[wanted](value):
        yield f"{where or 'the arguments'} must be {_ARTICLES[wanted]}, not {_shown(value)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where} must be one of {', '.join(map(repr, schema['enum']))}, not {_shown(value)}"
    if isinstance(value, Mapping):
        yield from _object_mistakes(where, schema, cast("Mapping[str, Any]", value), depth)
    elif isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield f"{where} is empty"
    elif isinstance(value, Sequence):
        items = cast("Sequence[Any]", value)
        if len(items) < schema.get("minItems", 0):
            yield f"{where} has no entry"
        for at, item in enumerate(items):
            yield from _mistakes(f"{where}[{at}]", schema.get("items", {}), item, depth + 1)
    elif _is_number(value):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            yield f"{where} must lie between {low} and {high}, not {_shown(value)}"


def _object_mistakes(where: str, schema: Mapping[str, Any], value: Mapping[str, Any], depth: int) -> Iterator[str]:
    known: Mapping[str, Any] = schema.get("properties", {})
    inner = f"{where}." if where else ""
    for name in schema.get("required", ()):
        if value.get(name) is None:
            yield f"{inner}{name} is missing"
    for name, item in value.items():
        if name in known:
            # A model that has nothing to say about an optional parameter often says null.
            if item is not None:
                yield from _mistakes(f"{inner}{name}", known[name], item, depth + 1)
        elif schema.get("additionalProperties") is False:
            told = ", ".join(known) or "none"
            yield f"{_shown(inner + name)} is no parameter of it (it has {told})"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value.is_integer())


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": _is_list,
    "string": lambda value: isinstance(value, str),
    "integer": _is_whole,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
}
_ARTICLES = {
    "object": "an object",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
