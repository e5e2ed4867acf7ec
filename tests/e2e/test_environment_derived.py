"""What an environment does when its vendor is slow, lies, or loses answers."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sandlot.contracts import ExecutionEnvironment, Heard, VendorCommand
from sandlot.environments.derived import DerivedProvider
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    EnvironmentState,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    Resources,
    SessionSpec,
    Stream,
    ToolRequest,
    ToolResult,
    Unavailable,
    new_session_id,
)
from tests.shell_vendor import ShellVendor


async def call(environment: ExecutionEnvironment, tool: str, /, **arguments: object) -> ToolResult:
    return await environment.execute_tool(ToolRequest(str(environment.session_id), tool, arguments))


async def fresh(vendor: ShellVendor) -> ExecutionEnvironment:
    environment = DerivedProvider(vendor, vendor).environment()
    await environment.create(SessionSpec())
    return environment


class LosesAnswers(ShellVendor):
    async def create(self, spec: SessionSpec) -> None:
        await super().create(spec)
        raise Unavailable("the answer was lost")


async def test_a_create_whose_answer_was_lost_leaves_none_unless_the_id_may_be_anothers(tmp_path: Path) -> None:
    vendor = LosesAnswers(tmp_path)
    provider = DerivedProvider(vendor, vendor)
    with pytest.raises(Unavailable):
        await provider.environment().create(SessionSpec())
    assert vendor.sessions == {}
    chosen = new_session_id()
    with pytest.raises(Unavailable):
        await provider.environment().create(SessionSpec(session_id=chosen))
    assert list(vendor.sessions) == [chosen]


class HasNoShell(ShellVendor):
    async def execute(self, session_id: str, command: VendorCommand, heard: Heard) -> int:
        return 127


async def test_a_sandbox_that_cannot_be_used_does_not_stay(tmp_path: Path) -> None:
    vendor = HasNoShell(tmp_path)
    with pytest.raises(Unavailable, match="shell"):
        await DerivedProvider(vendor, vendor).environment().create(SessionSpec(session_id="mine"))
    assert vendor.sessions == {}


async def test_what_the_vendor_cannot_hold_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    vendor = ShellVendor(tmp_path)
    provider = DerivedProvider(vendor, vendor)
    with pytest.raises(CapabilityNotSupported):
        await provider.environment().create(SessionSpec(resources=Resources(cpus=1.0)))
    with pytest.raises(LimitReached):
        await provider.environment().create(SessionSpec(timeout_s=200_000.0))
    assert vendor.commands == 0


async def test_a_search_through_many_files_asks_few_times(tmp_path: Path) -> None:
    vendor = ShellVendor(tmp_path)
    environment = await fresh(vendor)
    script = "mkdir d; for n in $(seq 900); do echo line $n >d/$n; done; head -c 9000000 /dev/zero >d/zero"
    assert (await call(environment, "bash", cmd=script)).exit_code == 0
    vendor.commands = 0
    told = (await call(environment, "grep", pattern="^line 7.5$", max_results=20)).text
    assert told.startswith("Found 10 matches\nd/705:1: line 705\n")
    assert vendor.commands < 25


class BreaksUploads(ShellVendor):
    async def upload(self, session_id: str, path: str, content: AsyncIterable[bytes]) -> None:
        async def half() -> AsyncIterator[bytes]:
            async for piece in content:
                yield piece[: len(piece) // 2]
            raise Unavailable("the connection was lost")

        await super().upload(session_id, path, half())


async def test_a_write_that_breaks_off_leaves_the_file_and_nothing_else(tmp_path: Path) -> None:
    vendor = BreaksUploads(tmp_path)
    environment = await fresh(vendor)
    await call(environment, "bash", cmd="echo old >f")
    with pytest.raises(Unavailable):
        await call(environment, "write_file", path="f", content="new and long")
    assert (await call(environment, "bash", cmd="cat f; ls -A")).text.startswith("old\nf\n")


class Lies(ShellVendor):
    """It answers with noise, of its own making or mixed into what is true."""

    def __init__(self, top: Path, seed: int) -> None:
        super().__init__(top)
        self._random = random.Random(seed)
        self.is_lying = False

    def _noise(self, true: bytes) -> bytes:
        kind = self._random.randrange(4)
        if kind == 0:
            return b""
        if kind == 1:
            return self._random.randbytes(self._random.randrange(2000))
        at = self._random.randrange(len(true) + 1)
        return true[:at] if kind == 2 else true[:at] + self._random.randbytes(5) + true[at:]

    async def execute(self, session_id: str, command: VendorCommand, heard: Heard) -> int:
        async def hear(stream: Stream, data: bytes) -> None:
            await heard(stream, self._noise(data) if self.is_lying else data)

        code = await super().execute(session_id, command, hear)
        return self._random.choice([code, code, 0, 1, 41, 127, -7, 1 << 40]) if self.is_lying else code

    @asynccontextmanager
    async def download(self, session_id: str, path: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        async with super().download(session_id, path) as pieces:
            whole = b"".join([piece async for piece in pieces])

            async def told() -> AsyncIterator[bytes]:
                yield self._noise(whole)

            yield told()


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_a_sandbox_answers_comes_out_as_a_result_or_a_typed_error(tmp_path: Path, seed: int) -> None:
    vendor = Lies(tmp_path, seed)
    environment = await fresh(vendor)
    await call(environment, "bash", cmd="mkdir d; echo one >d/f; ln -s d/f link")
    vendor.is_lying = True
    asked: tuple[tuple[str, dict[str, object]], ...] = (
        ("read_file", {"path": "d/f"}),
        ("write_file", {"path": "d/g", "content": "x"}),
        ("edit_file", {"path": "d/f", "old_string": "one", "new_string": "two"}),
        ("list_dir", {"depth": 3}),
        ("glob", {"pattern": "**"}),
        ("grep", {"pattern": "o.e"}),
        ("bash", {"cmd": "echo x"}),
    )
    for _ in range(5):
        for tool, arguments in asked:
            with suppress(InvalidArgument, NotFound, Conflict, PermissionDenied, LimitReached, Unavailable):
                assert isinstance(await call(environment, tool, **arguments), ToolResult)
    vendor.is_lying = False
    await environment.destroy()
    assert vendor.sessions == {}


class Stalls(ShellVendor):
    async def execute(self, session_id: str, command: VendorCommand, heard: Heard) -> int:
        if "stall" in command.argv[-1]:
            await asyncio.Event().wait()
        return await super().execute(session_id, command, heard)


async def test_a_command_that_the_vendor_never_ends_ends_here(tmp_path: Path) -> None:
    environment = await fresh(Stalls(tmp_path))
    told = await call(environment, "bash", cmd="echo stall", timeout_ms=200)
    assert (told.exit_code, told.is_error) == (124, True)
    assert await environment.state() is EnvironmentState.ACTIVE
