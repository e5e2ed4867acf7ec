"""One rule for names, checked before any path, command or query is built from one."""

import itertools
import os
import re
from collections.abc import Mapping

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument

_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}", re.ASCII)
_CALLS_OF = os.urandom(6).hex()  # of this process
_calls = itertools.count(1)
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"  # no letters that are read as digits


def check_id(kind: str, value: str) -> str:
    """Give back a well-formed id, or refuse it."""
    if not isinstance(value, str) or not _ID.fullmatch(value) or ".." in value:  # pyright: ignore[reportUnnecessaryIsInstance]
        shown = repr(value)[:64]
        raise InvalidArgument(
            f"{kind} id {shown} is not allowed",
            next_step="use 1 to 128 letters, digits, '.', '-' and '_', a letter or digit first, without '..'",
        )
    return value


def check_session_id(value: str) -> str:
    return check_id("session", value)


def _random(prefix: str, characters: int) -> str:
    # 32 letters: every byte gives one, without bias.
    return prefix + "".join(_ALPHABET[byte & 31] for byte in os.urandom(characters))


def new_session_id() -> str:
    """60 random bits: cannot be guessed from another one, and does not repeat after a restart."""
    return _random("s-", 12)


def new_fork_id(parent: str) -> str:
    """What stands before the last dot of an id is its family, and a fork stays in it."""
    family, dot, _own = parent.rpartition(".")
    return check_session_id(f"{family}{dot}{new_session_id()}")


def new_call_id() -> str:
    """Told apart from every other, of other processes too, those that forked from this one among them; not kept from
    anyone."""
    return f"c-{_CALLS_OF}-{os.getpid():x}-{next(_calls):x}"


def check_labels(labels: Mapping[str, str]) -> None:
    limits.at_most("labels", len(labels), limits.LABELS_MAX)
    for key, value in labels.items():
        if not key or len(key) > limits.LABEL_KEY_CHARS_MAX or "\0" in key:
            raise InvalidArgument(f"label key {key[:64]!r} is empty, too long or holds a NUL", limit="label_key")
        if len(value) > limits.LABEL_VALUE_CHARS_MAX or "\0" in value:
            raise InvalidArgument(f"value of label {key!r} is too long or holds a NUL", limit="label_value")
