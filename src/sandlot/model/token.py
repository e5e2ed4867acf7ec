"""Tokens of sessions: what whoever has a key gives away of it, without asking anybody.

A token names its key, one session, a scope and an end, and is signed with something that follows from the key."""

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Any, cast

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_session_id
from sandlot.model.tenant import Scope

_PREFIX = "slt"
_KEY_PARTS = 3
_TOKEN_PARTS = 4
_TOKEN_CHARS_MAX = 1024


@dataclass(frozen=True, slots=True)
class SessionToken:
    """Read, and not yet believed."""

    key_id: str
    session_id: str
    scope: Scope
    expires: float
    signed: str = field(repr=False)
    signature: str = field(repr=False)

    def is_signed_with(self, signing_key: bytes) -> bool:
        """Takes as long whatever it is."""
        return hmac.compare_digest(_sign(self.signed, signing_key).encode(), self.signature.encode())


def signing_key_of(key: str) -> bytes:
    """What tokens of a key are signed with. The key does not follow from it."""
    return hmac.new(key.encode("utf-8", "surrogateescape"), b"sandlot tokens of sessions", hashlib.sha256).digest()


def token_of_key(key: str, session_id: str, expires: float, scope: Scope = Scope.USE) -> str:
    """Raises InvalidArgument."""
    parts = key.split("_")
    if len(parts) != _KEY_PARTS or parts[0] != "sl":
        raise InvalidArgument("that is no key that tokens can be made of", next_step="give one of `sandlot key create`")
    return make_token(parts[1], signing_key_of(key), session_id, expires, scope)


def make_token(key_id: str, signing_key: bytes, session_id: str, expires: float, scope: Scope) -> str:
    """Raises InvalidArgument."""
    check_session_id(session_id)
    if scope is Scope.OPERATE:
        raise InvalidArgument("a token is for one session, and operates no host", next_step="use `use` or `read`")
    told = json.dumps([session_id, str(scope), int(expires)], separators=(",", ":"))
    signed = f"{_PREFIX}_{key_id}_{base64.b32encode(told.encode()).decode().rstrip('=').lower()}"
    return f"{signed}_{_sign(signed, signing_key)}"


def check_token_lifetime(lifetime_s: float) -> float:
    """Raises InvalidArgument."""
    limits.within("lifetime", lifetime_s, 1.0, limits.TOKEN_LIFETIME_S_MAX)
    return lifetime_s


def read_token(text: str) -> SessionToken | None:
    """None: it is none."""
    parts = text.split("_")
    if len(text) > _TOKEN_CHARS_MAX or len(parts) != _TOKEN_PARTS or parts[0] != _PREFIX:
        return None
    try:
        told: Any = json.loads(base64.b32decode(parts[2].upper() + "=" * (-len(parts[2]) % 8)))
        session_id, scope, expires = cast("list[Any]", told)
        return SessionToken(
            parts[1], check_session_id(session_id), Scope(scope), float(expires), "_".join(parts[:3]), parts[3]
        )
    except (ValueError, TypeError, RecursionError, OverflowError):
        return None


def _sign(signed: str, signing_key: bytes) -> str:
    return hmac.new(signing_key, signed.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
