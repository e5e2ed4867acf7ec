"""Events on their way: in their order, each until it is taken. What waits is in the journal, so nothing grows here."""

import asyncio
import hashlib
import json
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sandlot.config.webhooks import Network, WebhookUrl
from sandlot.contracts import Events
from sandlot.model import Event, EventFilter, EventKind, InvalidArgument, SandlotError, Unavailable, limits
from sandlot.webhooks import signing
from sandlot.webhooks.offsets import Offset
from sandlot.webhooks.posting import post

_log = logging.getLogger("sandlot.webhooks")
_TURN_S = 1.0  # between two looks whether another program has left an address to us


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    urls: tuple[WebhookUrl, ...]
    kinds: frozenset[EventKind] = frozenset()  # empty: all of them
    networks: tuple[Network, ...] = ()  # that may be reached although private


class Webhooks:
    """`folder` keeps how far each address was told. `of_tenant`: what a tenant hears, in the names that it has."""

    def __init__(
        self,
        host: Events,
        settings: WebhookSettings,
        secret: bytes,
        folder: Path,
        of_tenant: Callable[[str], Events] | None = None,
    ) -> None:
        self._host = host
        self._settings = settings
        self._secret = secret
        self._folder = folder
        self._of_tenant = of_tenant

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for url in self._settings.urls:
                group.create_task(self._tell(url), name=f"webhook {url}")

    async def _tell(self, url: WebhookUrl) -> None:
        offset = Offset(self._folder, url.text)
        failures = 0
        try:
            while True:
                try:
                    while not offset.hold():  # noqa: ASYNC110 - another process has it
                        await asyncio.sleep(_TURN_S)
                    await self._follow(url, offset, self._heard_by(url))
                except (SandlotError, OSError) as error:
                    _log.warning("events for %s have to wait: %s", url, error)
                failures += 1
                await asyncio.sleep(_pause_s(failures))
        finally:
            offset.release()

    def _heard_by(self, url: WebhookUrl) -> Events:
        if not url.tenant:
            return self._host
        if self._of_tenant is None:
            raise InvalidArgument("this host has no tenants")
        return self._of_tenant(url.tenant)

    async def _follow(self, url: WebhookUrl, offset: Offset, heard: Events) -> None:
        after = offset.read()
        if after is None:
            after = await self._newest()
            offset.write(after)
        secret = signing.secret_of(self._secret, url.tenant)
        try:
            async with heard.events(EventFilter(after, follow=True)) as events:
                async for event in events:
                    if not self._settings.kinds or event.kind in self._settings.kinds:
                        await self._deliver(url, event, secret)
                    offset.write(event.offset)
        except InvalidArgument as error:
            _log.warning("%s is told from now on, because the events are others than before: %s", url, error)
            offset.write(await self._newest())

    async def _newest(self) -> int:
        """What was before an address was named is not told to it."""
        newest = 0
        async with self._host.events(EventFilter()) as events:
            async for event in events:
                newest = event.offset
        return newest

    async def _deliver(self, url: WebhookUrl, event: Event, secret: bytes) -> None:
        """Again and again, until it is taken."""
        body = json.dumps(document(event)).encode()
        source = hashlib.sha256(secret).hexdigest()[:12]  # ids of two data directories are not the same
        failures = 0
        while True:
            headers = signing.headers(secret, f"{source}-{event.offset}", int(time.time()), body)
            try:
                status = await post(url, headers, body, self._settings.networks)
                if 200 <= status < 300:
                    break
                raise Unavailable(f"{url} answers {status}")
            except SandlotError as error:
                failures += 1
                if failures == 1:
                    _log.warning("event %d is told again until it is taken: %s", event.offset, error)
            await asyncio.sleep(_pause_s(failures))
        if failures:
            _log.info("event %d was taken by %s after %d failures", event.offset, url, failures)


def document(event: Event) -> dict[str, object]:
    kind = event.kind.replace(" ", "_")
    return {
        "type": f"session.{kind}" if event.session_id else kind,
        "timestamp": datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds"),
        "data": {
            "offset": event.offset,
            "session_id": event.session_id,
            "kind": str(event.kind),
            "detail": event.detail,
        },
    }


def _pause_s(failures: int) -> float:
    """Longer each time, and not the same for all who wait."""
    longest = min(limits.WEBHOOK_PAUSE_S * 2 ** min(failures - 1, 20), limits.WEBHOOK_PAUSE_S_MAX)
    return longest * random.uniform(0.8, 1.0)
