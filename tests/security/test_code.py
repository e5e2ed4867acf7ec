"""Code that knows how its context speaks to the engine, and speaks in its place: it harms its own context at most."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CodeEvent,
    CodeOutput,
    CodeRequest,
    CodeResult,
    CodeStatus,
    CodeValue,
    ContextRequest,
    SandlotError,
    SessionSpec,
    limits,
)

# What every attack begins with: the mark, and a way to write behind it.
LINE = """
import os, time, json
line = display.__self__._line
mark = line._mark
def frame(kind, data, flag='.', fd=1):
    os.write(fd, mark + kind.encode() + flag.encode() + b'%04d' % len(data) + data)
"""
FORGERIES = {
    "no end": "frame('V', b'x' * 4000, '<')\nwhile True:\n    frame('V', b'x' * 4000, '=')",
    "values without end": "while True:\n    frame('V', json.dumps({'data': {'text/plain': 'x' * 3000}}).encode())",
    "early end": "frame('X', json.dumps({'n': line.count, 'status': 'ok'}).encode())\n"
    "frame('Z', b'%d' % line.count, fd=2)\ntime.sleep(0.2)\nprint('behind')",
    "other end": "for n in range(1, 50):\n    frame('X', json.dumps({'n': n + line.count, 'status': 'ok'}).encode())",
    "strange end": "frame('X', json.dumps({'n': line.count, 'status': ['ok']}).encode())\nframe('Z', b'none', fd=2)",
    "no json": "for kind in 'VEXBRZ':\n    frame(kind, b'\\xff\\xfe{]')",
    "deep json": "frame('X', b'[' * 4000)\nframe('V', b'[' * 4000, '<')\nframe('V', b'[' * 4000, '>')",
    "wrong types": "for kind in 'VEXBR':\n"
    "    for told in ({'n': {}, 'data': 5, 'name': None}, [], {'data': {'a/b': 5}}, {'n': 10 ** 30}):\n"
    "        frame(kind, json.dumps(told).encode())",
    "begun twice": "for _ in range(99):\n    frame('B', json.dumps({'n': line.count}).encode())\n    frame('R', b'{}')",
    "marks alone": "os.write(1, mark * 50000)\nos.write(2, mark[:-1])\nos.write(1, mark + b'V.9999')",
    "on the other stream": "for kind in 'VEXBR':\n    frame(kind, b'{}', fd=2)\nframe('Z', b'1', fd=1)",
    "closed": "os.closerange(1, 100)",
    "another mark": "line._mark = b'nobody knows'",
    "reads the requests": "os.read(line._in, 1 << 20)",
    "silent": "line.end = lambda *given: None",
    "endless": "import threading\ndef flood():\n    while True:\n        os.write(1, b'y' * 65536)\n"
    "threading.Thread(target=flood).start()",
}


async def told(host: SandboxHostService, session_id: str, code: str, **options: object) -> list[CodeEvent]:
    request = CodeRequest(session_id, code, **options)  # pyright: ignore[reportArgumentType]
    async with host.run_code(request) as stream:
        return [event async for event in stream]


@pytest.fixture
async def session(host: SandboxHostService) -> AsyncIterator[str]:
    made = await host.create(SessionSpec(runtime="none", storage="local-disk"))
    yield made.session_id
    await host.destroy(made.session_id)


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", FORGERIES)
async def test_who_speaks_for_its_context_harms_nobody_else(host: SandboxHostService, session: str, name: str) -> None:
    """The run ends, in some way and in time; another context hears nothing of it; the engine is as it was."""
    victim = (await host.create_context(ContextRequest(session))).context_id
    assert [type(one) for one in await told(host, session, "kept = 1", context_id=victim)][-1] is CodeResult
    attacker = (await host.create_context(ContextRequest(session))).context_id
    before = memory()
    async with asyncio.timeout(60):
        events = await told(host, session, LINE + FORGERIES[name], context_id=attacker, timeout_s=1.0)
    assert isinstance(events[-1], CodeResult)
    for event in events:
        if isinstance(event, CodeValue):
            assert sum(len(form.encode()) for form in event.data.values()) <= limits.CODE_VALUE_BYTES_MAX
        if isinstance(event, CodeOutput):
            event.text.encode()
    printed = sum(len(event.text.encode()) for event in events if isinstance(event, CodeOutput))
    assert printed <= 2 * limits.CODE_OUTPUT_BYTES  # bytes that are no text grow where they are told
    assert memory() - before < 512 << 20
    # Whatever it did to its own context: that answers, or says that it does not.
    try:
        async with asyncio.timeout(60):
            again = await told(host, session, "2", context_id=attacker, timeout_s=1.0)
        assert isinstance(again[-1], CodeResult)
    except SandlotError:
        pass
    after = await told(host, session, "kept + 1", context_id=victim)
    assert [one.data for one in after if isinstance(one, CodeValue)] == [{"text/plain": "2"}]
    assert isinstance(after[-1], CodeResult)
    assert after[-1].status is CodeStatus.OK
    assert not [one for one in after if isinstance(one, CodeOutput)]
    await host.delete_context(session, attacker)


async def test_a_listing_of_variables_is_no_message(host: SandboxHostService, session: str) -> None:
    """Bash tells all that it knows, the halves of its mark with it."""
    events = await told(host, session, "set; declare -f; set -x; echo end; set +x; fc -l; declare -p", language="bash")
    assert isinstance(events[-1], CodeResult)
    assert "\nend\n" in "".join(event.text for event in events if isinstance(event, CodeOutput))
    again = await told(host, session, "echo $((1 + 1))", language="bash")
    assert [event.text for event in again if isinstance(event, CodeOutput)] == ["2\n"]


async def test_names_of_variables_are_no_code(host: SandboxHostService, session: str) -> None:
    """Of bash: its name and its value are told apart from what is run."""
    envs = {"A;touch made": "1", "B": "$(touch made)", "C": "'; touch made; '"}
    events = await told(host, session, 'ls; echo "$B"', language="bash", envs=envs)
    assert [event.text for event in events if isinstance(event, CodeOutput)] == ["$(touch made)\n"]
