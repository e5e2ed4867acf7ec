"""The lifecycle API: sandboxes are sessions, and a snapshot, which outlives it, is a fork that stands still."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from sandlot.contracts import Host
from sandlot.gateways.opensandbox import schema, translate
from sandlot.gateways.opensandbox.commands import content_of, so_far
from sandlot.gateways.opensandbox.schema import Create, Reader, Refused
from sandlot.gateways.opensandbox.settings import GatewaySettings, token_header
from sandlot.gateways.web import Answer, Handler, Request, Route
from sandlot.model import (
    CallRequest,
    CallState,
    Conflict,
    EventFilter,
    ForkRequest,
    InvalidArgument,
    PauseRequest,
    RelabelRequest,
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
INTERPRETER: Final = "/opt/code-interpreter/code-interpreter.sh"
STAND_IN: Final = """
import os, socket
s = socket.create_server(("127.0.0.1", int(os.environ.get("JUPYTER_PORT") or 44771)))
while True:
    s.accept()[0].close()
"""
LOGS_BYTES_MAX: Final = 256 << 10  # of what an entrypoint printed
EVENTS_TOLD_MAX: Final = 1000
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
            Route("PATCH", f"{one}/metadata", self.patch_metadata),
            Route("GET", f"{one}/endpoints/{{port}}", self.endpoint),
            Route("POST", f"{one}/snapshots", self.create_snapshot),
            Route("GET", "/snapshots", self.list_snapshots),
            Route("GET", "/snapshots/{snapshot}", self.get_snapshot),
            Route("DELETE", "/snapshots/{snapshot}", self.delete_snapshot),
            Route("GET", f"{one}/diagnostics/logs", self.diagnostics("logs", ("container", "all"))),
            Route("GET", f"{one}/diagnostics/events", self.diagnostics("events", ("runtime", "all"))),
            Route("GET", f"{one}/diagnostics/inspect", self.inspect),
            Route("GET", f"{one}/diagnostics/summary", self.summary),
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
            _entrypoint(asked.entrypoint),
            cwd="/",
            envs={"STAND_IN": STAND_IN} if asked.entrypoint[0] == INTERPRETER else {},
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

    async def patch_metadata(self, request: Request) -> Answer:
        """A text sets, null takes away. Two at once are both done."""
        changes = Reader(await request.document()).changes()
        schema.check_metadata({key: value for key, value in changes.items() if value is not None})
        schema.check_keys(changes)
        info = await self._sandbox(request)
        if changes:
            given = {key: value for key, value in changes.items() if value is not None}
            removed = tuple(key for key, value in changes.items() if value is None)
            info = await self._host.relabel(RelabelRequest(info.session_id, given, removed))
        return Answer.json(translate.sandbox(info))

    async def endpoint(self, request: Request) -> Answer:
        """Always behind this server: what a port says there, it says to whoever has the token."""
        port = schema.read_port(request.values["port"])
        expires = schema.read_expires(request)
        info = await self._sandbox(request)
        address = self._settings.address or request.headers.get("host", "")
        where = f"{address}/v1/sandboxes/{info.session_id}"
        if expires is not None:
            return Answer.json({"endpoint": f"{where}/signed/{self._sign(info, port, expires)}/{port}"})
        where += f"/proxy/{port}"
        token = self._settings.token(info.session_id, port)
        return Answer.json({"endpoint": where, "headers": {token_header(port): token}})

    def _sign(self, info: SessionInfo, port: int, expires: int) -> str:
        if not time.time() < expires <= time.time() + limits.SESSION_LIFETIME_S_MAX:
            raise schema.parameter("expires must be in the future, within a year")
        return self._settings.signature(info.session_id, port, expires)

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
        """The commands that ran, and what its entrypoint has printed."""
        calls = await self._host.calls(info.session_id)
        told = [f"{translate.moment(call.started)} {call.state} {content_of(call)[:200]}\n" for call in calls]
        for call in calls:
            if call.call_id == ENTRYPOINT_CALL:
                async with self._host.attach(info.session_id, call.call_id) as stream:
                    printed = bytearray()
                    async for piece in so_far(stream, call.state is CallState.RUNNING):
                        printed += piece
                        if len(printed) >= LOGS_BYTES_MAX:
                            break
                told.append(printed[:LOGS_BYTES_MAX].decode(errors="replace"))
        return "".join(told)

    async def _events(self, info: SessionInfo) -> str:
        """What has happened to it, as the host keeps it."""
        lines: list[str] = []
        async with self._host.events(EventFilter(session_id=info.session_id)) as events:
            async for event in events:
                lines.append(f"{translate.moment(event.at)} {event.kind} {event.detail}".rstrip() + "\n")
        return "".join(lines[-EVENTS_TOLD_MAX:])

    async def inspect(self, request: Request) -> Answer:
        return Answer.text(_described(await self._sandbox(request)))

    async def summary(self, request: Request) -> Answer:
        info = await self._sandbox(request)
        parts = {"inspect": _described(info), "events": await self._events(info), "logs": await self._logs(info)}
        return Answer.text("\n".join(f"== {name} ==\n{text}" for name, text in parts.items()))

    async def metrics_event(self, request: Request) -> Answer:
        """Their client tells how long it waited; nobody here keeps that."""
        await request.body()
        return Answer(204)


def _described(info: SessionInfo) -> str:
    told = translate.sandbox(info)
    lines = {
        "id": info.session_id,
        "state": told["status"]["state"],
        "reason": info.reason,
        "created": told["createdAt"],
        "template": info.template,
        "storage": info.storage,
        "runtime": info.runtime,
        "entrypoint": " ".join(told["entrypoint"])[:200],
    }
    limited = {name: getattr(info.resources, name) for name in info.resources.asked()}
    return "".join(f"{name}: {value}\n" for name, value in {**lines, **limited}.items())


def _entrypoint(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Their interpreter of code begins with a script of its image, and its client waits for what that listens at. Code
    is run by the host here: where the script is not there, something listens and says nothing."""
    if argv[0] != INTERPRETER:
        return argv
    return ("/bin/sh", "-c", 'if [ -x "$0" ]; then exec "$0" "$@"; fi; exec python3 -c "$STAND_IN"', *argv)
