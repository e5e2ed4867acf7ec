"""Every route of a server, out of the tables that serve them: a new one is attacked without being named."""

from dataclasses import dataclass
from typing import cast

from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
from sandlot.gateways.opensandbox import GatewaySettings, OpenSandboxGateway
from sandlot.gateways.opensandbox.settings import EGRESS_PORT, EXECD_PORT
from sandlot.gateways.web import Router
from sandlot.previews.addresses import PreviewAddress
from sandlot.previews.forms import FORMS, Form
from sandlot.rpc.messages import PROCEDURES

UNKNOWN = (
    "/",
    "/no/such",
    "/v1",
    "/v1/",
    "/v1/no/such",
    "/sandlot.v1.SessionService/Nothing",
    "/..%2f..%2fetc",
)
PORTS = {"execd": EXECD_PORT, "egress": EGRESS_PORT}
DOMAIN = "preview.localhost"
PORT = 3000
PAGES = ("/healthz", "/readyz", "/metrics")  # they need no key where only this machine can ask


@dataclass(frozen=True)
class Route:
    method: str
    path: str  # with `SESSION` where an id of one stands
    is_procedure: bool = False
    is_stream: bool = False
    form: Form | None = None  # of a preview

    def of(self, session_id: str) -> str:
        return self.path.replace("SESSION", session_id)

    def headers(self, session_id: str) -> dict[str, str]:
        if self.form is None:
            return {}
        written = self.form.write(PreviewAddress(session_id, PORT), DOMAIN)[1]
        return {name.decode(): value.decode() for name, value in written}

    @property
    def has_own_origin(self) -> bool:
        return self.form is not None and self.form.has_own_origin


def procedures() -> list[Route]:
    return [Route("POST", one.path, True, one.takes_stream or one.gives_stream) for one in PROCEDURES.values()]


def gateway() -> list[Route]:
    """Of each table that the gateway has."""
    gateway = OpenSandboxGateway(cast("Host", FakeHost()), GatewaySettings(b"x"))
    found: list[Route] = []
    for name, router in vars(gateway).items():
        if isinstance(router, Router) and name != "open":
            below = f"/sandboxes/SESSION/proxy/{PORTS[name]}" if name in PORTS else ""
            found += [_route(route.method, f"/v1{below}{route.pattern}") for route in router.routes]
    return found


def _route(method: str, pattern: str) -> Route:
    path = pattern.replace("{id}", "SESSION").replace("...}", "}").replace("{", "").replace("}", "")
    return Route("GET" if method == "*" else method, path)


def previews() -> list[Route]:
    """Of each form in which a port can be named."""
    paths = [(form.write(PreviewAddress("SESSION", PORT), DOMAIN)[0].decode(), form) for form in FORMS]
    return [Route("GET", path, form=form) for path, form in paths]


def everything() -> list[Route]:
    return [*procedures(), *gateway(), *previews(), *(Route("GET", path) for path in UNKNOWN)]
