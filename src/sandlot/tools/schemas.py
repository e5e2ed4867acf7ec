"""Schemas of parameters, as short as they can be written."""

from typing import Any


def parameters(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """An object with these and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def text(about: str, *, empty: bool = False) -> dict[str, Any]:
    return {"type": "string", "description": about, **({} if empty else {"minLength": 1})}


def flag(about: str, *, default: bool = False) -> dict[str, Any]:
    return {"type": "boolean", "description": about, "default": default}


def count(about: str, low: int, high: int, default: int | None = None) -> dict[str, Any]:
    told = {} if default is None else {"default": default}
    return {"type": "integer", "description": about, "minimum": low, "maximum": high, **told}


def texts(about: str) -> dict[str, Any]:
    return {"type": "array", "description": about, "items": {"type": "string", "minLength": 1}, "minItems": 1}
