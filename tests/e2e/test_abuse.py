"""Commands that behave badly get a typed result, and the engine stays small."""

import asyncio
import hashlib
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallOutput,
    CallRequest,
    CapabilityNotSupported,
    HostFull,
    InvalidArgument,
    LimitHit,
    LimitReached,
    Resources,
    SandlotError,
    SessionExists,
    SessionFilter,
    SessionNotFound,
    SessionSpec,
    TemplateNotFound,
    TerminalSize,
    Unavailable,
)
from sandlot.model.network import NetworkMode, NetworkPolicy
from tests.conftest import collect, run

pytestmark = pytest.mark.root
MIB = 1 << 20


@pytest.fixture
async def session(host: SandboxHostService) -> str:
    return (await host.create(SessionSpec())).session_id


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_a_gigabyte_of_output_is_cut_and_counted(host: SandboxHostService, session: str) -> None:
    before = resident_bytes()
    request = CallRequest(session, ("head", "-c", "1G", "/dev/zero"), output_bytes_max=8 * MIB)
    async with host.call(request) as events:
        kept, peak = 0, 0
        async for event in events:
            if isinstance(event, CallOutput):
                kept += len(event.data)
                peak = max(peak, resident_bytes())
        result = await events.result()
    assert (result.exit_code, result.truncated, result.stdout_bytes, kept) == (0, True, 1 << 30, 8 * MIB)
    assert peak - before < 64 * MIB


async def test_a_slow_reader_stops_the_writer_and_gets_every_byte(host: SandboxHostService, session: str) -> None:
    request = CallRequest(session, ("head", "-c", "20M", "/dev/urandom"), output_bytes_max=64 * MIB)
    async with host.call(request) as events:
        size = 0
        async for event in events:
            if isinstance(event, CallOutput):
                size += len(event.data)
                if size < 2 * MIB:
                    await asyncio.sleep(0.005)
        assert (size, (await events.result()).truncated) == (20 * MIB, False)


async def test_output_is_the_same_for_every_reader(host: SandboxHostService, session: str) -> None:
    script = "head -c 3000000 /dev/urandom | tee /workspace/copy; sha256sum /workspace/copy >&2"
    async with host.call(CallRequest(session, ("sh", "-c", script), call_id="twice")) as events:
        first = await collect(events)
    async with host.attach(session, "twice") as events:
        second = await collect(events)
    assert first.stdout == second.stdout
    assert hashlib.sha256(first.stdout).hexdigest() == first.stderr.decode().split()[0]


async def test_a_command_that_never_reads_stdin_does_not_grow_memory(host: SandboxHostService, session: str) -> None:
    before = resident_bytes()
    async with host.call(CallRequest(session, ("sleep", "60"), stdin=True)) as events:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(events.write_stdin(b"x" * (8 * MIB)), 0.5)
    assert resident_bytes() - before < 32 * MIB


async def test_input_after_the_program_closed_it_is_dropped(host: SandboxHostService, session: str) -> None:
    async with host.call(CallRequest(session, ("sh", "-c", "head -c 5; exec <&-; sleep 0.1"), stdin=True)) as events:
        for _ in range(64):
            await events.write_stdin(b"hello world" * 1000)
        await events.close_stdin()
        ran = await collect(events)
    assert (ran.exit_code, ran.stdout) == (0, b"hello")


async def test_stdin_arrives_whole(host: SandboxHostService, session: str) -> None:
    data = os.urandom(5 * MIB)
    async with host.call(CallRequest(session, ("sha256sum",), stdin=True)) as events:
        await events.write_stdin(data)
        await events.close_stdin()
        ran = await collect(events)
    assert ran.stdout.decode().split()[0] == hashlib.sha256(data).hexdigest()


async def test_a_timeout_ends_the_whole_tree_even_if_it_ignores_term(host: SandboxHostService, session: str) -> None:
    script = "trap '' TERM; (trap '' TERM; sleep 300) & setsid sleep 301 & echo up; while :; do sleep 0.1; done"
    began = time.monotonic()
    ran = await run(host, CallRequest(session, ("sh", "-c", script), timeout_s=0.3))
    assert (ran.exit_code, ran.result.limit, ran.result.signal) == (124, LimitHit.TIMEOUT, signal.SIGKILL)
    assert ran.stdout == b"up\n"
    assert time.monotonic() - began < 8
    left = await run(host, CallRequest(session, ("pgrep", "-c", "sleep")))
    assert left.stdout == b"0\n"


async def test_a_timeout_ends_also_what_has_left_the_command(host: SandboxHostService, session: str) -> None:
    """What ignores TERM below a shell that ends by it, and daemons, which listen or do not."""
    deaf = "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done'"
    script = f"{deaf} & ({deaf} &); (setsid sleep 301 &); (trap '' TERM; exec sleep 300) & echo up; sleep 302"
    ran = await run(host, CallRequest(session, ("bash", "-c", script), timeout_s=2))
    assert (ran.stdout, ran.exit_code, ran.result.limit) == (b"up\n", 124, LimitHit.TIMEOUT)
    assert ran.result.signal == signal.SIGTERM
    left = await run(host, CallRequest(session, ("pgrep", "-c", "sleep|sh")))
    assert left.stdout == b"0\n"


async def test_what_a_command_left_behind_lives_on_when_it_has_ended(host: SandboxHostService, session: str) -> None:
    await run(host, CallRequest(session, ("sh", "-c", "(setsid sleep 301 &); sleep 300 & sleep 0.1"), timeout_s=2))
    await asyncio.sleep(2.5)  # its time would be over
    assert (await run(host, CallRequest(session, ("pgrep", "-c", "sleep")))).stdout == b"2\n"


async def test_a_background_child_does_not_hold_the_call_and_lives_on(host: SandboxHostService, session: str) -> None:
    began = time.monotonic()
    ran = await run(host, CallRequest(session, ("sh", "-c", "(sleep 0.2; echo late; sleep 30) & echo early")))
    assert (ran.exit_code, ran.stdout) == (0, b"early\n")
    assert time.monotonic() - began < 5
    await asyncio.sleep(0.5)  # it writes to a pipe that nobody reads any more, and must survive that
    assert (await run(host, CallRequest(session, ("pgrep", "-c", "sleep")))).stdout == b"1\n"


async def test_a_thousand_orphans_are_reaped(host: SandboxHostService, session: str) -> None:
    script = "i=0; while [ $i -lt 1000 ]; do (sleep 0.01 &) ; i=$((i+1)); done; echo made"
    assert (await run(host, CallRequest(session, ("sh", "-c", script)))).stdout == b"made\n"
    await asyncio.sleep(0.3)
    listing = await run(host, CallRequest(session, ("sh", "-c", "ps -eo stat= | sort | uniq -c")))
    assert b"Z" not in listing.stdout, listing


async def test_leaving_the_stream_kills_the_command(host: SandboxHostService, session: str) -> None:
    began = time.monotonic()
    async with host.call(CallRequest(session, ("sh", "-c", "sleep 100 & sleep 100"))) as events:
        async for _started in events:
            break
    assert time.monotonic() - began < 5
    assert (await run(host, CallRequest(session, ("pgrep", "-c", "sleep")))).stdout == b"0\n"


async def test_bytes_and_names_that_are_not_text_are_carried(host: SandboxHostService, session: str) -> None:
    raw = bytes(range(1, 256))
    name = os.fsdecode(b"\xff\xfe name\nwith newline")
    ran = await run(host, CallRequest(session, ("printf", "%s", os.fsdecode(raw)), envs={"ODD": name}))
    assert ran.stdout == raw
    echoed = await run(
        host, CallRequest(session, ("sh", "-c", 'printf %s "$ODD"; touch "$ODD"; ls'), envs={"ODD": name})
    )
    assert echoed.stdout.startswith(os.fsencode(name))


async def test_exit_codes_and_signals(host: SandboxHostService, session: str) -> None:
    cases = {
        ("sh", "-c", "exit 7"): (7, None),
        ("sh", "-c", "kill -9 $$"): (137, 9),
        ("sh", "-c", "kill -TERM $$"): (143, 15),
        ("no-such-program",): (127, None),
        ("/etc/passwd",): (126, None),
        ("/workspace",): (126, None),
    }
    for argv, outcome in cases.items():
        ran = await run(host, CallRequest(session, argv))
        assert (ran.exit_code, ran.result.signal) == outcome, ran
        assert bool(ran.result.reason) == (outcome[0] in (126, 127))


async def test_a_terminal_has_a_size_and_takes_a_new_one(host: SandboxHostService, session: str) -> None:
    request = CallRequest(session, ("sh",), terminal=TerminalSize(30, 100))
    async with host.call(request) as events:
        await events.write_stdin(b"tty; stty size\n")
        await asyncio.sleep(0.2)
        await events.resize(50, 120)
        await events.write_stdin(b"stty size; exit 5\n")
        ran = await collect(events)
    assert ran.exit_code == 5
    assert b"/dev/pts/" in ran.stdout
    assert b"30 100" in ran.stdout
    assert b"50 120" in ran.stdout


async def test_users_and_directories(host: SandboxHostService, session: str) -> None:
    script = ("sh", "-c", "id -u; echo $HOME; pwd")
    assert (await run(host, CallRequest(session, script, user="root", cwd="/etc"))).stdout == b"0\n/root\n/etc\n"
    assert (await run(host, CallRequest(session, script, user="33"))).stdout.startswith(b"33\n/var/www\n")
    assert (await run(host, CallRequest(session, ("id", "-g"), user="33:44"))).stdout == b"44\n"
    await run(host, CallRequest(session, ("mkdir", "sub")))
    assert (await run(host, CallRequest(session, ("pwd",), cwd="sub"))).stdout == b"/workspace/sub\n"
    good = CallRequest(session, ("true",))
    for wrong in (replace(good, user="nobody-here"), replace(good, cwd="/no/such"), replace(good, cwd="/etc/passwd")):
        with pytest.raises(InvalidArgument):
            await run(host, wrong)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"runtime": "firecracker"}, InvalidArgument),
        ({"storage": "tape"}, InvalidArgument),
        ({"template": "other"}, TemplateNotFound),
        ({"resources": Resources(cpus=60000)}, InvalidArgument),
        ({"resources": Resources(memory_bytes=1 << 60)}, HostFull),
        ({"resources": Resources(disk_bytes=1 << 30), "storage": "layers"}, CapabilityNotSupported),
        ({"resources": Resources(pids=5), "runtime": "none"}, CapabilityNotSupported),
        ({"network": NetworkPolicy(NetworkMode.ALLOW_LIST, ("example.org",))}, CapabilityNotSupported),
        ({"secrets": {"A": "b"}}, CapabilityNotSupported),
        ({"snapshot": "s"}, InvalidArgument),
        ({"snapshot": "nobody/1"}, SessionNotFound),
        ({"runtime": "none", "user": "root"}, CapabilityNotSupported),
        ({"session_id": "taken"}, SessionExists),
    ],
)
async def test_what_cannot_be_had_is_refused_and_changes_nothing(
    host: SandboxHostService, spec: dict[str, object], error: type[SandlotError]
) -> None:
    await host.create(SessionSpec(session_id="taken"))
    with pytest.raises(error):
        await host.create(SessionSpec(**spec))  # pyright: ignore[reportArgumentType]
    assert [info.session_id for info in (await host.list(SessionFilter())).sessions] == ["taken"]


async def test_too_many_bytes_of_arguments_name_the_limit(host: SandboxHostService, session: str) -> None:
    with pytest.raises(LimitReached, match="arguments and environment"):
        await run(host, CallRequest(session, ("true", "x" * 200_000)))
    assert (await run(host, CallRequest(session, ("true",)))).exit_code == 0


async def test_a_destroyed_session_is_unknown_and_its_calls_end(host: SandboxHostService, session: str) -> None:
    async with host.call(CallRequest(session, ("sleep", "100"))) as events:
        await asyncio.gather(host.destroy(session), host.destroy(session))
        with pytest.raises(Unavailable):
            await events.result()
    for refused in (host.get(session), host.destroy(session)):
        with pytest.raises(SessionNotFound):
            await refused


async def test_a_session_expires(host: SandboxHostService) -> None:
    info = await host.create(SessionSpec(timeout_s=0.3))
    async with asyncio.timeout(5):
        while (await host.list(SessionFilter())).sessions:  # noqa: ASYNC110 - the clock sets no event
            await asyncio.sleep(0.05)
    with pytest.raises(SessionNotFound):
        await host.get(info.session_id)


async def test_lists_filter_and_page(host: SandboxHostService) -> None:
    for number in range(5):
        await host.create(SessionSpec(session_id=f"s{number}", labels={"odd": str(number % 2)}))
    first = await host.list(SessionFilter(limit=2))
    second = await host.list(SessionFilter(limit=2, after=first.next))
    third = await host.list(SessionFilter(limit=2, after=second.next))
    pages = [[info.session_id for info in page.sessions] for page in (first, second, third)]
    assert pages == [["s0", "s1"], ["s2", "s3"], ["s4"]]
    assert third.next is None
    odd = await host.list(SessionFilter(labels={"odd": "1"}))
    assert [info.session_id for info in odd.sessions] == ["s1", "s3"]
    with pytest.raises(InvalidArgument):
        await host.list(SessionFilter(after="nonsense"))


async def test_a_session_can_be_destroyed_while_its_output_is_being_written(host: SandboxHostService) -> None:
    for number in range(8):
        name = f"flood{number % 2}"  # a name is free again as soon as its session is gone
        await host.create(SessionSpec(session_id=name))
        async with host.call(CallRequest(name, ("yes",), call_id="flood", output_bytes_max=512 * MIB)) as events:
            size = 0
            async for event in events:
                size += len(event.data) if isinstance(event, CallOutput) else 0
                if size > (1 + number) * MIB:
                    break
            await host.destroy(name)
        await host.create(SessionSpec(session_id=name))
        assert await host.calls(name) == []
        await host.destroy(name)
