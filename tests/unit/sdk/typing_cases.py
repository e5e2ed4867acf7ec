"""What a type checker knows of the SDK. Nothing here is run: `make check` proves it, errors that must come included."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from collections.abc import AsyncGenerator, Generator
from typing import assert_type

from sandlot import (
    AsyncCommand,
    AsyncCommands,
    AsyncFiles,
    AsyncSandbox,
    CallRecord,
    Client,
    Command,
    CommandOutput,
    CommandResult,
    Commands,
    FileInfo,
    Files,
    Sandbox,
    SessionInfo,
)


class OwnSandbox(Sandbox):
    """Whoever derives gets his own kind back."""


class OwnAsyncSandbox(AsyncSandbox):
    """The same."""


def sync_sandbox(client: Client) -> None:
    assert_type(Sandbox.create(), Sandbox)
    assert_type(Sandbox.connect("id", client=client), Sandbox)
    assert_type(OwnSandbox.create("template", labels={"a": "b"}, detach=True), OwnSandbox)
    assert_type(Sandbox.list(), list[SessionInfo])
    with Sandbox.create() as sandbox:
        assert_type(sandbox, Sandbox)
        assert_type(sandbox.commands, Commands)
        assert_type(sandbox.files, Files)
        assert_type(sandbox.kill(), bool)


def sync_commands(sandbox: Sandbox, background: bool) -> None:
    assert_type(sandbox.commands.run("true"), CommandResult)
    assert_type(sandbox.commands.run(["true"], background=False, check=True, stdin=b""), CommandResult)
    assert_type(sandbox.commands.run(("true",), background=True, stdin=True), Command)
    assert_type(sandbox.commands.run("true", on_stdout=print, on_stderr=lambda text: text.strip()), CommandResult)
    assert_type(sandbox.commands.connect("id"), Command)
    assert_type(sandbox.commands.list(), list[CallRecord])
    command = sandbox.commands.run("true", background=True)
    assert_type(command.wait(), CommandResult)
    assert_type(command.output(), Generator[CommandOutput])
    assert_type(command.kill(), bool)
    assert_type(sandbox.commands.run("true", background=background), CommandResult | Command)
    sandbox.commands.run("true", stdin=None)  # pyright: ignore[reportArgumentType]
    sandbox.commands.run("true", on_stdout=lambda: None)  # pyright: ignore[reportArgumentType]


def sync_files(sandbox: Sandbox) -> None:
    assert_type(sandbox.files.read("a"), str)
    assert_type(sandbox.files.read("a", format="text", offset=1), str)
    assert_type(sandbox.files.read("a", format="bytes", length=2), bytes)
    assert_type(sandbox.files.read("a", format="stream"), Generator[bytes])
    sandbox.files.read("a", format="json")  # pyright: ignore[reportCallIssue, reportArgumentType]
    with open("a", "rb") as binary, open("b") as text:  # noqa: PTH123 - as users write it
        assert_type(sandbox.files.write("a", binary), FileInfo)
        assert_type(sandbox.files.write("a", text), FileInfo)
    assert_type(sandbox.files.write("a", (b"" for _ in range(2)), mode=0o600), FileInfo)
    assert_type(sandbox.files.write("a", memoryview(b"")), FileInfo)
    sandbox.files.write("a", 5)  # pyright: ignore[reportArgumentType]
    assert_type(sandbox.files.list(), list[FileInfo])
    assert_type(sandbox.files.exists("a"), bool)
    assert_type(sandbox.files.make_dir("a"), bool)


async def async_sandbox(client: Client) -> None:
    assert_type(await AsyncSandbox.create(client=client), AsyncSandbox)
    assert_type(await OwnAsyncSandbox.connect("id"), OwnAsyncSandbox)
    assert_type(await AsyncSandbox.list(states=()), list[SessionInfo])
    async with await AsyncSandbox.create() as sandbox:
        assert_type(sandbox, AsyncSandbox)
        assert_type(sandbox.commands, AsyncCommands)
        assert_type(sandbox.files, AsyncFiles)


async def async_commands(sandbox: AsyncSandbox) -> None:
    async def hear(text: str) -> None:
        del text

    assert_type(await sandbox.commands.run("true", on_stdout=hear), CommandResult)
    assert_type(await sandbox.commands.run("true", background=True), AsyncCommand)
    command = await sandbox.commands.connect("id")
    assert_type(await command.wait(check=True), CommandResult)
    assert_type(command.output(), AsyncGenerator[CommandOutput])


async def async_files(sandbox: AsyncSandbox) -> None:
    async def pieces() -> AsyncGenerator[bytes]:
        yield b""

    assert_type(await sandbox.files.read("a"), str)
    assert_type(await sandbox.files.read("a", format="bytes"), bytes)
    assert_type(await sandbox.files.read("a", format="stream"), AsyncGenerator[bytes])
    assert_type(await sandbox.files.write("a", pieces()), FileInfo)
