"""Templates of a host in memory: there is the built-in one, and nothing is made."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sandlot.model import (
    CapabilityNotSupported,
    TemplateEvent,
    TemplateInfo,
    TemplateNotFound,
    TemplateRequest,
    check_template,
    limits,
)


class FakeTemplates:
    async def list_templates(self) -> Sequence[TemplateInfo]:
        return []

    async def get_template(self, name: str) -> TemplateInfo:
        raise _no_template(name)

    @asynccontextmanager
    async def make_template(self, request: TemplateRequest) -> AsyncGenerator[AsyncIterator[TemplateEvent]]:
        raise CapabilityNotSupported(f"the fake makes no template {request.name}", next_step="use a real host")
        yield  # unreachable: it makes this a generator

    async def tag_template(self, name: str, new_name: str) -> TemplateInfo:
        check_template(new_name)
        raise _no_template(name)

    async def remove_template(self, name: str) -> TemplateInfo:
        raise _no_template(name)

    async def warm_template(self, name: str, count: int) -> TemplateInfo:
        limits.within("count", count, 0, limits.WARM_MAX)
        raise _no_template(name)

    async def prune_templates(self, budget_bytes: int) -> Sequence[TemplateInfo]:
        limits.within("budget_bytes", budget_bytes, 0, limits.BYTES_MAX)
        return []


def _no_template(name: str) -> TemplateNotFound:
    check_template(name)
    return TemplateNotFound(f"there is no template {name}", next_step="list them")
