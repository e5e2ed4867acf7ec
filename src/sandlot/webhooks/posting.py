"""One POST: to an address that was looked at, without following anybody, and with an end to every wait."""

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

from sandlot.config.webhooks import Network, WebhookUrl
from sandlot.model import Unavailable, limits
from sandlot.webhooks.addresses import resolve

_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: |\r|$)")


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


async def post(url: WebhookUrl, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network]) -> int:
    """The status of the answer. Raises PermissionDenied, Unavailable."""
    target = await resolve(url.host, url.port, allowed)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(limits.WEBHOOK_ANSWER_S):
            reader, writer = await asyncio.open_connection(
                target.address,
                target.port,
                family=target.family,
                limit=limits.HEADER_BYTES_MAX,
                ssl=_context() if url.is_tls else None,
                server_hostname=url.host if url.is_tls else None,
            )
            writer.write(_head(url, headers, len(body)) + body)
            await writer.drain()
            line = await reader.readline()
    except (OSError, TimeoutError, ValueError, ssl.SSLError) as error:
        raise Unavailable(f"{url} does not take it: {error or type(error).__name__}") from error
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError, ssl.SSLError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()
    match = _STATUS.match(line)
    if match is None:
        raise Unavailable(f"{url} does not speak HTTP")
    return int(match[1])


def _head(url: WebhookUrl, headers: Mapping[str, str], length: int) -> bytes:
    own = {
        "host": url.authority,
        "user-agent": "sandlot",
        "content-type": "application/json",
        "content-length": str(length),
        "connection": "close",
    }
    lines = [f"POST {url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in {**own, **headers}.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
