"""Two tenants on one host, and neither sees the other: through every verb of the waist."""

import inspect
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from sandlot.contracts import Host
from sandlot.fakes.host import FakeHost
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
from sandlot.tenants.rules import RULES, Rule

VERBS = [name for name, _ in inspect.getmembers(Host, callable) if not name.startswith("_")]


class Two:
    def __init__(self) -> None:
        self.fake = FakeHost()
        self.limits = TenantLimits()
        self.a, self.b = self.host("a"), self.host("b")

    def host(self, tenant: str, scope: Scope = Scope.USE) -> Host:
        return as_host(TenantHost(cast("Host", self.fake), tenant, scope, lambda: self.limits))


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
    for verb in [
        verb for verb, rule in RULES.items() if rule is Rule.OPERATOR and verb in VERBS and verb != "make_template"
    ]:
        with pytest.raises(PermissionDenied):
            await getattr(two.a, verb)("x")
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
