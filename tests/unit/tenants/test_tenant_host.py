"""Two tenants on one host, and neither sees the other: through every verb of the waist."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
from sandlot.host.admission import Queue
from sandlot.model import (
    CallRequest,
    EventFilter,
    FileRead,
    FileWrite,
    ForkRequest,
    InvalidArgument,
    MaxSessionsReached,
    Mount,
    NotFound,
    PermissionDenied,
    SandlotError,
    Scope,
    SessionFilter,
    SessionNotFound,
    SessionSpec,
    SnapshotRequest,
    TenantLimits,
    VolumeSpec,
)
from sandlot.tenants.host import TenantHost, as_host
from sandlot.tenants.room import Room
from sandlot.tenants.rules import RULES, Rule

VERBS = [name for name, _ in inspect.getmembers(Host, callable) if not name.startswith("_")]


class Two:
    def __init__(self) -> None:
        self.fake = FakeHost()
        self.limits = TenantLimits()
        self.rooms = {tenant: Room(tenant, lambda: self.limits, Queue()) for tenant in ("", "a", "b")}
        self.a, self.b = self.host("a"), self.host("b")

    def host(self, tenant: str, scope: Scope = Scope.USE, only: str = "") -> Host:
        return as_host(TenantHost(cast("Host", self.fake), tenant, scope, self.rooms[tenant], only))


@pytest.fixture
def two() -> Two:
    return Two()


def test_every_verb_has_a_rule() -> None:
    assert set(VERBS) <= set(RULES)
    for verb, rule in RULES.items():
        assert (rule is Rule.OWN) is (verb in vars(TenantHost)), verb


async def test_a_session_has_its_own_name_for_its_tenant(two: Two) -> None:
    mine, other = await two.a.create(SessionSpec("work")), await two.b.create(SessionSpec("work"))
    assert (mine.session_id, other.session_id) == ("work", "work"), "an id that another has is free"
    assert (await two.a.get("work")).created == mine.created != other.created
    made = await two.a.create(SessionSpec())
    assert made.session_id.startswith("s-")
    assert [info.session_id for info in (await two.b.list(SessionFilter())).sessions] == ["work"]
    assert len((await two.fake.list(SessionFilter())).sessions) == 3
    await two.a.destroy("work")
    assert (await two.b.get("work")).session_id == "work"


async def test_another_tenants_session_is_as_unknown_as_none(two: Two) -> None:
    await two.a.create(SessionSpec("secret"))

    async def told(session_id: str) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        for ask in (
            two.b.get(session_id),
            two.b.destroy(session_id),
            two.b.create_snapshot(SnapshotRequest(session_id, "x")),
            two.b.fork(ForkRequest(session_id)),
            two.b.create(SessionSpec(snapshot=f"{session_id}/x")),
        ):
            with pytest.raises(NotFound) as error:
                await cast("Any", ask)
            found.append(
                (
                    error.value.code,
                    str(error.value).replace(session_id, "ID"),
                    str(error.value.context).replace(session_id, "ID"),
                )
            )
        for enter in (two.b.call(CallRequest(session_id, ("true",))), two.b.read_file(FileRead(session_id, "/x"))):
            with pytest.raises(SessionNotFound) as error:
                async with enter:
                    pass
            found.append((error.value.code, str(error.value).replace(session_id, "ID"), ""))
        return found

    assert await told("secret") == await told("nobody")
    for sneaky in ("tenant-a.secret", "a.secret", "../tenant-a.secret", "tenant-a"):
        with pytest.raises(SandlotError):
            await two.b.get(sneaky)


async def test_names_of_the_host_never_leave(two: Two) -> None:
    await two.a.create(SessionSpec("work"))
    with pytest.raises(SandlotError) as error:
        await two.a.create(SessionSpec("work"))
    assert "tenant-" not in str(error.value) + str(error.value.context)
    (child,) = await two.a.fork(ForkRequest("work"))
    assert child.origin is not None
    assert "tenant-" not in repr(child)
    assert (await two.a.get(child.session_id)).session_id == child.session_id
    async with two.a.events(EventFilter()) as events:
        told = [event async for event in events]
    assert told
    assert "tenant-" not in repr(told)
    async with two.b.events(EventFilter()) as events:
        assert [event async for event in events] == []


async def test_calls_and_files_are_those_of_the_session(two: Two) -> None:
    for host, text in ((two.a, b"a"), (two.b, b"b")):
        await host.create(SessionSpec("work"))

        async def content(data: bytes = text) -> AsyncIterator[bytes]:
            yield data

        await host.write_file(FileWrite("work", "/workspace/f"), content())
    async with two.a.read_file(FileRead("work", "/workspace/f")) as stream:
        assert stream.info.path == "/workspace/f"
        assert b"".join([piece async for piece in stream]) == b"a"
    async with two.a.call(CallRequest("work", ("echo", "x"))) as call:
        assert (await call.result()).exit_code == 0
    (record,) = await two.a.calls("work")
    assert record.session_id == "work"
    assert await two.b.calls("work") == []


async def test_lists_have_pages(two: Two) -> None:
    for number in range(5):
        await two.a.create(SessionSpec(f"s{number}"))
        await two.b.create(SessionSpec(f"s{number}"))
    found: list[str] = []
    after: str | None = None
    while True:
        page = await two.a.list(SessionFilter(limit=2, after=after))
        found += [info.session_id for info in page.sessions]
        if (after := page.next) is None:
            break
    assert found == [f"s{number}" for number in range(5)]


async def test_a_key_that_may_look_changes_nothing(two: Two) -> None:
    await two.a.create(SessionSpec("work"))
    looking = two.host("a", Scope.READ)
    assert (await looking.get("work")).session_id == "work"
    assert len((await looking.list(SessionFilter())).sessions) == 1
    for refused in (
        looking.create(SessionSpec("x")),
        looking.destroy("work"),
        looking.pause(cast("Any", None)),
        looking.fork(ForkRequest("work")),
        looking.remove_volume("v"),
    ):
        with pytest.raises(PermissionDenied):
            await cast("Any", refused)
    with pytest.raises(PermissionDenied):
        async with looking.call(CallRequest("work", ("true",))):
            pass


async def test_what_is_the_operators_is_refused(two: Two) -> None:
    for verb in [verb for verb, rule in RULES.items() if rule is Rule.OPERATOR and verb in VERBS]:
        asked = getattr(two.a, verb)("x")
        with pytest.raises(PermissionDenied):
            await (asked if inspect.isawaitable(asked) else asked.__aenter__())
    with pytest.raises(PermissionDenied):
        async with two.a.make_template(cast("Any", None)):
            pass
    with pytest.raises(PermissionDenied):
        await two.a.create(SessionSpec(mounts=(Mount("/srv", "/srv"),)))


async def test_a_tenant_has_so_many_sessions(two: Two) -> None:
    two.limits = TenantLimits(sessions=2)
    await two.a.create(SessionSpec("one"))
    await two.a.fork(ForkRequest("one"))
    for refused in (two.a.create(SessionSpec()), two.a.fork(ForkRequest("one"))):
        with pytest.raises(MaxSessionsReached):
            await cast("Any", refused)
    await two.b.create(SessionSpec())


async def test_health_tells_nothing_of_others(two: Two) -> None:
    await two.a.create(SessionSpec())
    assert (await two.b.health()).session_count == 0
    assert (await two.a.health()).session_count == 1


async def test_wrong_ids_are_wrong_here_too(two: Two) -> None:
    for wrong in ("", "..", "a/b", "\0", "x" * 129, "x" * 120):
        with pytest.raises((InvalidArgument, SessionNotFound)):
            await two.a.get(wrong)


async def test_volumes_are_of_a_tenant(two: Two) -> None:
    try:
        made = await two.a.create_volume(VolumeSpec("data"))
    except SandlotError:
        pytest.skip("this fake has no volumes")
    assert made.name == "data"
    assert await two.b.list_volumes() == []


async def test_a_token_reaches_its_session_and_nothing_else(two: Two) -> None:
    """Through every verb of the waist: what names another session finds none, what names none is refused or empty."""
    for session_id in ("work", "other"):
        await two.a.create(SessionSpec(session_id))
    host = two.host("a", only="work")
    assert (await host.get("work")).session_id == "work"
    async with host.call(CallRequest("work", ("echo", "x"))) as call:
        assert (await call.result()).exit_code == 0
    assert [info.session_id for info in (await host.list(SessionFilter())).sessions] == ["work"]
    assert (await host.health()).session_count == 1
    async with host.events(EventFilter()) as events:
        assert {event.session_id async for event in events} == {"work"}

    async def told(session_id: str) -> list[str]:
        found: list[str] = []
        for ask in (
            host.get(session_id),
            host.destroy(session_id),
            host.calls(session_id),
            host.create_snapshot(SnapshotRequest(session_id, "x")),
        ):
            with pytest.raises(SessionNotFound) as error:
                await cast("Any", ask)
            found.append(
                str(error.value).replace(session_id, "ID") + str(error.value.context).replace(session_id, "ID")
            )
        return found

    assert await told("other") == await told("nobody")
    async with host.events(EventFilter(session_id="other")) as events:
        assert [event async for event in events] == []
    for refused in (
        host.create(SessionSpec()),
        host.fork(ForkRequest("work")),
        host.import_session(cast("Any", None), cast("Any", None)),
        host.create_volume(VolumeSpec("v")),
        host.get_volume("v"),
        host.list_volumes(),
        host.remove_volume("v"),
    ):
        with pytest.raises(PermissionDenied, match="one session"):
            await refused
    looking = two.host("a", Scope.READ, "work")
    assert (await looking.get("work")).session_id == "work"
    with pytest.raises(PermissionDenied):
        await looking.destroy("work")
    await host.destroy("work")
    assert [info.session_id for info in (await two.a.list(SessionFilter())).sessions] == ["other"]


async def test_a_token_of_the_operator_is_of_one_session_too(two: Two) -> None:
    await two.a.create(SessionSpec("work"))
    host = two.host("", only="tenant-a.work")
    assert (await host.get("tenant-a.work")).session_id == "tenant-a.work"
    for refused in (host.create(SessionSpec()), host.examine(), host.list_volumes()):
        with pytest.raises(PermissionDenied):
            await cast("Any", refused)
    with pytest.raises(SessionNotFound) as error:
        await host.get("tenant-a.other")
    assert "nobodys" not in str(error.value) + str(error.value.context)


async def test_keys_of_one_tenant_share_its_room(two: Two) -> None:
    two.limits = TenantLimits(sessions=3)
    hosts = [two.host("a") for _ in range(6)]
    made = await asyncio.gather(*(host.create(SessionSpec()) for host in hosts), return_exceptions=True)
    assert sum(isinstance(one, MaxSessionsReached) for one in made) == 3


async def test_who_may_wait_gets_room_when_there_is_some(two: Two) -> None:
    """In the order in which they came, and not for ever."""
    two.limits = TenantLimits(sessions=1)
    await two.a.create(SessionSpec("one"))
    order: list[str] = []

    async def wait(name: str) -> None:
        await two.host("a").create(SessionSpec(name, queue_timeout_s=60))
        order.append(name)
        await two.a.destroy(name)

    first = asyncio.ensure_future(wait("first"))
    await asyncio.sleep(0.05)
    second = asyncio.ensure_future(wait("second"))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    with pytest.raises(MaxSessionsReached):
        await two.a.create(SessionSpec("late", queue_timeout_s=0.2))
    assert time.monotonic() - began >= 0.2
    assert order == []
    await two.a.destroy("one")
    await asyncio.gather(first, second)
    assert order == ["first", "second"]
