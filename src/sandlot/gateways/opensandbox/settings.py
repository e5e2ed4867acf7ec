"""What an operator says of the gateway, and the tokens of its endpoints."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandlot.model import BUILTIN

EXECD_PORT = 44772
EGRESS_PORT = 18080
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
        text = f"opensandbox endpoint\0{self.who}\0{sandbox_id}\0{port}".encode()
        return f"{self.who}.{hmac.new(self.secret, text, hashlib.sha256).hexdigest()[:40]}"

    def is_token(self, given: str, sandbox_id: str, port: int) -> bool:
        return hmac.compare_digest(given.encode(), self.token(sandbox_id, port).encode())


def who_of(token: str) -> str:
    """On whose behalf a token says it was handed out."""
    return token.rpartition(".")[0]


def token_header(port: int) -> str:
    return _HEADERS.get(port, _HEADER)
