"""Their templates are golden images that a cluster builds; ours are there when they are made, and are told as built."""

from typing import Any, Final

from sandlot.contracts import Host
from sandlot.gateways.opensandbox import schema, translate
from sandlot.gateways.opensandbox.schema import Refused
from sandlot.gateways.web import Answer, Request, Route
from sandlot.model import TemplateInfo, TemplateNotFound

_HERE: Final = "sandlot:local"  # where it is published: nowhere else


class Templates:
    def __init__(self, host: Host) -> None:
        self._host = host

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/templates", self.list_templates),
            Route("GET", "/templates/{template}", self.get),
            Route("DELETE", "/templates/{template}", self.delete),
        ]

    async def list_templates(self, request: Request) -> Answer:
        number, size = schema.read_page(request.one("page", "1"), request.one("pageSize", "20"))
        wanted = schema.read_filter(request.all("metadata"))
        every = reversed(await self._host.list_templates())
        found = [_told(info) for info in every if wanted.items() <= info.labels.items()]
        return Answer.json(translate.page(found, number, size))

    async def get(self, request: Request) -> Answer:
        return Answer.json(_told(await self._find(request)))

    async def delete(self, request: Request) -> Answer:
        await self._find(request)
        await self._host.remove_template(request.values["template"])
        return Answer(204)

    async def _find(self, request: Request) -> TemplateInfo:
        name = request.values["template"]
        try:
            return await self._host.get_template(name)
        except TemplateNotFound as error:
            raise Refused("TEMPLATE::NOT_FOUND", f"there is no template {name[:80]}", status=404) from error


def _told(info: TemplateInfo) -> dict[str, Any]:
    """By the name that sandboxes are made with."""
    told: dict[str, Any] = {
        "templateId": info.names[0] if info.names else info.digest,
        "image": info.names[0] if info.names else info.digest,
        "publish": _HERE,
        "format": "native",
        "status": {"phase": "Succeeded"},
        "createdAt": translate.moment(info.created),
        "updatedAt": translate.moment(info.created),
        "metadata": dict(info.labels),
        "env": dict(info.envs),
    }
    if entrypoint := [*info.entrypoint, *info.command]:
        told["entrypoint"] = entrypoint
    return told
