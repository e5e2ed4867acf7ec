"""The doors of a server, attacked from outside on every route that there is. A defence that is taken away lets the same
attack through, so that each of them is seen to hold."""

import asyncio
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path

import pytest

from sandlot.model import PreviewRequest, Scope, token_of_key
from sandlot.previews.book import PreviewBook
from sandlot.previews.forms import FORMS
from sandlot.previews.makings import Makings
from sandlot.previews.tokens import Grant, made_us
from sandlot.rpc.messages import PROCEDURES
from sandlot.server import logs
from sandlot.server.connections import Connection
from sandlot.server.origins import Origins
from sandlot.tenants import keys
from sandlot.tenants.names import Names
from tests.security.doorway import Doorway, doorway, parse
from tests.security.routes import PAGES, PORT, Route, everything, gateway, previews, procedures
from tests.security.timing import is_even, is_same
from tests.unit.rpc.raw_http import Answer

ROUTES = everything()
LIST = PROCEDURES["ListSessions"].path
CREATE = PROCEDURES["CreateSession"].path
FIGURES = re.compile(rb"[0-9][0-9.e+-]*")  # times, and what the machine is like


@pytest.fixture
async def door(tmp_path: Path) -> AsyncGenerator[Doorway]:
    async with doorway(tmp_path) as opened:
        yield opened


def test_the_tables_have_routes() -> None:
    assert len(procedures()) > 80
    assert len(gateway()) > 30
    assert len(previews()) == len(FORMS) > 2


# ---- 40: without a good key ----------------------------------------------------------------------------------------


def bad_keys(door: Doorway) -> list[dict[str, str]]:
    good = door.one
    return [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": good},
        {"authorization": f"Basic {good}"},
        {"authorization": f"Token {good}"},
        {"authorization": f"Bearer {good[:-1]}"},
        {"authorization": f"Bearer {good} {good}"},
        {"authorization": f"Bearer {good},{good}"},
        {"cookie": f"authorization=Bearer {good}; api_key={good}"},
        {"x-api-key": ""},
        {"x-forwarded-authorization": f"Bearer {good}"},
        {"x-original-authorization": f"Bearer {good}"},
        {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1", "forwarded": "for=127.0.0.1"},
        {"x-sandlot-trusted": "1", "sandlot.trusted": "1"},
        {"x-execd-access-token": "local.0000000000000000000000000000000000000000"},
        {"x-forwarded-for": "\xff", "authorization": "Bearer \xff"},
    ]


async def test_without_a_good_key_every_route_says_the_same(door: Doorway) -> None:
    """The ones that nobody serves included."""
    wrong = bad_keys(door)
    answers = [await door.visit(route, "secret", "", wrong[at % len(wrong)]) for at, route in enumerate(ROUTES)]
    answers += [await door.ask("GET", LIST, "", b"", headers) for headers in wrong]
    answers += [await door.ask("POST", f"{LIST}?{name}={door.one}", "") for name in ("api_key", "key", "access_token")]
    own = [answer for answer, route in zip(answers, ROUTES, strict=False) if route.has_own_origin]
    assert own
    assert {(one.status, one.body) for one in answers if one not in own} == {(401, answers[0].body)}
    assert len({one.body for one in own}) == 1
    for one in (answers[0], own[0]):  # of one shape, though a key is nothing to a preview
        assert (one.status, list(json.loads(one.body))) == (401, ["code", "message"])
        assert json.loads(one.body)["code"] == "unauthenticated"
        assert (one.headers["content-type"], one.headers["www-authenticate"]) == ("application/json", "Bearer")
    for method in ("OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"):
        assert (await door.ask(method, LIST)).status in (401, 400), method
    for page in PAGES[:2]:
        assert (await door.ask("GET", page)).status == 200
    assert door.one not in str(answers)


async def test_a_key_that_stands_there_twice_is_none(door: Doorway) -> None:
    """Whoever stands before us may have looked at the other one."""
    for name, value in (("authorization", f"Bearer {door.one}"), ("x-api-key", door.one)):
        for pair in ((value, value), (value, "Bearer x"), ("x", value)):
            lines = "".join(f"{name}: {one}\r\n" for one in pair)
            head = f"GET {LIST} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            assert parse(await door.raw(f"{head}{lines}\r\n".encode())).status == 401


def takes_its_time(store: keys.KeyStore, texts: Sequence[str]) -> bool:
    """The same for every kind of key, of ten thousand tries."""
    return is_even([lambda text=text: store.check(text) for text in texts], 10_000 // len(texts), 1.25)


def test_how_long_it_takes_says_nothing_of_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody has, one whose id is right, and one that is right but for its last character."""
    store = keys.KeyStore(tmp_path)
    made = store.create("k", "one", Scope.USE)
    secret = made.secret
    texts = [f"sl_{'0' * 12}_{'x' * 43}", f"sl_{made.info.key_id}_{'x' * 43}", f"{secret[:-1]}~"]
    token = token_of_key(secret, "work", time.time() + 600)
    tokens = [token.replace(made.info.key_id, "0" * 12), f"{token[:-1]}~", f"{token.rpartition('_')[0]}_{'0' * 64}"]
    for kind in (texts, tokens):
        assert takes_its_time(store, kind)

    def hasty(text: str) -> object:
        key_id = text.split("_")[1]
        return key_id in store._keys and keys._hashed(text)  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(store, "check", hasty)
    assert not takes_its_time(store, texts), "one that does not take its time is told"


# ---- 39: what another tenant has -------------------------------------------------------------------------------------


def _as_it_is(_self: object, session_id: str) -> str:
    return session_id


def _nothing(*_given: object) -> str:
    return ""


async def looked_for(door: Doorway, key: str, session_id: str) -> list[tuple[int, bytes]]:
    """What is made on the way is gone behind it: a tenant may well use an id that another one has."""
    before, told = set(await door.sessions()), list[tuple[int, bytes]]()
    for route in sorted(ROUTES, key=lambda route: route.path == CREATE):
        answer = await door.visit(route, session_id, key)
        told.append((answer.status, FIGURES.sub(b"0", answer.body)))
    for made in set(await door.sessions()) - before:
        assert made.startswith("tenant-two.")
        await door.host.destroy(made)
    return told


@pytest.mark.parametrize("session_id", ["hidden", "tenant-one.hidden"])
@pytest.mark.parametrize("is_token", [False, True], ids=["a key", "a token"])
async def test_what_another_tenant_has_is_as_unknown_as_what_nobody_has(
    tmp_path: Path, is_token: bool, session_id: str
) -> None:
    """On every route, in every byte; for a tenant, and for a token of one of its sessions."""
    told: list[list[tuple[int, bytes]]] = []
    for is_there in (True, False):
        async with doorway(tmp_path / str(is_there)) as door:
            assert await door.create("mine", door.two) == 200
            if is_there:
                assert await door.create("hidden", door.one) == 200
            before = await door.sessions()
            key = token_of_key(door.two, "mine", time.time() + 600) if is_token else door.two
            told.append(await looked_for(door, key, session_id))
            assert await door.sessions() == before
    assert told[0] == told[1]


async def test_a_token_of_a_port_is_none_of_another_tenants(
    tmp_path: Path, door: Doorway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every form, and with what every form takes."""
    for name, key in (("mine", door.two), ("hidden", door.one)):
        assert await door.create(name, key) == 200
    mine = await door.host.get("tenant-two.mine")
    token = (await PreviewBook(tmp_path).issue(mine, PreviewRequest(mine.session_id, PORT))).token
    shown = {"x-sandlot-preview-token": token, "cookie": f"sandlot_preview={token}"}

    async def told(session_id: str) -> list[tuple[int, bytes]]:
        answers = [await door.visit(route, session_id, "", shown) for route in previews()]
        return [(answer.status, answer.body) for answer in answers]

    assert {status for status, _ in await told(mine.session_id)} == {502}, "nobody listens there"
    hidden, nobodys = await told("tenant-one.hidden"), await told("tenant-one.nobody")
    assert hidden == nobodys
    assert {status for status, _ in hidden} == {401}

    async def of(*_given: object) -> int:
        return made_us(mine.created)

    def read(*_given: object) -> Grant:
        return Grant(made_us(mine.created), time.time() + 60)

    monkeypatch.setattr(PreviewBook, "read", read)
    monkeypatch.setattr(Makings, "of", of)
    assert {status for status, _ in await told("tenant-one.hidden")} == {502}, "without its defence"


async def test_without_its_defence_another_tenant_is_seen(door: Doorway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Names, "inward_id", _as_it_is)
    assert await door.create("hidden", door.operator) == 200
    get = next(route for route in procedures() if route.path.endswith("/GetSession"))
    assert (await door.visit(get, "hidden", door.two)).status == 200


LOOKS = [
    route
    for route in ROUTES
    if "SESSION" in route.path or route.form is not None or (route.is_procedure and "Create" not in route.path)
]
TIME_RATIO = 1.6


async def told_apart_by_time(door: Doorway, routes: Sequence[Route]) -> list[Route]:
    """Those whose answer takes another time for a session that another tenant has than for one that nobody has."""
    found: list[Route] = []
    for route in routes:
        hidden, nobodys = (partial(door.visit, route, name, door.two) for name in ("hidden-one", "nobody-one"))
        if not await is_same(hidden, nobodys, TIME_RATIO):
            found.append(route)
    return found


async def test_time_says_nothing_of_another_tenant(door: Doorway) -> None:
    """On each route that names a session; streams are over as soon as there is none."""
    assert len(LOOKS) > 100
    assert await door.create("hidden-one", door.one) == 200
    assert await told_apart_by_time(door, LOOKS) == []


async def test_time_tells_when_others_are_looked_for(door: Doorway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five milliseconds are enough, on a single route."""
    assert await door.create("hidden-one", door.one) == 200
    inward_id = Names.inward_id

    def looking(self: Names, session_id: str) -> str:
        if session_id.startswith("hidden"):
            time.sleep(0.005)
        return inward_id(self, session_id)

    monkeypatch.setattr(Names, "inward_id", looking)
    get = next(route for route in LOOKS if route.path.endswith("/GetSession"))
    assert await told_apart_by_time(door, [get]) == [get]


# ---- 41: what is over ------------------------------------------------------------------------------------------------


async def test_a_token_is_worth_nothing_when_its_session_is_gone(door: Doorway) -> None:
    assert await door.create("work", door.one) == 200
    token = token_of_key(door.one, "work", time.time() + 600)
    get = next(route for route in procedures() if route.path.endswith("/GetSession"))
    assert (await door.visit(get, "work", token)).status == 200
    await door.host.destroy("tenant-one.work")
    assert (await door.visit(get, "work", token)).status == 404
    door.keys.revoke("one")
    assert (await door.visit(get, "work", token)).status == 401


# ---- 42: requests in requests ----------------------------------------------------------------------------------------


def smuggled(door: Doorway) -> dict[str, bytes]:
    """Each has a request in it that would make a session, for whoever reads it in another way."""
    body = b'{"sessionId": "smuggled"}'
    hidden = (
        f"POST {CREATE} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {door.one}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode() + body
    head = f"POST {LIST} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {door.one}\r\n".encode()
    head += b"content-type: application/json\r\n"
    size = b"content-length: %d\r\n" % len(hidden)
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)
    return {
        "two lengths": head + b"content-length: 2\r\n" + size + b"\r\n{}" + hidden,
        "a length and chunks": head + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
        "chunks that are hidden": head + size + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
        "chunks of another kind": head + b"transfer-encoding: xchunked\r\n" + size + b"\r\n" + chunk,
        "chunks and more": head + b"transfer-encoding: chunked, identity\r\n\r\n" + chunk,
        "chunks twice": head + b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n" + chunk,
        "a folded header": head + b"x: y\r\n content-length: 0\r\n" + size + b"\r\n" + hidden,
        "a length with a sign": head + size.replace(b": ", b": +") + b"\r\n" + hidden,
        "two names": head + b"host: other\r\n" + size + b"\r\n" + hidden,
        "a chunk with a sign": head + b"transfer-encoding: chunked\r\n\r\n" + b"+" + chunk,
        "a chunk in another base": head + b"transfer-encoding: chunked\r\n\r\n0x" + chunk,
        "a line that ends early": head + size + b"x: a\rb\r\n\r\n" + hidden,
        "nothing in a header": head + size + b"x: a\0b\r\n\r\n" + hidden,
        "a version that has no chunks": head.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n" + chunk,
        "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + hidden,
        "an upgrade with a body": head + b"connection: upgrade\r\nupgrade: h2c\r\n" + size + b"\r\n" + hidden,
    }


SMUGGLED = tuple(smuggled(Doorway(0, *[None] * 7)))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", SMUGGLED)
async def test_a_request_in_a_request_is_none(door: Doorway, name: str) -> None:
    data = smuggled(door)[name]
    told = await door.raw(data)
    assert await door.sessions() == []
    assert told.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")), told[:200]
    assert told.count(b"HTTP/1.1 ") == 1, "and nobody reads on"


async def test_what_would_be_smuggled_works_by_itself(door: Doorway) -> None:
    """Or the test before would say nothing."""
    data = smuggled(door)["two names"]
    await door.raw(data[data.index(b"POST", 4) :])
    assert await door.sessions() == ["tenant-one.smuggled"]


async def test_without_its_defence_two_names_are_read(door: Doorway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser stands before the other attacks; what it lets pass is ours to refuse."""
    monkeypatch.setattr(Connection, "_check_one_reading", _nothing)
    told = parse(await door.raw(smuggled(door)["two names"].replace(b"host: o", b"connection: close\r\nhost: o", 1)))
    assert "host" not in told.body.decode()


async def test_headers_of_others_change_nothing(door: Doorway) -> None:
    assert await door.create("work", door.one) == 200
    spoofed = {"x-forwarded-host": "evil.example", "x-forwarded-proto": "https", "x-forwarded-prefix": "/evil"}
    spoofed |= {"forwarded": "host=evil.example", "x-original-url": "/healthz", "x-http-method-override": "DELETE"}
    for route in gateway():
        if "endpoints" in route.path or route.path.endswith("/sandboxes/SESSION"):
            answers = [await door.visit(route, "work", door.one, headers) for headers in ({}, spoofed)]
            assert b"evil" not in answers[1].body
            if route.method == "GET":
                assert answers[0].status == answers[1].status
    assert (await door.ask("GET", "/no/such", headers={"x-original-url": "/healthz"})).status == 401


# ---- 45: what is no request ------------------------------------------------------------------------------------------

NONSENSE = (
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff\xfe\0",
    b'{"a":' + b"[" * 100_000,
    b'{"a": NaN, "a": 1e999}',
    b'{"command": 1, "path": ["x"], "timeout": "x", "metadata": 7, "image": []}',
    b"--x\r\ncontent-disposition: form-data; name=metadata\r\n\r\n{",
)


async def test_nothing_that_a_gateway_is_sent_is_a_defect(door: Doorway, caplog: pytest.LogCaptureFixture) -> None:
    assert await door.create("work", door.one) == 200
    kinds = ("application/json", "text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded")
    for route in gateway():
        for at, body in enumerate(NONSENSE):
            kind = kinds[at % len(kinds)]
            answer = await door.ask(route.method, route.of("work"), door.one, body, {"content-type": kind})
            assert b"Traceback" not in answer.body
            assert answer.status != 500, (route, body[:40], answer.body[:200])
        if "work" not in str(await door.sessions()):
            assert await door.create("work", door.one) == 200
    assert not [one for one in caplog.records if "should not" in one.getMessage()]


# ---- 46: pages in browsers -------------------------------------------------------------------------------------------

PAGES_OF_OTHERS: tuple[dict[str, str], ...] = (
    {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example:8700"},
    {"host": "localhost.evil.example"},
    {"host": "evil.example@127.0.0.1"},
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site", "content-type": "text/plain"},
)


@pytest.mark.parametrize("has_keys", [False, True], ids=["without keys", "with keys"])
async def test_a_page_of_others_reaches_no_route(tmp_path: Path, has_keys: bool) -> None:
    """DNS rebinding, forged requests, and nothing for them to read: also with a key that is good."""
    async with doorway(tmp_path, has_keys=has_keys) as door:
        for at, route in enumerate([*ROUTES, *(Route("GET", page) for page in PAGES)]):
            page = PAGES_OF_OTHERS[at % len(PAGES_OF_OTHERS)]
            answer = await door.visit(route, "secret", door.one, page)
            if route.has_own_origin and "host" not in page:
                assert answer.status == 401  # it is a page of others itself, and nobody's without a token
                check_nothing_for_pages(answer)
            else:
                check_closed(answer)
        for page in PAGES_OF_OTHERS:
            check_closed(await door.ask("POST", CREATE, door.one, b"{}", {"content-type": "application/json", **page}))
        assert await door.sessions() == []


def check_closed(answer: Answer) -> None:
    assert answer.status == 403, answer
    check_nothing_for_pages(answer)


def check_nothing_for_pages(answer: Answer) -> None:
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert "set-cookie" not in answer.headers


async def test_no_answer_lets_a_page_of_others_read_it(door: Doorway) -> None:
    """No CORS, with or without a question before it, and no cookie that a browser would send along."""
    assert await door.create("work", door.one) == 200
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for route in ROUTES:
        check_nothing_for_pages(await door.visit(route, "nobody", door.one))
        own = {"origin": f"http://127.0.0.1:{door.port}", "sec-fetch-site": "same-origin"}
        check_nothing_for_pages(await door.ask("OPTIONS", route.of("work"), door.one, b"", {**own, **asking}))


async def test_without_its_defence_a_page_makes_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Origins, "fault", _nothing)
    async with doorway(tmp_path, has_keys=False) as door:
        kind = {"content-type": "application/json"}
        for page in PAGES_OF_OTHERS:
            await door.ask("POST", CREATE, "", b"{}", {**kind, **page})
        assert len(await door.sessions()) > 5


# ---- 47: text that wants to be something else ------------------------------------------------------------------------

EVIL = "a\r\nset-cookie: evil=1\r\n\r\n<b>\"'\u2028\x1b[31m\0"


async def test_text_stays_text(door: Doorway) -> None:
    """In labels and names it comes back as it was, and makes no header."""
    kind = {"content-type": "application/json"}
    told = EVIL.replace("\0", "")
    body = json.dumps({"sessionId": "work", "labels": {told: told}}).encode()
    made = await door.ask("POST", CREATE, door.one, body, kind)
    assert made.status == 200
    assert json.loads(made.body)["labels"] == {told: told}
    answers = [made]
    for route in gateway():
        strange = {"x-request-id": "a\tb", "x-evil": "%0d%0aset-cookie: x"}
        answers.append(await door.visit(route, "work", door.one, strange))
        answers.append(await door.ask(route.method, route.of("%0d%0aset-cookie:%20evil=1"), door.one, b"{}", kind))
    for answer in answers:
        assert "set-cookie" not in answer.headers
        assert all(char >= " " for value in answer.headers.values() for char in value)


async def lines_of_log(door: Doorway, folder: Path) -> list[str]:
    """What a server writes while it is asked for names with lines in them."""
    file = folder / "log"
    with file.open("w") as stream:
        handler = logs.configure("debug", "text", stream)
        try:
            for route in gateway():
                path = route.of("x%0a2026-01-01%2000:00:00.000%20info%20%20%20%20forged%1b[31m%0dforged")
                await door.ask(route.method, path, door.one, b"{}", {"content-type": "application/json"})
            logging.getLogger("sandlot.server").warning("of %s", "x\n2026-01-01 00:00:00.000 info    forged\rforged")
        finally:
            logging.getLogger().removeHandler(handler)
    return file.read_text().splitlines()


async def test_nobody_writes_lines_into_the_log(door: Doorway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger()
    before = logger.handlers, logger.level
    try:
        lines = await lines_of_log(door, tmp_path)
        assert any("forged" in line for line in lines)
        assert not [line for line in lines if line.startswith(("2026-01-01", "forged")) or "\x1b" in line]
        monkeypatch.setattr(logs, "one_line", str)
        lines = await lines_of_log(door, tmp_path)
        assert [line for line in lines if line.startswith("2026-01-01")], "without its defence"
    finally:
        logger.handlers, logger.level = before


# ---- 48: at once -----------------------------------------------------------------------------------------------------


async def test_of_many_who_make_the_same_session_one_does(door: Doorway) -> None:
    statuses = await asyncio.gather(*(door.create("same", door.one) for _ in range(20)))
    assert sorted(statuses) == [200] + [409] * 19
    assert await door.sessions() == ["tenant-one.same"]
