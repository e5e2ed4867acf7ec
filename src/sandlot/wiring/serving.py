"""A server: an engine behind the procedures of the wire, behind the doors that its settings name."""

import asyncio
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sandlot import registry
from sandlot.config.addresses import Address
from sandlot.config.service import ServiceConfig, TlsFiles, has_keys
from sandlot.contracts import Host
from sandlot.model import WEBHOOKS_FOLDER, InvalidArgument, SandlotError
from sandlot.previews.book import Place as ShownAt
from sandlot.previews.book import PreviewBook
from sandlot.server import logs
from sandlot.server.crowd import Bounds
from sandlot.server.figures import Figures
from sandlot.server.front import Front
from sandlot.server.http import HttpServer
from sandlot.server.listening import bind, bound_address
from sandlot.server.origins import Origins
from sandlot.server.systemd import Notifier, inherited_sockets
from sandlot.server.tls import server_context
from sandlot.tenants.secret_files import read_secret
from sandlot.webhooks.sending import Webhooks, WebhookSettings
from sandlot.wiring.doors import Doors
from sandlot.wiring.holding import Holding
from sandlot.wiring.telling import WEBHOOK_SECRET, events_of

if TYPE_CHECKING:
    from sandlot.server.spans import Spans

_log = logging.getLogger("sandlot.server")
_OWN_FILES = 1024  # descriptors that are not for connections


@dataclass(frozen=True, slots=True)
class Place:
    socket: socket.socket
    address: Address

    inode: int = 0  # of a path that is ours to remove

    def close(self) -> None:
        path = Path(self.address.path)
        with suppress(OSError):
            if self.inode and path.stat().st_ino == self.inode:
                path.unlink()
        self.socket.close()

    def told(self, *, with_tls: bool) -> str:
        return str(self.address) if self.address.is_unix else f"http{'s' * with_tls}://{self.address}"


class Serving:
    """Made with all that can be wrong found out; nothing of the data directory is touched before `run`."""

    def __init__(self, config: ServiceConfig, environment: Mapping[str, str], pid: int, patience_s: float) -> None:
        """`patience_s`: for whoever has the data directory and does not answer. Raises InvalidArgument that names every
        place that cannot be had."""
        self.config = config
        self._patience_s = patience_s
        self._tls: ssl.SSLContext | None = None
        self._notifier = Notifier(environment)
        self._exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp")
        self._spans: Spans | None = None
        self.places: list[Place] = []
        self._stop = asyncio.Event()
        self._holding: Holding | None = None
        self._server: HttpServer | None = None
        self._front: Front | None = None
        self._doors: list[Doors] = []
        self._watching: list[asyncio.Task[None]] = []
        self._telling: asyncio.Future[None] | None = None
        try:
            self._prepare(inherited_sockets(environment, pid))
        except BaseException:  # raised again
            self._close_sockets()
            raise

    def _prepare(self, inherited: Sequence[socket.socket]) -> None:
        wrong: list[str] = []
        self.places = [Place(one, bound_address(one)) for one in inherited]
        for place in self.places:
            if not place.address.is_loopback and not has_keys(self.config.engine.data):
                wrong.append(f"{place.address}, which systemd listens on, can be reached from other machines")
        if self.config.tls is not None:
            try:
                self._tls = server_context(self.config.tls)
            except InvalidArgument as error:
                wrong.append(error.message)
        for address in () if inherited else self.config.listen:
            try:
                self.places.append(_take(address))
            except SandlotError as error:
                wrong.append(error.message)
        if self.config.tracing:
            try:
                self._spans = registry.load("server", "spans")(self._exporter)
            except SandlotError as error:
                wrong.append(str(error))
        if wrong:
            raise InvalidArgument("; ".join(wrong))

    def stop(self) -> None:
        """Leave, as soon as those who are there were answered. The second time: without them."""
        if self._stop.is_set() and self._server is not None:
            self._server.crowd.bounds.keep_alive_s = 0
            self._drop_soon()
        self._stop.set()

    def _drop_soon(self) -> None:
        assert self._server is not None
        for connection in tuple(self._server.crowd.state.connections):
            connection.transport.abort()

    async def run(self, ready: Callable[[], None]) -> None:
        """Until `stop`. `ready` is called when all doors are open. Raises what starting an engine raises."""
        self._holding = holding = Holding(self.config.engine, taken=self._exchange)
        try:
            host = await holding.open(self._patience_s)
            if holding.engine is None:
                _log.warning("another program has the data directory; it is used until it ends")
            await self._serve(host, ready)
        finally:
            self._close_sockets()
            if self._server is not None:
                await self._server.drop()
            for doors in self._doors:
                await doors.forget()
            await holding.close()
            if self._spans is not None:
                await asyncio.to_thread(self._spans.close)

    def _exchange(self, engine: Host) -> None:
        """What was asked of another program's engine is asked of this one from now on."""
        if self._front is not None:
            doors = self._open_doors(engine)
            self._front.exchange(doors.application, engine, doors.previews)
            self._tell_events(engine)
            _log.info("the engine of the data directory is here now")

    async def _serve(self, host: Host, ready: Callable[[], None]) -> None:
        config = self.config
        self._server = server = HttpServer(_bounds(config))
        figures = Figures(server.crowd) if config.metrics else None
        doors = self._open_doors(host)
        self._tell_events(host)
        self._front = front = Front(
            doors.application,
            host,
            Origins(config.allowed_hosts),
            figures,
            access_log=config.access_log,
            previews=doors.previews,
        )
        for place in self.places:
            if place.address.is_unix:
                server.open(place.socket, front.application(is_open=False))
            else:
                server.open(place.socket, front.application(is_open=True), tls=self._context)
        front.is_ready = True
        book = await self._show()
        told = ", ".join(place.told(with_tls=self._tls is not None) for place in self.places)
        self._notifier.ready(f"serving {told or config.engine.data}")
        ready()
        await self._stop.wait()
        if book is not None:
            await asyncio.to_thread(book.hide, _shown_at(config, self.places, self._tls is not None))
        for watching in self._watching:
            watching.cancel()
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        self._notifier.stopping()
        front.is_ready = False
        server.stop_listening()
        self._close_sockets()  # whoever comes now is refused at once, and need not wait to hear of it
        if left := await server.drain(self.config.drain_s):
            _log.warning("%d connections were cut off; what runs in sessions goes on", left)

    def _tell_events(self, host: Host) -> None:
        """To whoever the settings name; from another host from now on."""
        if self._telling is not None:
            self._telling.cancel()
        config, data = self.config, self.config.engine.data
        if config.webhooks:
            kinds = frozenset(config.webhook_events)
            settings = WebhookSettings(config.webhooks, kinds, config.webhook_networks)
            secret, heard = read_secret(data / WEBHOOK_SECRET), partial(events_of, host)
            webhooks = Webhooks(host, settings, secret, data / WEBHOOKS_FOLDER, heard)
            self._telling = asyncio.ensure_future(webhooks.run())

    async def _show(self) -> PreviewBook | None:
        """From now on ports of sessions have addresses."""
        place = _shown_at(self.config, self.places, self._tls is not None)
        if place is None:
            return None
        book = PreviewBook(self.config.engine.data)
        try:
            await asyncio.to_thread(book.show, place)
        except SandlotError as error:
            _log.error("ports of sessions have no addresses: %s", error)
            return None
        return book

    def _open_doors(self, host: Host) -> Doors:
        domain = self.config.preview_domain
        told = self._holding.tell_keys if self._holding is not None else lambda: None
        doors = Doors(host, self.config.engine.data, domain.name if domain else "", told)
        self._doors.append(doors)
        self._watching.append(asyncio.ensure_future(doors.watch()))
        return doors

    def _context(self) -> ssl.SSLContext | None:
        return self._tls

    def reload(self, config: ServiceConfig) -> Sequence[str]:
        """Certificates, bounds and the log as they are told now; which other settings would need a restart. Raises
        InvalidArgument; then all is as before."""
        tls = None if config.tls is None else server_context(config.tls)
        if (tls is None) is not (self._tls is None):
            raise InvalidArgument("TLS cannot be turned on or off while the server runs", next_step="restart it")
        self._notifier.reloading(int(time.monotonic() * 1_000_000))
        before, self.config, self._tls = self.config, config, tls
        if self._server is not None:
            self._server.crowd.bounds = _bounds(config)
        if self._front is not None:
            self._front.access_log = config.access_log
            self._front.origins = Origins(config.allowed_hosts)
        logs.configure(config.log_level, config.log_format)
        self._notifier.ready("serving, with new settings")
        fixed = ("engine", "listen", "metrics", "tracing", "webhooks", "webhook_events", "webhook_networks")
        fixed += ("preview_domain", "preview_public")
        return [name for name in fixed if getattr(before, name) != getattr(config, name)]

    def _close_sockets(self) -> None:
        for place in self.places:
            place.close()


def _take(address: Address) -> Place:
    """Raises Unavailable."""
    bound = bind(address)
    if address.is_unix:
        return Place(bound, address, Path(address.path).stat().st_ino)
    return Place(bound, bound_address(bound))


def _shown_at(config: ServiceConfig, places: Sequence[Place], with_tls: bool) -> ShownAt | None:
    """By the first address that is no path. None where there is none, and no domain that says how it is reached."""
    found = next((place.address for place in places if not place.address.is_unix), None)
    domain = config.preview_domain
    scheme = "https" if with_tls else "http"
    if found is None:
        if domain is None or not domain.scheme:
            return None
        return ShownAt("", domain.scheme, domain.name, domain.port, config.preview_public)
    host = config.engine.advertise_address if found.host in ("0.0.0.0", "::") else found.host
    api = f"{scheme}://{Address(host, found.port)}"
    if domain is None:
        return ShownAt(api, may_be_public=config.preview_public)
    port = domain.port if domain.scheme else domain.port or found.port
    return ShownAt(api, domain.scheme or scheme, domain.name, port, config.preview_public)


def _bounds(config: ServiceConfig) -> Bounds:
    return Bounds(_connections_max(config.connections_max), config.header_timeout_s, config.keep_alive_s)


def _connections_max(wanted: int) -> int:
    """As many as this process can have descriptors for. The engine needs some, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OWN_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft < needed:
        _log.warning("this process may open %d files: the server takes %d connections", soft, max(soft // 2, 1))
        return max(soft - _OWN_FILES, soft // 2, 1)
    return wanted


__all__ = ["Place", "Serving", "TlsFiles"]
