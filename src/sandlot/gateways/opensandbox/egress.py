"""The egress endpoint of a sandbox. Here nothing leads out, so the policy is to deny everything, and says so."""

from typing import Any

from sandlot.contracts import Host
from sandlot.gateways.opensandbox.schema import Reader, Refused, read_policy
from sandlot.gateways.web import Answer, Request, Route

_NO_WAY_OUT = "this server gives sandboxes no way out yet: nothing can be allowed"


class Egress:
    def __init__(self, host: Host) -> None:
        self._host = host

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/policy", self.get),
            Route("POST", "/policy", self.put),
            Route("PUT", "/policy", self.put),
            Route("PATCH", "/policy", self.patch),
            Route("DELETE", "/policy", self.remove),
            Route("GET", "/healthz", self.healthz),
        ]

    def lifecycle_routes(self) -> list[Route]:
        """The same behind the key, for sandboxes that were made from a template."""
        verbs = {"GET": self.get, "PUT": self.put, "PATCH": self.patch, "DELETE": self.remove}
        return [Route(verb, "/sandboxes/{id}/networkpolicy", handler) for verb, handler in verbs.items()]

    async def _told(self, request: Request, *, whole: bool) -> Answer:
        await self._host.get(request.values["id"])
        told: dict[str, Any] = {"status": "ok", "mode": "deny_all", "enforcementMode": "namespace"}
        if whole:
            told["policy"] = {"defaultAction": "deny", "egress": []}
        return Answer.json(told)

    async def get(self, request: Request) -> Answer:
        return await self._told(request, whole=True)

    async def put(self, request: Request) -> Answer:
        found = await request.document(empty={})
        action, allowed = read_policy(Reader(found or {}, "policy"))
        if action == "allow" or allowed:
            raise Refused("NOT_SUPPORTED", _NO_WAY_OUT, status=400)
        return await self._told(request, whole=True)

    async def patch(self, request: Request) -> Answer:
        rules = await request.document()
        _action, allowed = read_policy(Reader({"egress": rules}))
        if not rules or allowed:
            raise Refused("NOT_SUPPORTED", _NO_WAY_OUT if allowed else "there is no rule", status=400)
        return await self._told(request, whole=False)

    async def remove(self, request: Request) -> Answer:
        Reader({"targets": await request.document()}).texts("targets")
        return await self._told(request, whole=False)

    async def healthz(self, request: Request) -> Answer:
        await self._host.get(request.values["id"])
        return Answer.text("ok")
