"""Events are told in their order, until they are taken, signed, and to nobody inside."""

import asyncio
import base64
import ipaddress
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandlot.config.webhooks import Network, parse_kind, parse_url
from sandlot.fakes.host import FakeHost
from sandlot.model import EventFilter, EventKind, InvalidArgument, PermissionDenied, SessionSpec, Unavailable, limits
from sandlot.webhooks import signing
from sandlot.webhooks.addresses import may_be_reached, resolve
from sandlot.webhooks.posting import post
from sandlot.webhooks.sending import Webhooks, WebhookSettings
from tests.unit.webhooks.receiving import Receiver, Told, receiving, well
from tests.waiting import until

SECRET = bytes(range(32))
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_PAUSE_S", 0.01)
    monkeypatch.setattr(limits, "WEBHOOK_PAUSE_S_MAX", 0.05)


@asynccontextmanager
async def telling(
    host: FakeHost,
    receiver: Receiver,
    folder: Path,
    kinds: frozenset[EventKind] = frozenset(),
    networks: tuple[Network, ...] = LOOPBACK,
) -> AsyncGenerator[None]:
    settings = WebhookSettings((parse_url(receiver.url),), kinds, networks)
    task = asyncio.ensure_future(Webhooks(host, settings, SECRET, folder).run())
    try:
        assert await until(lambda: any(path.suffix == "" for path in folder.glob("*")))
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def happened(host: FakeHost) -> list[int]:
    async with host.events(EventFilter()) as events:
        return [event.offset async for event in events]


async def test_what_happens_from_now_on_is_told_once_and_in_order(tmp_path: Path) -> None:
    host = FakeHost()
    await host.create(SessionSpec("before"))
    before = len(await happened(host))
    async with receiving() as receiver, telling(host, receiver, tmp_path):
        for number in range(5):
            await host.create(SessionSpec(f"s{number}"))
        wanted = (await happened(host))[before:]
        assert await until(lambda: len(receiver.told) >= len(wanted))
        assert receiver.offsets() == wanted
        first = receiver.told[0]
        assert (first.path, first.document["type"]) == ("/hook?key=of-mine", "session.created")
        assert first.document["data"]["session_id"] == "s0"


async def test_who_has_the_secret_can_verify_it(tmp_path: Path) -> None:
    host = FakeHost()
    async with receiving() as receiver, telling(host, receiver, tmp_path):
        await host.create(SessionSpec("s"))
        assert await until(lambda: len(receiver.told) > 1)
    for one in receiver.told:
        message_id, moment = one.headers["webhook-id"], int(one.headers["webhook-timestamp"])
        wanted = signing.headers(SECRET, message_id, moment, one.body)["webhook-signature"]
        assert one.headers["webhook-signature"] == wanted
        assert signing.headers(SECRET, message_id, moment, one.body + b" ")["webhook-signature"] != wanted
    assert len({one.headers["webhook-id"] for one in receiver.told}) == len(receiver.told)


def test_the_signature_is_that_of_the_standard() -> None:
    """The example of its documents."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    assert signing.told_secret(secret) == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    found = signing.headers(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_an_event_that_is_not_taken_is_told_again_and_nothing_overtakes_it(tmp_path: Path) -> None:
    host, failures = FakeHost(), iter(range(6))

    def refuse_at_first(_told: Told) -> bytes:
        number = next(failures, None)
        wrong = [b"HTTP/1.1 500 No\r\n\r\n", b"", b"nonsense\r\n", b"HTTP/1.1 404 \r\n\r\n"]
        return well(_told) if number is None else wrong[number % len(wrong)]

    async with receiving(refuse_at_first) as receiver, telling(host, receiver, tmp_path):
        await host.create(SessionSpec("s"))
        wanted = await happened(host)
        assert await until(lambda: receiver.offsets()[-1:] == wanted[-1:])
    assert receiver.offsets() == [wanted[0]] * 7 + wanted[1:]
    ids = [one.headers["webhook-id"] for one in receiver.told]
    assert len(set(ids)) == len(wanted), "told again it has the same id"


async def test_nobody_is_followed(tmp_path: Path) -> None:
    """An answer that leads elsewhere is a failure."""
    host = FakeHost()
    async with receiving() as elsewhere:
        place = f"http://127.0.0.1:{elsewhere.port}/".encode()

        def lead(_told: Told) -> bytes:
            return b"HTTP/1.1 307 Go\r\nlocation: " + place + b"\r\n\r\n"

        async with receiving(lead) as receiver, telling(host, receiver, tmp_path):
            await host.create(SessionSpec("s"))
            assert await until(lambda: len(receiver.told) > 3)
        assert elsewhere.told == []


async def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """What happened meanwhile is told; what was told is not told again, unless it was not kept."""
    host = FakeHost()
    async with receiving() as receiver:
        async with telling(host, receiver, tmp_path):
            await host.create(SessionSpec("one"))
            assert await until(lambda: len(receiver.told) == 2)
            (kept,) = [path for path in tmp_path.iterdir() if path.suffix == ""]
            assert await until(lambda: kept.read_text() == str(receiver.offsets()[-1]))
        await host.create(SessionSpec("two"))
        async with telling(host, receiver, tmp_path):
            assert await until(lambda: len(receiver.told) == 4)
        assert receiver.offsets() == await happened(host)
        kept.write_text(str(receiver.offsets()[1]))
        async with telling(host, receiver, tmp_path):
            assert await until(lambda: len(receiver.told) == 6)
        assert receiver.offsets()[4:] == receiver.offsets()[2:4], "at least once"


async def test_an_address_is_told_by_one_program_alone(tmp_path: Path) -> None:
    host = FakeHost()
    async with receiving() as receiver, telling(host, receiver, tmp_path), telling(host, receiver, tmp_path):
        await host.create(SessionSpec("s"))
        assert await until(lambda: len(receiver.told) >= 2)
        await asyncio.sleep(0.3)
        assert receiver.offsets() == await happened(host)


async def test_only_what_is_wanted_is_told(tmp_path: Path) -> None:
    host = FakeHost()
    async with receiving() as receiver, telling(host, receiver, tmp_path, kinds=frozenset({parse_kind("destroyed")})):
        await host.create(SessionSpec("s"))
        await host.destroy("s")
        assert await until(lambda: bool(receiver.told))
    assert [one.document["data"]["kind"] for one in receiver.told] == ["destroyed"]


async def test_another_data_directory_is_told_from_now_on(tmp_path: Path) -> None:
    host = FakeHost()
    await host.create(SessionSpec("before"))
    async with receiving() as receiver:
        async with telling(host, receiver, tmp_path):
            pass
        (kept,) = [path for path in tmp_path.iterdir() if path.suffix == ""]
        kept.write_text("999999999")
        async with telling(host, receiver, tmp_path):
            assert await until(lambda: kept.read_text() != "999999999")
            await host.create(SessionSpec("s"))
            assert await until(lambda: len(receiver.told) == 2)
        assert receiver.told[0].document["data"]["session_id"] == "s"


# ---- where it may lead -------------------------------------------------------------------------------------------

INSIDE = [
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("255.255.255.255", "224.0.0.1", "239.255.255.250", "192.0.2.1", "198.18.0.1", "240.0.0.1", "192.0.0.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"),
    *("2002:7f00:1::", "2002:a00:1::1", "64:ff9b:1::1", "nonsense"),
]


@pytest.mark.parametrize("text", INSIDE)
def test_what_is_inside_is_not_reached(text: str) -> None:
    assert not may_be_reached(text, ())


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_what_is_public_is(text: str) -> None:
    assert may_be_reached(text, ())


def test_what_the_operator_allows_is_reached_and_no_more() -> None:
    allowed = (ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/64"))
    assert may_be_reached("10.1.2.3", allowed)
    assert may_be_reached("::ffff:10.1.2.3", allowed)
    assert may_be_reached("fd00::5", allowed)
    assert not may_be_reached("10.2.0.1", allowed)
    assert not may_be_reached("169.254.169.254", allowed)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "::1"])
async def test_a_name_is_judged_by_what_it_leads_to(host: str) -> None:
    with pytest.raises((PermissionDenied, Unavailable)):
        await resolve(host, 80, ())


def answers(monkeypatch: pytest.MonkeyPatch, *turns: list[str]) -> list[str]:
    """A resolver that says something else each time."""
    asked: list[str] = []
    genuine = asyncio.BaseEventLoop.getaddrinfo

    async def getaddrinfo(self: Any, host: Any, port: Any, **more: Any) -> Any:
        if host != "rebind.test":
            return await genuine(self, host, port, **more)
        asked.append(host)
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in turns[min(len(asked), len(turns)) - 1]
        ]

    for kind in type(asyncio.get_event_loop()).__mro__:
        if "getaddrinfo" in vars(kind):
            monkeypatch.setattr(kind, "getaddrinfo", getaddrinfo)
            break
    return asked


async def test_a_name_that_leads_inside_later_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once: what was judged is what is connected to."""
    asked = answers(monkeypatch, ["127.0.0.1"], ["127.0.0.2"])
    async with receiving() as receiver:
        url = parse_url(f"http://rebind.test:{receiver.port}/")
        assert await post(url, {}, b"{}", (ipaddress.ip_network("127.0.0.1/32"),)) == 204
        assert asked == ["rebind.test"]
        assert receiver.told[0].headers["host"] == f"rebind.test:{receiver.port}"
        with pytest.raises(PermissionDenied):
            await post(url, {}, b"{}", (ipaddress.ip_network("127.0.0.1/32"),))
        assert len(receiver.told) == 1


async def test_one_address_that_is_inside_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, ["8.8.8.8", "127.0.0.1"])
    with pytest.raises(PermissionDenied, match=r"127\.0\.0\.1"):
        await resolve("rebind.test", 80, ())


async def test_who_is_inside_hears_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    host = FakeHost()
    async with receiving() as receiver, telling(host, receiver, tmp_path, networks=()):
        await host.create(SessionSpec("s"))
        assert await until(lambda: "not of the public network" in caplog.text)
        assert receiver.told == []
    assert "key=of-mine" not in caplog.text, "a path may be a secret"


async def test_a_receiver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = parse_url(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        with pytest.raises(Unavailable):
            await post(url, {}, b"{}", LOOPBACK)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "ftp://x/", "http://", "http:///x", "http://a b/", "http://x/\r\nhost: y", "http://u:p@x/"),
        *("http://x:0/", "http://x:99999/", "http://x/é", "http://[::1", "http://x_y/", "https://x/" + "a" * 2000),
    ],
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_url(text)


def test_kinds_have_the_names_of_events() -> None:
    assert parse_kind("rolled_back") is EventKind.ROLLED_BACK
    with pytest.raises(InvalidArgument):
        parse_kind("x")
