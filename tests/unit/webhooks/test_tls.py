"""Whoever is told by TLS shows a certificate that is known, of the name that he is called by."""

import ipaddress
import socket
import ssl
from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot.config.webhooks import parse_url
from sandlot.model import Unavailable
from sandlot.webhooks import posting
from sandlot.webhooks.addresses import Target
from tests.serving import certificate
from tests.unit.webhooks.receiving import receiving

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Certificates; that of `known` is the only one which this machine knows."""
    for name in ("known", "stranger"):
        certificate(tmp_path, name)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "known.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    posting._context.cache_clear()  # pyright: ignore[reportPrivateUsage] - other certificates count
    yield tmp_path
    posting._context.cache_clear()  # pyright: ignore[reportPrivateUsage] - other certificates count


def shown(folder: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context


async def post(port: int, host: str = "localhost") -> int:
    return await posting.post(parse_url(f"https://{host}:{port}/hook"), {"x": "y"}, b"{}", LOOPBACK)


async def test_a_receiver_that_is_known_is_told(folder: Path) -> None:
    async with receiving(tls=shown(folder, "known")) as receiver:
        for host in ("localhost", "127.0.0.1"):
            assert await post(receiver.port, host) == 204
    assert [told.body for told in receiver.told] == [b"{}"] * 2


@pytest.mark.parametrize(("name", "host"), [("stranger", "localhost"), ("known", "other.test")])
async def test_a_stranger_and_one_of_another_name_are_told_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, host: str
) -> None:
    async def here(_host: str, port: int, _allowed: object) -> Target:
        return Target(socket.AF_INET, "127.0.0.1", port)

    monkeypatch.setattr(posting, "resolve", here)
    async with receiving(tls=shown(folder, name)) as receiver:
        with pytest.raises(Unavailable, match="certificate"):
            await post(receiver.port, host)
    assert receiver.told == []


async def test_whoever_speaks_no_tls_is_told_nothing(folder: Path) -> None:
    async with receiving() as receiver:
        with pytest.raises(Unavailable):
            await post(receiver.port)
    assert receiver.told == []
