"""What is theirs and not ours: asked for, it says why. `COMPATIBILITY.md` has each of these."""

from collections.abc import Mapping
from typing import Final

from sandlot.gateways.opensandbox.schema import Refused
from sandlot.gateways.web import Answer, Handler, Request, Route

_POOLS: Final = "there are no pools: sandboxes start warm by themselves"
_ISOLATED: Final = (
    "there are no sandboxes in a sandbox: its walls let nothing inside make others. "
    "Make another sandbox: it costs milliseconds"
)
_VAULT: Final = "there is no vault of credentials here, and no way out of a sandbox that would need one"
_VAULT_PATHS: Final = ("", "/credentials", "/credentials/{name}", "/bindings", "/bindings/{name}")

LIFECYCLE: Final[Mapping[tuple[str, str], str]] = {
    ("POST", "/templates"): "templates are made with `sandlot template`",
    ("POST", "/pools"): _POOLS,
    ("GET", "/pools"): _POOLS,
    ("GET", "/pools/{pool}"): _POOLS,
    ("PUT", "/pools/{pool}"): _POOLS,
    ("DELETE", "/pools/{pool}"): _POOLS,
}
EXECD: Final[Mapping[tuple[str, str], str]] = {("*", "/v1/isolated/{rest...}"): _ISOLATED}
EGRESS: Final[Mapping[tuple[str, str], str]] = {("*", f"/credential-vault{path}"): _VAULT for path in _VAULT_PATHS}


def refusals(reasons: Mapping[tuple[str, str], str]) -> list[Route]:
    return [Route(method, pattern, _refusing(reason)) for (method, pattern), reason in reasons.items()]


def _refusing(reason: str) -> Handler:
    async def refuse(_request: Request) -> Answer:
        raise Refused("NOT_SUPPORTED", reason, status=501)

    return refuse
