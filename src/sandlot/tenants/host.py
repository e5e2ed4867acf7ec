"""A host as one tenant has it: with the verbs of the waist, and with nothing of anybody else in it."""

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from sandlot.contracts import Host
from sandlot.model import (
    NO_LIMITS,
    Event,
    EventFilter,
    Health,
    PermissionDenied,
    SandlotError,
    Scope,
    SessionFilter,
    SessionInfo,
    SessionPage,
    limits,
)
from sandlot.tenants.names import Names
from sandlot.tenants.room import Room
from sandlot.tenants.rules import READS, RULES, Rule

_ONE_SESSION = "this token is for one session"


class TenantHost:
    """Given the host, whose it is to be, and what the key that asks is good for."""

    def __init__(self, host: Host, tenant: str, scope: Scope, room: Room, only: str = "") -> None:
        """`only`: of one session of his."""
        self._host = host
        self._names = Names(tenant, only)
        self._scope = scope
        self._room = room
        self._only = only

    def __getattr__(self, verb: str) -> Any:
        """Made when it is first asked for, and kept."""
        rule = RULES.get(verb)
        if rule is None or rule is Rule.OWN:
            raise AttributeError(verb)
        made = self._verb(verb, rule)
        setattr(self, verb, made)
        return made

    def _verb(self, verb: str, rule: Rule) -> Callable[..., Any]:
        if rule is Rule.OF_TENANT and self._only:
            return self._refusing(verb, _ONE_SESSION)
        if rule is Rule.OPERATOR:
            return self._refusing(verb, f"{verb} is for the operator of the host")
        if verb not in READS and not self._scope.holds(Scope.USE):
            return self._refusing(verb, "this key may look, and change nothing")
        behind = getattr(self._host, verb)
        inward = _as_they_are if rule is Rule.OPEN else self._inward
        if _is_awaited(verb):
            return self._awaited(behind, inward)
        return self._entered(behind, inward)

    def _refusing(self, verb: str, why: str) -> Callable[..., Any]:
        async def refuse(*_given: object, **_named: object) -> None:
            raise PermissionDenied(why, next_step="ask whoever has the key for it")

        @asynccontextmanager
        async def refuse_entering(*_given: object, **_named: object) -> AsyncGenerator[None]:
            await refuse()
            yield

        return refuse if _is_awaited(verb) else refuse_entering

    def _inward(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The session stands first: an id, or a request that has it."""
        if "session_id" in named:
            return given, {**named, "session_id": self._names.inward_id(named["session_id"])}
        if not given:
            (name, value), *_rest = named.items()
            return given, {**named, name: self._one_inward(value)}
        return (self._one_inward(given[0]), *given[1:]), named

    def _one_inward(self, value: Any) -> Any:
        return self._names.inward_id(value) if isinstance(value, str) else self._names.inward(value)

    def _awaited(self, behind: Callable[..., Any], inward: "_Inward") -> Callable[..., Any]:
        async def ask(*given: Any, **named: Any) -> Any:
            with _Plain(self._names):
                given, named = inward(given, named)
                return self._names.outward(await behind(*given, **named))

        return ask

    def _entered(self, behind: Callable[..., Any], inward: "_Inward") -> Callable[..., Any]:
        @asynccontextmanager
        async def enter(*given: Any, **named: Any) -> AsyncGenerator[Any]:
            with _Plain(self._names):
                given, named = inward(given, named)
                async with behind(*given, **named) as stream:
                    yield _Stream(stream, self._names)

        return enter

    # ---- verbs of their own ------------------------------------------------------------------------------------

    def _check_tenant(self) -> None:
        if self._only:
            raise PermissionDenied(_ONE_SESSION, next_step="ask whoever has the key")

    def _check_use(self) -> None:
        self._check_tenant()
        if not self._scope.holds(Scope.USE):
            raise PermissionDenied("this key may look, and change nothing", next_step="ask whoever has the key for it")

    async def _own(self, query: SessionFilter) -> list[SessionInfo]:
        found: list[SessionInfo] = []
        query = replace(query, limit=limits.LIST_PAGE_MAX, after=None)
        while True:
            page = await self._host.list(query)
            found += [info for info in page.sessions if self._names.owns(info.session_id)]
            if page.next is None:
                return found
            query = replace(query, after=page.next)

    async def _all_own(self) -> list[SessionInfo]:
        return await self._own(SessionFilter())

    async def create(self, spec: Any) -> Any:
        self._check_use()
        with _Plain(self._names):
            inward = self._names.inward(spec)

            async def make() -> Any:
                async with self._room.taken(self._all_own, spec.resources):
                    return self._names.outward(await self._host.create(replace(inward, queue_timeout_s=0.0)))

            return await self._room.queue.within(spec.queue_timeout_s, make)

    async def import_session(self, request: Any, content: Any) -> Any:
        """What it may use stands in the file, so that is looked at when it is there."""
        self._check_use()
        with _Plain(self._names):
            if not self._room.is_bounded:
                return self._names.outward(await self._host.import_session(self._names.inward(request), content))
            async with self._room.taken(self._all_own, None):
                made = await self._host.import_session(self._names.inward(request), content)
                try:
                    self._room.check(await self._all_own(), NO_LIMITS, 0)
                except SandlotError:
                    await self._host.destroy(made.session_id)
                    raise
                return self._names.outward(made)

    async def fork(self, request: Any) -> Any:
        """The new ones stay in the family of the id, which is the tenant's."""
        self._check_use()
        with _Plain(self._names):
            inward = self._names.inward(request)
            parent = await self._host.get(inward.session_id)
            async with self._room.taken(self._all_own, parent.resources, request.count):
                return self._names.outward(list(await self._host.fork(inward)))

    async def list(self, query: SessionFilter) -> SessionPage:
        with _Plain(self._names):
            found = [self._names.outward(info) for info in await self._own(query)]
        begin = next((at + 1 for at, info in enumerate(found) if info.session_id == query.after), 0)
        page = found[begin : begin + query.limit]
        more = begin + query.limit < len(found)
        return SessionPage(tuple(page), page[-1].session_id if more and page else None)

    async def health(self) -> Health:
        """How the host is, and how much of it is theirs."""
        health = await self._host.health()
        own = await self._own(SessionFilter())
        return replace(health, session_count=len(own), active_calls=0, reasons=(), errors=())

    @asynccontextmanager
    async def events(self, request: EventFilter) -> AsyncGenerator[AsyncIterator[Event]]:
        async def told(source: AsyncIterator[Event]) -> AsyncIterator[Event]:
            async for event in source:
                if self._names.owns(event.session_id) or not event.session_id:
                    yield self._names.outward(event)

        with _Plain(self._names):
            async with self._host.events(self._names.inward(request)) as source:
                yield told(source)

    async def get_volume(self, name: str) -> Any:
        self._check_tenant()
        with _Plain(self._names):
            return self._names.outward(await self._host.get_volume(self._names.inward_volume(name)))

    async def remove_volume(self, name: str) -> None:
        self._check_use()
        with _Plain(self._names):
            await self._host.remove_volume(self._names.inward_volume(name))

    async def list_volumes(self) -> Any:
        self._check_tenant()
        found = await self._host.list_volumes()
        return [self._names.outward(volume) for volume in found if self._names.owns(volume.name)]

    async def all_metrics(self) -> Any:
        host: Any = self._host
        found = await host.all_metrics()
        return [self._names.outward(one) for one in found if one.session_id and self._names.owns(one.session_id)]


_Inward = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _as_they_are(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return given, named


def _is_awaited(verb: str) -> bool:
    return inspect.iscoroutinefunction(getattr(Host, verb, None))


class _Plain:
    """Errors leave without the names that only the host has."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, SandlotError):
            raise self._names.outward_error(error) from None


class _Stream:
    """A stream of the host, with what it gives and says in the tenant's names."""

    def __init__(self, stream: Any, names: Names) -> None:
        self._stream = stream
        self._names = names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        if not inspect.iscoroutinefunction(found):
            return found if callable(found) else self._names.outward(found)

        async def ask(*given: Any, **named: Any) -> Any:
            with _Plain(self._names):
                return self._names.outward(await found(*given, **named))

        return ask

    async def __aiter__(self) -> AsyncIterator[Any]:
        with _Plain(self._names):
            async for item in self._stream:
                yield self._names.outward(item)


def as_host(host: TenantHost) -> Host:
    return cast("Host", host)
