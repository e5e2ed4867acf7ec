"""The lifecycle API: sandboxes are sessions, and a snapshot, which outlives it, is a fork that stands still."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sandlot.contracts import Host
from sandlot.gateways.opensandbox import schema, translate
from sandlot.gateways.opensandbox.schema import Create, Reader, Refused
from sandlot.gateways.opensandbox.settings import GatewaySettings, token_header
from sandlot.gateways.web import Answer, Handler, Request, Route
from sandlot.model import (
    CallRequest,
    Conflict,
    ForkRequest,
    InvalidArgument,
    PauseRequest,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    VolumeSpec,
    limits,
    new_session_id,
)

ENTRYPOINT_CALL: Final = "opensandbox-entrypoint"
POINT: Final = "opensandbox"  # what a snapshot is called in the session that is kept for it
USER: Final = "root"  # as in their containers
_STATES: Final = {
    "pending": SessionState.CREATING,
    "running": SessionState.ACTIVE,
    "paused": SessionState.PAUSED,
    "stopping": SessionState.DESTROYING,
    "failed": SessionState.FAILED,
}


class Lifecycle:
    def __init__(self, host: Host, settings: GatewaySettings) -> None:
        self._host = host
        self._settings = settings

    def routes(self) -> list[Route]:
        one = "/sandboxes/{id}"
        return [
            Route("POST", "/sandboxes", self.create),
            Route("GET", "/sandboxes", self.list_sandboxes),
            Route("GET", one, self.get),
            Route("DELETE", one, self.delete),
            Route("POST", f"{one}/pause", self.pause),
            Route("POST", f"{one}/resume", self.resume),
            Route("POST", f"{one}/renew-expiration", self.renew),
            Route("GET", f"{one}/endpoints/{{port}}", self.endpoint),
            Route("POST", f"{one}/snapshots", self.create_snapshot),
            Route("GET", "/snapshots", self.list_snapshots),
            Route("GET", "/snapshots/{snapshot}", self.get_snapshot),
            Route("DELETE", "/snapshots/{snapshot}", self.delete_snapshot),
            Route("GET", f"{one}/diagnostics/logs", self.diagnostics("logs", ("container", "all"))),
            Route("GET", f"{one}/diagnostics/events", self.diagnostics("events", ("runtime", "all"))),
            Route("POST", "/metrics/events", self.metrics_event),
        ]

    async def create(self, request: Request) -> Answer:
        asked = schema.read_create(await request.document())
        session_id = new_session_id()
        spec = SessionSpec(
            session_id=session_id,
            template=self._template(asked),
            snapshot=f"{asked.snapshot_id}/{POINT}" if asked.snapshot_id else None,
            labels=translate.labels(asked),
            envs={**asked.envs, "OPENSANDBOX_ID": session_id},
            user=USER,
            resources=asked.resources,
            timeout_s=limits.SESSION_LIFETIME_S_MAX if asked.timeout_s is None else asked.timeout_s,
            mounts=asked.mounts,
        )
        for name in asked.volumes:
            await self._volume(name)
        info = await self._host.create(spec)
        if asked.entrypoint and asked.entrypoint != translate.KEEP_ALIVE:
            await self._begin(info.session_id, asked)
        return Answer.json(translate.sandbox(info), 202, {"location": f"/v1/sandboxes/{info.session_id}"})

    def _template(self, asked: Create) -> str:
        return asked.template_id or self._settings.template_of(asked.image)

    async def _volume(self, name: str) -> None:
        with suppress(Conflict):  # it is there, which is what was wanted
            await self._host.create_volume(VolumeSpec(name))

    async def _begin(self, session_id: str, asked: Create) -> None:
        """What a container would run. The sandbox lives on without it, and a command can be run beside it."""
        call = CallRequest(
            session_id,
            asked.entrypoint,
            cwd="/",
            user=USER,
            timeout_s=None,
            detach=True,
            call_id=ENTRYPOINT_CALL,
        )
        async with self._host.call(call) as stream:
            async for _started in stream:
                return

    async def get(self, request: Request) -> Answer:
        return Answer.json(translate.sandbox(await self._sandbox(request)))

    async def list_sandboxes(self, request: Request) -> Answer:
        number, size = schema.read_page(request.one("page", "1"), request.one("pageSize", "20"))
        states = [state.lower() for state in request.all("state")]
        query = SessionFilter(
            labels=schema.read_filter(request.all("metadata")),
            states=frozenset(_STATES[state] for state in states if state in _STATES),
        )
        if states and not query.states:
            return Answer.json(translate.page([], number, size))  # a state that none of ours is ever in
        found = [info for info in await self._all(query) if not translate.is_snapshot(info)]
        return Answer.json(translate.page([translate.sandbox(info) for info in found], number, size))

    async def delete(self, request: Request) -> Answer:
        await self._host.destroy((await self._sandbox(request)).session_id)
        return Answer(204)

    async def pause(self, request: Request) -> Answer:
        info = await self._sandbox(request)
        if info.state is not SessionState.ACTIVE:
            raise Conflict(f"the sandbox is {translate.sandbox(info)['status']['state']}, not Running")
        await self._host.pause(PauseRequest(info.session_id))
        return Answer(202)

    async def resume(self, request: Request) -> Answer:
        info = await self._sandbox(request)
        if info.state is not SessionState.PAUSED:
            raise Conflict(f"the sandbox is {translate.sandbox(info)['status']['state']}, not Paused")
        await self._host.resume(info.session_id)
        return Answer(202)

    async def renew(self, request: Request) -> Answer:
        body = Reader(await request.document())
        until = schema.read_moment(body.text("expiresAt", "expires_at"))
        info = await self._sandbox(request)
        if translate.ENDLESS in info.labels:
            raise Conflict("the sandbox has no end that could be moved")
        left = until - time.time()
        if not 0 < left <= limits.SESSION_LIFETIME_S_MAX:
            raise schema.parameter("expiresAt must be in the future, within a year")
        info = await self._host.extend(info.session_id, left)
        return Answer.json({"expiresAt": translate.moment(info.expires)})

    async def endpoint(self, request: Request) -> Answer:
        """Always behind this server: what a port says there, it says to whoever has the token."""
        port = schema.read_port(request.values["port"])
        if request.one("expires"):
            raise Refused("SANDBOX::SIGNED_ROUTE_NOT_SUPPORTED", "endpoints have tokens here, and no end of their own")
        info = await self._sandbox(request)
        address = self._settings.address or request.headers.get("host", "")
        where = f"{address}/v1/sandboxes/{info.session_id}/proxy/{port}"
        token = self._settings.token(info.session_id, port)
        return Answer.json({"endpoint": where, "headers": {token_header(port): token}})

    async def create_snapshot(self, request: Request) -> Answer:
        body = Reader(await request.document(empty={}) or {})
        name = body.text("name")
        if "name" in body.names() and not name:
            raise schema.parameter("name is empty")
        info = await self._sandbox(request)
        if info.state not in (SessionState.ACTIVE, SessionState.PAUSED):
            raise Refused("SNAPSHOT::INVALID_SOURCE_STATE", f"the sandbox is {info.state}", status=409)
        labels = {translate.OF_SANDBOX: info.session_id, **({translate.SNAPSHOT_NAME: name} if name else {})}
        fork = ForkRequest(info.session_id, labels=labels, timeout_s=limits.SESSION_LIFETIME_S_MAX)
        (kept,) = await self._host.fork(fork)
        try:
            await self._host.create_snapshot(SnapshotRequest(kept.session_id, POINT))
            await self._host.pause(PauseRequest(kept.session_id))
        except BaseException:  # whatever it was: what is not whole is no snapshot
            await self._host.destroy(kept.session_id)
            raise
        return Answer.json(translate.snapshot(kept), 202, {"location": f"/v1/snapshots/{kept.session_id}"})

    async def _snapshot(self, request: Request) -> SessionInfo:
        identity = request.values["snapshot"]
        with suppress(SessionNotFound, InvalidArgument):
            info = await self._host.get(identity)
            if translate.OF_SANDBOX in info.labels:
                return info
        raise Refused("SNAPSHOT::NOT_FOUND", f"there is no snapshot {identity[:80]}", status=404)

    async def list_snapshots(self, request: Request) -> Answer:
        number, size = schema.read_page(request.one("page", "1"), request.one("pageSize", "20"))
        wanted: dict[str, Callable[[dict[str, str]], bool]] = {
            "sandboxId": lambda told: told["sandboxId"] == request.one("sandboxId"),
            "name": lambda told: told.get("name") == request.one("name"),
            "state": lambda _told: "ready" in [state.lower() for state in request.all("state")],
        }
        asked = [test for name, test in wanted.items() if request.all(name)]
        told = [translate.snapshot(info) for info in await self._all(SessionFilter()) if translate.is_snapshot(info)]
        return Answer.json(translate.page([item for item in told if all(test(item) for test in asked)], number, size))

    async def get_snapshot(self, request: Request) -> Answer:
        return Answer.json(translate.snapshot(await self._snapshot(request)))

    async def delete_snapshot(self, request: Request) -> Answer:
        await self._host.destroy((await self._snapshot(request)).session_id)
        return Answer(204)

    async def _all(self, query: SessionFilter) -> list[SessionInfo]:
        """Newest first."""
        found: list[SessionInfo] = []
        while True:
            part = await self._host.list(replace(query, limit=limits.LIST_PAGE_MAX))
            found += part.sessions
            if part.next is None:
                return sorted(found, key=lambda info: info.created, reverse=True)
            query = replace(query, after=part.next)

    async def _sandbox(self, request: Request) -> SessionInfo:
        """One that is no snapshot: of those nobody knows here."""
        info = await self._host.get(request.values["id"])
        if translate.is_snapshot(info):
            raise SessionNotFound(f"there is no session {info.session_id}", session_id=info.session_id)
        return info

    def diagnostics(self, kind: str, scopes: tuple[str, ...]) -> Handler:
        async def tell(request: Request) -> Answer:
            scope = request.one("scope", scopes[0])
            if scope not in scopes:
                raise Refused("DIAGNOSTICS_SCOPE_UNSUPPORTED", f"scope must be one of {', '.join(scopes)}")
            info = await self._sandbox(request)
            content = await (self._logs(info) if kind == "logs" else self._events(info))
            if not request.all("scope"):
                return Answer.text(content)
            return Answer.json(
                {
                    "sandboxId": info.session_id,
                    "kind": kind,
                    "scope": scope,
                    "delivery": "inline",
                    "contentType": "text/plain",
                    "content": content,
                    "contentLength": len(content.encode()),
                    "truncated": False,
                }
            )

        return tell

    async def _logs(self, info: SessionInfo) -> str:
        """What is known of the commands that ran."""
        return "".join(
            f"{translate.moment(call.started)} {call.state} {' '.join(call.argv)[:200]}\n"
            for call in await self._host.calls(info.session_id)
        )

    async def _events(self, info: SessionInfo) -> str:
        return f"{translate.moment(info.created)} created\n{info.state} {info.reason}\n"

    async def metrics_event(self, request: Request) -> Answer:
        """Their client tells how long it waited; nobody here keeps that."""
        await request.body()
        return Answer(204)
