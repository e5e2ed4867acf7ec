"""Tokens: who has one may use one port of one session, until a moment.

A token says of which making of the session it is, so one of a session that was destroyed is none of the next that has
its id. It is checked before anything is looked up: a wrong one takes as long for a session that nobody has. Whether the
key that it ends with is still good, whoever reads it looks."""

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

from sandlot.previews.addresses import PreviewAddress

PREFIX: Final = "slp"
_FORM: Final = re.compile(
    rf"{PREFIX}_([0-9a-f]{{1,16}})_([0-9a-f]{{1,12}})_(?:([0-9a-f]{{12}})_)?([A-Za-z0-9_-]{{43}})", re.ASCII
)
_MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Grant:
    """What a good token says."""

    made_us: int  # when the session was made
    expires: float
    key: str = ""  # that it ends with, by its id; none: it was asked for without one


def made_us(created: float) -> int:
    return round(created * _MICROSECONDS)


def sign(secret: bytes, address: PreviewAddress, created: float, expires: float, key: str = "") -> str:
    grant = Grant(made_us(created), int(expires), key)
    of_key = f"{key}_" if key else ""
    return f"{PREFIX}_{grant.made_us:x}_{int(expires):x}_{of_key}{_signature(secret, address, grant)}"


def read(secret: bytes, address: PreviewAddress, token: str, now: float) -> Grant | None:
    """None for every one that is not good for this port now."""
    match = _FORM.fullmatch(token)
    if match is None:
        return None
    grant = Grant(int(match[1], 16), int(match[2], 16), match[3] or "")
    is_it = hmac.compare_digest(match[4], _signature(secret, address, grant))
    return grant if is_it and now < grant.expires else None


def _signature(secret: bytes, address: PreviewAddress, grant: Grant) -> str:
    told = (address.session_id, address.port, grant.made_us, int(grant.expires), *([grant.key] if grant.key else []))
    text = "\0".join(["sandlot preview", *map(str, told)]).encode()
    return urlsafe_b64encode(hmac.digest(secret, text, hashlib.sha256)).decode().rstrip("=")
