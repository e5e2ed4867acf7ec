"""What is behind the doors of a server: the procedures and the gateways, for whom the key says."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from sandlot.audit.who import LOCAL, WHO, as_whom
from sandlot.contracts import Host
from sandlot.gateways.opensandbox import GatewaySettings, OpenSandboxGateway
from sandlot.gateways.opensandbox.settings import signature_in, token_header, who_of
from sandlot.gateways.web import Application, Receive, Scope, Send
from sandlot.host.admission import Queue
from sandlot.model import KeyInfo, SandlotError, TenantLimits, limits
from sandlot.model import Scope as KeyScope
from sandlot.previews.application import Previews
from sandlot.previews.book import PreviewBook
from sandlot.previews.openings import Openings
from sandlot.rpc.server import application as procedures
from sandlot.tenants.guard import Guard, given_key
from sandlot.tenants.host import TenantHost, as_host
from sandlot.tenants.keys import KeyStore
from sandlot.tenants.room import Room
from sandlot.tenants.secret_files import read_secret
from sandlot.wiring.behalf import on_behalf_of
from sandlot.wiring.door import forget
from sandlot.wiring.passing import passing

_SECRET = "gateway.secret"
_TOKENS = frozenset(token_header(port).lower().encode() for port in (44772, 18080, 1))


class Doors:
    """`application` is for everybody: someone without a key is let in only where nobody else can come, or as long as
    there were never any keys."""

    def __init__(
        self, host: Host, data: Path, preview_domain: str = "", keys_changed: Callable[[], None] = lambda: None
    ) -> None:
        self._host = host
        self._book = PreviewBook(data)
        self._keys = KeyStore(data, keys_changed)
        self._openings = Openings(self._book, lambda key: self._keys.find(key) is not None, as_whom)
        self.previews = Previews(host, self._book, preview_domain, self._openings)
        self._shown = [self.previews]
        self._secret = read_secret(data / _SECRET)
        self._wires: list[Application] = []
        self._operator = self._applications(host, LOCAL)
        self._of_keys: dict[str, Application] = {}
        self._of_tokens: OrderedDict[str, Application] = OrderedDict()
        self._rooms: dict[str, Room] = {}
        self._guard = Guard(self._keys, self._of_key, self._on_behalf)
        self._is_closed = False
        self._look()

    async def application(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("sandlot.trusted") or not self._look():
            await self._operator(scope, receive, send)
        elif self.previews.names(scope) and not self._has_key(scope) and await self.previews.admits(scope):
            await self.previews.at_path(scope, receive, send, is_known=False)
        else:
            await self._guard(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        """Then a session is named as its tenant names it."""
        try:
            return self._keys.check(given_key(scope["headers"])) is not None
        except SandlotError:
            return True  # the guard says what is wrong

    def _look(self) -> bool:
        """Whether a key is needed. Once there was one, a file that is gone or broken opens nothing."""
        if not self._is_closed:
            try:
                self._is_closed = self._keys.has_keys()
            except SandlotError:
                self._is_closed = True
        return self._is_closed

    async def watch(self) -> None:
        async with asyncio.TaskGroup() as watching:
            watching.create_task(self._guard.watch())
            watching.create_task(self.previews.watch())
            watching.create_task(self._openings.watch())

    async def forget(self) -> None:
        """The server ends: what callers began is left to the next one."""
        for wire in self._wires:
            await forget(wire)
        for previews in self._shown:
            await previews.close()

    def _applications(self, host: Host, who: str, info: KeyInfo | None = None) -> Application:
        """Of everybody who shows this key; of its operator, who needs none."""
        kept = info is None or not info.session
        wire = procedures(host if info is None else on_behalf_of(info, host))
        if kept:
            self._wires.append(wire)
        previews = self._shown[0] if host is self._host else Previews(host, self._book, "", self._openings)
        gateway = OpenSandboxGateway(host, GatewaySettings(self._secret, who=who), passing(previews.proxy))
        if kept and previews not in self._shown:
            self._shown.append(previews)

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            before = WHO.set(who)
            try:
                if "sandlot.unproven" not in scope and previews.names(scope):
                    await previews.at_path(scope, receive, send, is_known="sandlot.foreign" not in scope)
                    return
                mine = "sandlot.unproven" in scope or gateway.serves(scope["path"])
                await (gateway if mine else wire)(scope, receive, send)
            finally:
                WHO.reset(before)

        return serve

    def _of_key(self, info: KeyInfo) -> Application:
        if info.session:
            return self._of_token(info)
        made = self._of_keys.get(info.key_id)
        if made is None:
            host = self._host
            if info.scope is not KeyScope.OPERATE:
                host = as_host(TenantHost(host, info.tenant, info.scope, self._room(info.tenant)))
            made = self._of_keys[info.key_id] = self._applications(host, info.who, info)
        return made

    def _of_token(self, info: KeyInfo) -> Application:
        """There may be any number of tokens: only those that come are kept."""
        made = self._of_tokens.get(info.who)
        if made is None:
            scope = KeyScope.USE if info.scope is KeyScope.OPERATE else info.scope
            host = as_host(TenantHost(self._host, info.tenant, scope, self._room(info.tenant), info.session))
            made = self._of_tokens[info.who] = self._applications(host, info.who, info)
            if len(self._of_tokens) > limits.TOKENS_KEPT:
                self._of_tokens.popitem(last=False)
        self._of_tokens.move_to_end(info.who)
        return made

    def _room(self, tenant: str) -> Room:
        if tenant not in self._rooms:
            self._rooms[tenant] = Room(tenant, self._bounds(tenant), Queue())
        return self._rooms[tenant]

    def _bounds(self, tenant: str) -> Callable[[], TenantLimits]:
        return lambda: self._keys.limits(tenant)

    def _on_behalf(self, scope: Scope) -> KeyInfo | None:
        """Who has the token of an endpoint, or an address that was signed, is let through to it, on behalf of a key
        that is still good. Whether they are good is looked at there, and nothing else is to be had with them."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name in _TOKENS]
        if signature := signature_in(scope["path"]):
            given = [signature]
        elif "/proxy/" not in scope["path"]:
            return None
        for token in given:
            if info := self._keys.of_whom(who_of(token)):
                scope["sandlot.unproven"] = True
                return info
        return None
