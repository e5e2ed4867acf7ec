"""Where a webhook may lead: not into the network that the server stands in, whatever its name resolves to.

What was looked at is what is connected to: a name that answers differently the second time wins nothing."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from sandlot.config.webhooks import Network
from sandlot.model import PermissionDenied, Unavailable, limits

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # the last four bytes are an address of version 4


@dataclass(frozen=True, slots=True)
class Target:
    family: int
    address: str
    port: int


async def resolve(host: str, port: int, allowed: Sequence[Network]) -> Target:
    """Raises PermissionDenied when any of its addresses may not be reached, Unavailable when it has none."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limits.WEBHOOK_RESOLVE_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        raise Unavailable(f"{host} has no address: {error}") from error
    for _family, _type, _proto, _name, place in found:
        if not may_be_reached(str(place[0]), allowed):
            raise PermissionDenied(
                f"{host} leads to {place[0]}, which is not of the public network",
                next_step="allow its network with SANDLOT_WEBHOOK_NETWORKS, if it is meant",
            )
    if not found:
        raise Unavailable(f"{host} has no address")
    family, _type, _proto, _name, place = found[0]
    return Target(family, str(place[0]), port)


def may_be_reached(text: str, allowed: Sequence[Network]) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # with a zone: of one link alone
        return False
    inner = _inner(address)
    if any(one in network for one in {address, inner} for network in allowed if network.version == one.version):
        return True
    return inner.is_global and not inner.is_multicast and not inner.is_reserved and not _is_tunnel(address)


def _inner(address: Address) -> Address:
    """The same, or the address of version 4 that it stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return (
        ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else address.ipv4_mapped or address
    )


def _is_tunnel(address: Address) -> bool:
    """Nobody needs these any more, and what they lead to is anybody's guess."""
    return isinstance(address, ipaddress.IPv6Address) and bool(address.sixtofour or address.teredo)
