"""All of it as one ASGI application: who may ask what, and how a refusal is told."""

import logging
import secrets
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from sandlot.contracts import Host
from sandlot.gateways.opensandbox import execd, translate
from sandlot.gateways.opensandbox.egress import Egress
from sandlot.gateways.opensandbox.lifecycle import USER, Lifecycle
from sandlot.gateways.opensandbox.passage import Pass, no_way, passage
from sandlot.gateways.opensandbox.refusals import EGRESS, EXECD, LIFECYCLE, refusals
from sandlot.gateways.opensandbox.schema import Refused, read_port
from sandlot.gateways.opensandbox.settings import EGRESS_PORT, EXECD_PORT, GatewaySettings, token_header
from sandlot.gateways.opensandbox.templates import Templates
from sandlot.gateways.web import Answer, Passage, Receive, Request, Route, Router, Scope, Send
from sandlot.model import LimitReached, SandlotError, Unavailable

KEY_HEADER: Final = "open-sandbox-api-key"
PROXY: Final = "/sandboxes/{id}/proxy/{port}/{rest...}"
SIGNED: Final = "/sandboxes/{id}/signed/{signature}/{port}/{rest...}"
_log = logging.getLogger("sandlot.gateways.opensandbox")
_PATHS: Final = frozenset(["sandboxes", "snapshots", "templates", "pools", "metrics"])


class OpenSandboxGateway:
    """Serves below `/v1` and, as theirs does, below `/`."""

    def __init__(self, host: Host, settings: GatewaySettings, through: Pass = no_way) -> None:
        """`through` leads a request to a port of a sandbox."""
        self._host = host
        self._through = through
        self._settings = settings
        open_to_all = [Route("GET", "/health", self._health), Route("GET", "/version", self._version)]
        self.open = Router(open_to_all)
        egress = Egress(host)
        lifecycle = Lifecycle(host, settings).routes()
        self.lifecycle = Router(
            [*lifecycle, *egress.lifecycle_routes(), *Templates(host).routes(), *refusals(LIFECYCLE)]
        )
        self.execd = Router([Route("GET", "/ping", self._ping), *execd.routes(host, USER), *refusals(EXECD)])
        self.egress = Router([*egress.routes(), *refusals(EGRESS)])
        self._proxy = Route("*", PROXY, self._proxied)
        self._signed = Route("*", SIGNED, self._proxied)

    def serves(self, path: str) -> bool:
        """Whether a path belongs here, on a server that has more than this."""
        parts = path.strip("/").split("/")
        return parts[0] == "v1" or parts[0] in _PATHS or path in ("/health", "/version")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request.of(scope, receive)
        said = request.headers.get("x-request-id", "")
        request_id = said if 0 < len(said) <= 128 and said.isprintable() and said.isascii() else secrets.token_hex(8)
        answer = await self._answer(request)
        if isinstance(answer, Passage):
            try:
                await answer.run(scope, receive, send)
                return
            except SandlotError as error:
                answer = _refused(request, error)
        answer = Answer(answer.status, answer.body, {**answer.headers, "x-request-id": request_id})
        try:
            await answer.send(send, request)
        except SandlotError as error:  # the head is sent: all that is left is to end it
            _log.info("request %s was cut: %s", request_id, error)
            raise

    async def _answer(self, request: Request) -> Answer | Passage:
        try:
            return await self._checked(request)
        except SandlotError as error:
            return _refused(request, error)

    async def _checked(self, request: Request) -> Answer | Passage:
        if found := self.open.find(request):
            return await found(request)
        if request.segments[:1] == ("v1",):
            request.segments = request.segments[1:]
        for route in (self._proxy, self._signed):
            if (values := route.match(request.segments)) is not None:
                request.values |= values
                return await self._proxied(request)
        self._check_key(request)
        return await self._routed(self.lifecycle, request)

    def _check_key(self, request: Request) -> None:
        if request.is_unproven:
            raise Refused("MISSING_API_KEY", "the token of an endpoint is good for that endpoint alone", status=401)
        if request.is_known or not self._settings.api_key:
            return
        given = request.headers.get(KEY_HEADER, "")
        if not given:
            raise Refused("MISSING_API_KEY", f"the header {KEY_HEADER.upper()} is missing", status=401)
        if not self._settings.is_key(given):
            raise Refused("INVALID_API_KEY", "this is no key of this server", status=401)

    async def _routed(self, router: Router, request: Request) -> Answer | Passage:
        if found := router.find(request):
            return await found(request)
        if methods := ", ".join(router.methods(request)):
            body = {"code": "METHOD_NOT_ALLOWED", "message": f"this path has {methods}"}
            return Answer.json(body, 405, {"allow": methods})
        return Answer.json({"code": "NOT_FOUND", "message": "there is no such path"}, 404)

    async def _proxied(self, request: Request) -> Answer | Passage:
        """What is in a sandbox, for whoever has its token, the key, or an address that was signed."""
        port = read_port(request.values["port"])
        signature = request.values.get("signature")
        if signature is None:
            self._check_token(request, port)
            request.segments = tuple(request.segments[4:])
        elif self._settings.is_signature(signature, request.values["id"], port, time.time()):
            request.segments = tuple(request.segments[5:])
        else:
            raise Refused("INVALID_SIGNATURE", "this address was not signed here, or its time is up", status=401)
        if port == EXECD_PORT:
            return await self._routed(self.execd, request)
        if port == EGRESS_PORT:
            return await self._routed(self.egress, request)
        taken = (5 if signature else 4) + (request.raw_path.lstrip(b"/").split(b"/")[0] == b"v1")
        return passage(self._through, request, port, taken)

    def _check_token(self, request: Request, port: int) -> None:
        token = request.headers.get(token_header(port).lower(), "")
        if not (token and self._settings.is_token(token, request.values["id"], port)):
            if not request.is_known and (not self._settings.api_key or request.headers.get(KEY_HEADER) is None):
                raise Refused("MISSING_TOKEN", "the token of the endpoint is missing, or it is another's", status=401)
            self._check_key(request)

    async def _health(self, _request: Request) -> Answer:
        return Answer.json({"status": "healthy"})

    async def _version(self, _request: Request) -> Answer:
        try:
            return Answer.json({"version": version("sandlot")})
        except PackageNotFoundError:
            return Answer.json({"version": "unknown"})

    async def _ping(self, request: Request) -> Answer:
        await self._host.get(request.values["id"])
        return Answer()


def _refused(request: Request, error: SandlotError) -> Answer:
    status, body = translate.refusal(error)
    if status >= 500 and not isinstance(error, Unavailable | Refused):
        _log.warning("%s %s: %s", request.method, request.path[:200], error)
    headers = {"retry-after": "1"} if isinstance(error, LimitReached | Unavailable) else {}
    return Answer.json(body, status, headers)
