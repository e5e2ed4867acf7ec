"""Records as lines, and how each holds on to the one before it.

The hash of a line is over the hash before and all of the line but its own hash: who changes, drops or moves a line
changes every hash after it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

GENESIS: Final = "0" * 64
_TAIL: Final = b',"hash":"'
_TAIL_BYTES: Final = len(_TAIL) + 64 + len(b'"}')
_encode = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=str).encode


@dataclass(frozen=True, slots=True)
class Place:
    """A record in the chain: its number, and its hash."""

    number: int
    hash: str


BEGINNING: Final = Place(0, GENESIS)


def line_of(before: Place, fields: Mapping[str, Any]) -> tuple[bytes, Place]:
    """One whole line, with its end, and where the chain is then."""
    number = before.number + 1
    body = _encode({"n": number, **fields}).encode()
    digest = hashlib.sha256(before.hash.encode() + body).hexdigest()
    return body[:-1] + _TAIL + digest.encode() + b'"}\n', Place(number, digest)


def place_of(line: bytes) -> Place | None:
    """What a line says of itself; None: it is no line of ours."""
    try:
        told: Any = json.loads(line)
        number, digest = told["n"], told["hash"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if type(number) is not int or not isinstance(digest, str) or len(digest) != len(GENESIS):
        return None
    return Place(number, digest)


def hash_of(before: str, line: bytes) -> str:
    """The hash that a line must have, behind this one. Lines come without their ends."""
    return hashlib.sha256(before.encode() + line[:-_TAIL_BYTES] + b"}").hexdigest()


def stands_last(line: bytes, digest: str) -> bool:
    """Whether the hash stands where it must: nothing may hide behind it."""
    return line[-_TAIL_BYTES:] == _TAIL + digest.encode() + b'"}'
