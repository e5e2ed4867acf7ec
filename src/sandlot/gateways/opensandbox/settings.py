"""What an operator says of the gateway, and the tokens of its endpoints."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandlot.model import BUILTIN

EXECD_PORT = 44772
EGRESS_PORT = 18080
EXPIRES_DIGITS_MAX = 11  # of a time since 1970
_HEADERS = {EXECD_PORT: "X-EXECD-ACCESS-TOKEN", EGRESS_PORT: "OPENSANDBOX-EGRESS-AUTH"}
_HEADER = "OPEN-SANDBOX-ENDPOINT-TOKEN"


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    secret: bytes = field(repr=False)  # tokens of endpoints are made from it; the same after a restart
    api_key: str = field(default="", repr=False)  # empty: who asks was looked at before, or anybody may
    who: str = "local"  # on whose behalf tokens of endpoints are handed out
    images: Mapping[str, str] = field(default_factory=dict[str, str])  # the name of an image, and the template for it
    template: str = BUILTIN  # for all other images
    address: str = ""  # HOST:PORT that endpoints are told with; empty: as the client called us

    def template_of(self, image: str) -> str:
        """By its name, else by its name without tag or digest."""
        bare = image.partition("@")[0]
        head, colon, tag = bare.rpartition(":")
        without = head if colon and "/" not in tag else bare
        return self.images.get(image) or self.images.get(without) or self.template

    def is_key(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.api_key.encode())

    def token(self, sandbox_id: str, port: int) -> str:
        """Of one port of one sandbox, on behalf of someone, whose name it begins with."""
        return f"{self.who}.{self._mark('endpoint', sandbox_id, port)}"

    def is_token(self, given: str, sandbox_id: str, port: int) -> bool:
        return hmac.compare_digest(given.encode(), self.token(sandbox_id, port).encode())

    def signature(self, sandbox_id: str, port: int, expires: int) -> str:
        """The same with an end, for an address that needs no header. What logs hide begins as this does."""
        return f"{self.who}.{expires}.sl_{self._mark('address', sandbox_id, port, expires)}"

    def is_signature(self, given: str, sandbox_id: str, port: int, now: float) -> bool:
        text = given.rpartition(".")[0].rpartition(".")[2]
        if not (text.isascii() and text.isdecimal() and len(text) <= EXPIRES_DIGITS_MAX):
            return False
        wanted = self.signature(sandbox_id, port, int(text))
        return hmac.compare_digest(given.encode(), wanted.encode()) and now < int(text)

    def _mark(self, kind: str, sandbox_id: str, *numbers: int) -> str:
        text = "\0".join((f"opensandbox {kind}", self.who, sandbox_id, *map(str, numbers)))
        return hmac.new(self.secret, text.encode(), hashlib.sha256).hexdigest()[:40]


def who_of(token: str) -> str:
    """On whose behalf a token, or the signature of an address, says it was handed out."""
    before, _, mark = token.rpartition(".")
    return before.rpartition(".")[0] if mark.startswith("sl_") else before


def signature_in(path: str) -> str:
    """Of a signed address; empty: it is none."""
    parts = path.removeprefix("/v1").split("/")
    return parts[4] if len(parts) > 5 and (parts[1], parts[3]) == ("sandboxes", "signed") else ""


def token_header(port: int) -> str:
    return _HEADERS.get(port, _HEADER)
