"""A server that is killed and started again, under a client that goes on."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.model import CallOutput, CallRequest, CallResult, FileWrite, SessionSpec
from sandlot.rpc.client import HostClient

pytestmark = pytest.mark.root
DEADLINE_S = 180.0
ROOT = Path(__file__).parents[2]


async def start(settings: Settings, path: Path) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tests.performance.wire_server", str(settings.data), str(settings.keeper)]
    server = await asyncio.create_subprocess_exec(*command, str(path), "0", cwd=ROOT, stdin=-1, stdout=-1)
    assert server.stdout is not None
    assert await server.stdout.readline(), "it says its port when it listens"
    return server


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.timeout(300)
async def test_a_command_is_found_again_when_the_server_was_killed(settings: Settings, tmp_path: Path) -> None:
    """Its output is told once, whole, and to its end; and so is what was asked for while nobody was there."""
    path = tmp_path / "s"
    async with asyncio.timeout(DEADLINE_S):
        server = await start(settings, path)
        try:
            async with HostClient(f"unix://{path}", reconnect_s=DEADLINE_S) as client:
                session = await client.create(SessionSpec())
                script = "echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 7"
                seen: list[CallOutput] = []
                result: CallResult | None = None
                async with client.call(CallRequest(session.session_id, ("sh", "-c", script))) as stream:
                    async for event in stream:
                        if isinstance(event, CallResult):
                            result = event
                        elif isinstance(event, CallOutput):
                            seen.append(event)
                            if event.offset == 0:
                                server.send_signal(signal.SIGKILL)
                                await server.wait()
                                write = client.write_file(FileWrite(session.session_id, "go"), once(b""))
                                waiting = asyncio.create_task(write)
                                server = await start(settings, path)
                                await waiting
                assert [(one.offset, one.data) for one in seen] == [(0, b"one\n"), (4, b"two\n")]
                assert result is not None
                assert result.exit_code == 7
                assert [call.argv[0] for call in await client.calls(session.session_id)] == ["sh"]
        finally:
            if server.returncode is None:
                assert server.stdin is not None
                server.stdin.close()
                await server.wait()
