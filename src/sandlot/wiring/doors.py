"""What is behind the doors of a server: the procedures and the gateways, for whom the key says."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from sandlot.contracts import Host
from sandlot.gateways.opensandbox import GatewaySettings, OpenSandboxGateway
from sandlot.gateways.opensandbox.settings import signature_in, token_header, who_of
from sandlot.gateways.web import Application, Receive, Scope, Send
from sandlot.model import KeyInfo, TenantLimits, Unavailable
from sandlot.model import Scope as KeyScope
from sandlot.rpc.server import application as procedures
from sandlot.tenants.guard import Guard
from sandlot.tenants.host import TenantHost, as_host
from sandlot.tenants.keys import KeyStore
from sandlot.wiring.door import forget

_SECRET = "gateway.secret"
_SECRET_BYTES = 32
_TOKENS = frozenset(token_header(port).lower().encode() for port in (44772, 18080, 1))


class Doors:
    """`application` is for everybody: someone without a key is let in only where nobody else can come, or as long as
    there are no keys."""

    def __init__(self, host: Host, data: Path) -> None:
        self._host = host
        self._keys = KeyStore(data)
        self._secret = read_secret(data / _SECRET)
        self._wires: list[Application] = []
        self._operator = self._applications(host, "local")
        self._of_keys: dict[str, Application] = {}
        self._guard = Guard(self._keys, self._of_key, self._of_token)

    async def application(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("sandlot.trusted") or not self._keys.has_keys():
            await self._operator(scope, receive, send)
        else:
            await self._guard(scope, receive, send)

    async def watch(self) -> None:
        await self._guard.watch()

    async def forget(self) -> None:
        """The server ends: what callers began is left to the next one."""
        for wire in self._wires:
            await forget(wire)

    def _applications(self, host: Host, who: str) -> Application:
        wire = procedures(host)
        self._wires.append(wire)
        gateway = OpenSandboxGateway(host, GatewaySettings(self._secret, who=who))

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            mine = "sandlot.unproven" in scope or gateway.serves(scope["path"])
            await (gateway if mine else wire)(scope, receive, send)

        return serve

    def _of_key(self, info: KeyInfo) -> Application:
        made = self._of_keys.get(info.key_id)
        if made is None:
            host = self._host
            if info.scope is not KeyScope.OPERATE:
                host = as_host(TenantHost(host, info.tenant, info.scope, self._bounds(info.tenant)))
            made = self._of_keys[info.key_id] = self._applications(host, info.key_id)
        return made

    def _bounds(self, tenant: str) -> Callable[[], TenantLimits]:
        return lambda: self._keys.limits(tenant)

    def _of_token(self, scope: Scope) -> Application | None:
        """Who has the token of an endpoint, or an address that was signed, is let through to it, on behalf of a key
        that is still good. Whether they are good is looked at there, and nothing else is to be had with them."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name in _TOKENS]
        if signature := signature_in(scope["path"]):
            given = [signature]
        elif "/proxy/" not in scope["path"]:
            return None
        for token in given:
            if info := self._keys.find(who_of(token)):
                scope["sandlot.unproven"] = True
                return self._of_key(info)
        return None


def read_secret(path: Path) -> bytes:
    """The same after every restart. Raises Unavailable."""
    try:
        new = path.with_suffix(f".{os.getpid()}")
        if not path.exists():
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, secrets.token_bytes(_SECRET_BYTES))
                os.fsync(file)
            finally:
                os.close(file)
            new.replace(path)
        found = path.read_bytes()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read or made: {error.strerror}") from error
    if len(found) != _SECRET_BYTES:
        raise Unavailable(f"{path} is not what was written", next_step="remove it; tokens of endpoints change then")
    return found
