"""What has happened to sandboxes."""

from collections.abc import AsyncGenerator

from sandlot.model import Event, EventFilter
from sandlot.sdk.client import Client


async def events_of(client: Client, request: EventFilter) -> AsyncGenerator[Event]:
    async with (await client.host()).events(request) as events:
        async for event in events:
            yield event
