"""An environment in a directory of this machine."""

import asyncio
import os
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from sandlot.contracts import ExecutionEnvironment
from sandlot.environments.local import LocalConfig, LocalProvider
from sandlot.model import (
    CapabilityNotSupported,
    EnvironmentState,
    Resources,
    SessionNotFound,
    SessionSpec,
    ToolProgress,
    ToolRequest,
    ToolResult,
)
from tests.waiting import until


async def call(environment: ExecutionEnvironment, tool: str, /, **arguments: object) -> ToolResult:
    assert environment.session_id
    return await environment.execute_tool(ToolRequest(environment.session_id, tool, arguments))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def fresh(provider: LocalProvider, spec: SessionSpec | None = None) -> ExecutionEnvironment:
    environment = provider.environment()
    await environment.create(spec or SessionSpec())
    return environment


async def test_another_process_that_is_given_the_directory_finds_the_session(tmp_path: Path) -> None:
    one = await fresh(LocalProvider(tmp_path), SessionSpec(envs={"COLOUR": "blue"}))
    await call(one, "write_file", path="f", content="kept\n")
    await one.pause()
    other = LocalProvider(tmp_path).environment()
    assert one.session_id
    await other.attach_session(one.session_id)
    assert await other.state() is EnvironmentState.PAUSED
    await other.resume()
    assert (await call(other, "bash", cmd="cat f; echo $COLOUR")).text.startswith("kept\nblue\n")
    await other.destroy()
    assert await one.state() is EnvironmentState.DESTROYED
    assert names(tmp_path) == []


async def test_commands_see_no_variable_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THIS_PROCESS", "x")
    environment = await fresh(LocalProvider(tmp_path, LocalConfig(envs={"GIVEN": "y"})))
    told = (await call(environment, "bash", cmd="env")).text
    assert "SECRET_OF_THIS_PROCESS" not in told
    assert "GIVEN=y" in told


async def test_tools_of_files_stay_in_the_directory(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path / "sessions")
    one, other = await fresh(provider), await fresh(provider)
    await call(one, "write_file", path="f", content="of one")
    await call(other, "bash", cmd=f"ln -s {tmp_path} way; ln -s {provider.files(str(one.session_id))}/f link")
    for path in (f"../../{one.session_id}/files/f", "link", "way/x", "/etc/hostname"):
        for tool, more in (("read_file", {}), ("write_file", {"content": "x"}), ("grep", {"pattern": "x"})):
            told = await call(other, tool, path=path, **more)
            assert told.is_error, (tool, path)
            assert "leads out of the directory" in told.text


async def test_nothing_that_a_command_started_outlives_it(tmp_path: Path) -> None:
    """Neither one in the background, nor one that takes no notice of being asked to end."""
    environment = await fresh(LocalProvider(tmp_path))
    began = time.monotonic()
    told = await call(environment, "bash", cmd="sleep 1000 & echo $!")
    assert time.monotonic() - began < 60
    assert told.exit_code == 0
    stubborn = await call(
        environment, "bash", cmd="trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000", timeout_ms=300
    )
    assert stubborn.exit_code == 124
    for result in (told, stubborn):
        assert await until(partial(is_gone, int(result.text.split()[0])))


def is_gone(pid: int) -> bool:
    """It has ended, whether or not someone has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_a_listener_that_is_slow_slows_the_command_and_loses_nothing(tmp_path: Path) -> None:
    environment = await fresh(LocalProvider(tmp_path))
    heard: list[str] = []

    async def slowly(said: ToolProgress) -> None:
        await asyncio.sleep(0.001)
        heard.append(said.text)

    request = ToolRequest(str(environment.session_id), "bash", {"cmd": "seq 100000"})
    result = await environment.execute_tool(request, slowly)
    assert "".join(heard) == "".join(f"{number}\n" for number in range(1, 100_001))
    assert result.exit_code == 0


@pytest.mark.parametrize(
    "spec",
    [
        SessionSpec(resources=Resources(cpus=1.0)),
        SessionSpec(template="other"),
        SessionSpec(runtime="gvisor"),
        SessionSpec(user="root"),
        SessionSpec(ports=(80,)),
        SessionSpec(idle_timeout_s=5.0),
    ],
    ids=["resources", "template", "runtime", "user", "ports", "idle"],
)
async def test_what_a_directory_cannot_hold_is_refused_and_nothing_is_made(tmp_path: Path, spec: SessionSpec) -> None:
    with pytest.raises(CapabilityNotSupported):
        await LocalProvider(tmp_path).environment().create(spec)
    assert names(tmp_path) == []


async def test_a_directory_that_is_no_session_is_neither_found_nor_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "session.json").write_text('{"ends": "never"}')
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "session.json").write_text("[1]")
    provider = LocalProvider(tmp_path)
    for name in ("mine", "other"):
        with pytest.raises(SessionNotFound):
            await provider.environment().attach_session(name)
    environment = await fresh(provider)
    await environment.destroy()
    assert names(tmp_path) == ["mine", "other"]


async def test_what_a_process_left_that_was_killed_is_taken_away(tmp_path: Path) -> None:
    """At any moment of making and removing: the next one finds whole sessions, and removes the rest."""
    script = (
        "import asyncio, sys\n"
        "from sandlot.environments.local import LocalProvider\n"
        "from sandlot.model import SessionSpec\n"
        "async def main():\n"
        "    provider = LocalProvider(sys.argv[1])\n"
        "    while True:\n"
        "        one = provider.environment()\n"
        "        await one.create(SessionSpec())\n"
        "        print('x', flush=True)\n"
        "        await one.destroy()\n"
        "asyncio.run(main())\n"
    )
    for _ in range(5):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout
        for _line in range(20):
            await process.stdout.readline()
        process.kill()
        await process.communicate()
    for left in tmp_path.glob(".making-*"):
        os.utime(left, (0, 0))  # as if it had been begun long ago
    provider = LocalProvider(tmp_path)
    await (await fresh(provider)).destroy()
    assert [name for name in names(tmp_path) if name.startswith(".")] == []
    for name in names(tmp_path):
        environment = provider.environment()
        await environment.attach_session(name)
        assert not (await call(environment, "write_file", path="f", content="whole")).is_error
