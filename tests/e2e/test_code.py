"""Code in contexts outlives engines, however they end, and is told once and whole; what it leaves is taken away."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeRequest,
    CodeResult,
    CodeStatus,
    CodeValue,
    ContextRequest,
    ContextState,
    Resources,
    SessionFilter,
    SessionSpec,
    Unavailable,
    limits,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run
from tests.e2e.code_engine import CONTEXTS, RUNS, SESSION, expected
from tests.waiting import until

MIB = 1 << 20


async def told(host: SandboxHostService, request: CodeRequest) -> list[CodeEvent]:
    async with host.run_code(request) as stream:
        return [event async for event in stream]


async def read(host: SandboxHostService, session_id: str, execution_id: str) -> list[CodeEvent]:
    async with host.attach_code(session_id, execution_id) as stream:
        return [event async for event in stream]


def text(events: list[CodeEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, CodeOutput))


def result(events: list[CodeEvent]) -> CodeResult:
    assert isinstance(events[-1], CodeResult)
    return events[-1]


@pytest.fixture
async def session(host: SandboxHostService) -> AsyncIterator[str]:
    """On the runtime that needs no rights."""
    made = await host.create(SessionSpec(runtime="none", storage="local-disk"))
    yield made.session_id
    with contextlib.suppress(Exception):
        await host.destroy(made.session_id)


async def kill_an_engine(data: Path, runtime: str, after: int) -> list[str]:
    """When it has acknowledged so many runs. What it acknowledged."""
    engine = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.code_engine", str(data), runtime,
        stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert engine.stdout is not None
    names: list[str] = []
    assert await engine.stdout.readline() == b"ready\n"
    while len(names) < after:
        names.append((await engine.stdout.readline()).decode().strip())
    engine.kill()
    names += (await engine.stdout.read()).decode().split()
    await engine.wait()
    return names


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("runtime", "after"),
    [
        pytest.param("namespaces", 17, marks=pytest.mark.root),
        ("none", 2),
        ("none", 17),
        ("none", CONTEXTS * RUNS),
    ],
)
async def test_runs_go_on_when_the_engine_is_killed(settings: Settings, runtime: str, after: int) -> None:
    names = await kill_an_engine(settings.data, runtime, after)
    async with build(settings) as host:
        try:
            counted: dict[str, int] = {}
            for name in names:
                _, context, number = name.split("-")
                events = await read(host, SESSION, name)
                assert result(events).status is CodeStatus.OK
                assert text(events) == expected(int(context), int(number))
                values = [event.data["text/plain"] for event in events if isinstance(event, CodeValue)]
                counted[context] = counted.get(context, 0) + 1
                # Each ran behind all before it, and remembers them.
                assert values == [str(counted[context])]
                assert result(events).count == counted[context]
                marks = await run(host, CallRequest(SESSION, ("cat", f"ran-{context}-{number}")))
                assert marks.stdout == b"once "
            contexts = await host.contexts(SESSION)
            assert [one.context_id for one in contexts] == [f"k-{number}" for number in range(CONTEXTS)]
        finally:
            await clean_up(host)


async def test_a_context_is_there_for_the_next_engine(settings: Settings) -> None:
    async with build(settings) as host:
        made = await host.create(SessionSpec(runtime="none", storage="local-disk"))
        first = await told(host, CodeRequest(made.session_id, "kept = 5\nkept", execution_id="first"))
    async with build(settings) as host:
        assert await read(host, made.session_id, "first") == first
        events = await told(host, CodeRequest(made.session_id, "kept + 1"))
        assert [event.data for event in events if isinstance(event, CodeValue)] == [{"text/plain": "6"}]
        folder = settings.data / "outputs"
        assert list(folder.glob("*/k*.context"))
        await host.destroy(made.session_id)
        assert await until(lambda: not list(folder.glob("*/k*")))


async def test_a_reader_is_told_when_the_engine_leaves(settings: Settings) -> None:
    async with build(settings) as host:
        made = await host.create(SessionSpec(runtime="none", storage="local-disk"))
        request = CodeRequest(made.session_id, "import time\ntime.sleep(1.0)\n'over'", detach=True, execution_id="it")
        async with host.run_code(request) as stream:
            reading = asyncio.ensure_future(stream.result())
            await asyncio.sleep(0.1)
            await host.close()
            with pytest.raises(Unavailable, match="engine is closing"):
                await reading
    async with build(settings) as host:
        assert result(await read(host, made.session_id, "it")).status is CodeStatus.OK
        await host.destroy(made.session_id)


async def test_a_flood_is_cut_and_harms_nobody(host: SandboxHostService, session: str) -> None:
    """A gigabyte is counted where nobody keeps it; another session answers meanwhile."""
    other = await host.create(SessionSpec(runtime="none", storage="local-disk"))
    flood = asyncio.ensure_future(
        told(host, CodeRequest(session, "import os\nfor _ in range(1024):\n    os.write(1, b'x' * (1 << 20))\n'end'"))
    )
    for number in range(5):
        events = await told(host, CodeRequest(other.session_id, f"{number}"))
        assert result(events).status is CodeStatus.OK
    events = await flood
    assert len(text(events)) == limits.CODE_OUTPUT_BYTES
    assert (result(events).truncated, result(events).status) == (True, CodeStatus.OK)
    assert [event.data["text/plain"] for event in events if isinstance(event, CodeValue)] == ["'end'"]
    await host.destroy(other.session_id)


async def test_values_have_a_bound(host: SandboxHostService, session: str) -> None:
    """One that is too large is left out, and a run cannot fill the disk with many."""
    events = await told(host, CodeRequest(session, "display({'image/png': 'A' * (40 << 20)}, raw=True)\n'after'"))
    assert [sorted(event.data) for event in events if isinstance(event, CodeValue)] == [["text/plain"]] * 2
    assert result(events).truncated
    code = "for _ in range(12):\n    display({'image/png': 'A' * (8 << 20)}, raw=True)\n'after'"
    events = await told(host, CodeRequest(session, code))
    sizes = [
        len(event.data["image/png"]) for event in events if isinstance(event, CodeValue) if "image/png" in event.data
    ]
    assert set(sizes) == {8 * MIB}
    assert sum(sizes) <= limits.CODE_WINDOW_BYTES
    assert result(events).truncated


async def test_old_runs_are_forgotten(host: SandboxHostService, session: str, settings: Settings) -> None:
    """The newest are kept: so many, and so many bytes."""
    code = "display({'image/png': 'A' * (8 << 20)}, raw=True)"
    for number in range(10):
        await told(host, CodeRequest(session, code, execution_id=f"r-{number}"))
    assert (await read(host, session, "r-9"))[-1]
    with pytest.raises(LookupError):
        await read(host, session, "r-0")
    folder = settings.data / "outputs"
    assert await until(
        lambda: sum(path.stat().st_size for path in folder.glob("*/k*.story")) <= limits.CODE_WINDOW_BYTES
    )


@pytest.mark.root
async def test_a_context_that_uses_up_the_memory_says_so(host: SandboxHostService) -> None:
    made = await host.create(SessionSpec(resources=Resources(memory_bytes=128 * MIB)))
    events = await told(host, CodeRequest(made.session_id, "held = b'x' * (1 << 30)\nlen(held)"))
    # Python may hear of it, or be ended by it.
    if result(events).status is CodeStatus.ERROR:
        assert [event.name for event in events if isinstance(event, CodeError)] == ["MemoryError"]
    else:
        assert result(events).status is CodeStatus.LOST
        assert "memory" in result(events).reason
        assert [one.state for one in await host.contexts(made.session_id)] == [ContextState.LOST]
    assert result(await told(host, CodeRequest(made.session_id, "1"))).status is CodeStatus.OK
    await host.destroy(made.session_id)


async def test_what_lies_in_the_workspace_does_not_take_the_place_of_modules(
    host: SandboxHostService, session: str
) -> None:
    script = "echo 'raise SystemExit(1)' | tee json.py re.py ast.py signal.py > os.py"
    await run(host, CallRequest(session, ("sh", "-c", script)))
    assert result(await told(host, CodeRequest(session, "1"))).status is CodeStatus.OK


async def test_many_contexts_at_once(host: SandboxHostService, session: str) -> None:
    """No output goes to another's reader, and one more than there may be is refused."""
    made = await asyncio.gather(*(host.create_context(ContextRequest(session)) for _ in range(limits.CONTEXTS_MAX)))
    with pytest.raises(Exception, match="contexts already"):
        await host.create_context(ContextRequest(session))
    code = "for line in range(100):\n    print({number})\n{number}"
    runs = [CodeRequest(session, code.format(number=at), context_id=one.context_id) for at, one in enumerate(made)]
    for at, events in enumerate(await asyncio.gather(*(told(host, request) for request in runs))):
        assert text(events) == f"{at}\n" * 100
    assert (await host.list(SessionFilter())).sessions
