"""Tokens: who has one may use one port of one session, until a moment.

A token says of which making of the session it is, so one of a session that was destroyed is none of the next that has
its id. It is checked before anything is looked up: a wrong one takes as long for a session that nobody has."""

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

from sandlot.previews.addresses import PreviewAddress

PREFIX: Final = "slp"
_FORM: Final = re.compile(rf"{PREFIX}_([0-9a-f]{{1,16}})_([0-9a-f]{{1,12}})_([A-Za-z0-9_-]{{43}})", re.ASCII)
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Grant:
    """What a good token says."""

    made_us: int  # when the session was made
    expires: float


def made_us(created: float) -> int:
    return round(created * _MICROSECONDS)


def sign(secret: bytes, address: PreviewAddress, created: float, expires: float) -> str:
    made, until = made_us(created), int(expires)
    return f"{PREFIX}_{made:x}_{until:x}_{_signature(secret, address, made, until)}"


def read(secret: bytes, address: PreviewAddress, token: str, now: float) -> Grant | None:
    """None for every one that is not good for this port now."""
    match = _FORM.fullmatch(token)
    if match is None:
        return None
    made, until = int(match[1], 16), int(match[2], 16)
    is_it = hmac.compare_digest(match[3], _signature(secret, address, made, until))
    return Grant(made, until) if is_it and now < until else None


def _signature(secret: bytes, address: PreviewAddress, made: int, until: int) -> str:
    text = f"sandlot preview\0{address.session_id}\0{address.port}\0{made}\0{until}".encode()
    return urlsafe_b64encode(hmac.digest(secret, text, hashlib.sha256)).decode().rstrip("=")
