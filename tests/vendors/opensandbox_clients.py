# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""OpenSandbox's other clients, as their users have them: the interpreter of code, the command line, and the server for
models. `make compat` runs this with an environment that has them; they are no part of what is locked, because the
command line wants another `rich` than ours.

`python opensandbox_clients.py HOST:PORT KEY` prints a line for each client, and ends with how many failed.
"""

import asyncio
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

SCRIPT = "/opt/code-interpreter/code-interpreter.sh"


async def interpreter(domain: str, key: str) -> None:
    from code_interpreter import CodeInterpreter
    from code_interpreter.models.code import SupportedLanguage
    from opensandbox import Sandbox
    from opensandbox.config import ConnectionConfig

    connection = ConnectionConfig(domain=domain, api_key=key, protocol="http")
    sandbox = await Sandbox.create(
        "opensandbox/code-interpreter:v1.0.1", entrypoint=[SCRIPT], connection_config=connection
    )
    try:
        codes = (await CodeInterpreter.create(sandbox, ready_timeout=timedelta(seconds=60))).codes
        first = await codes.run("x = 20\nprint('printed')\nx + 1", language=SupportedLanguage.PYTHON)
        assert [line.text for line in first.logs.stdout] == ["printed\n"], first
        assert [value.text for value in first.result] == ["21"], first
        assert (await codes.run("x * 2", language=SupportedLanguage.PYTHON)).result[0].text == "40"
        context = await codes.create_context(SupportedLanguage.PYTHON)
        failed = await codes.run("x", context=context)
        assert failed.error is not None, failed
        assert failed.error.name == "NameError", failed
        assert any("NameError" in line for line in failed.error.traceback), failed
        assert (await codes.get_context(context.id or "")).language == "python"
        assert context.id in [one.id for one in await codes.list_contexts(SupportedLanguage.PYTHON)]
        shell = await codes.run("cd /usr; pwd", language=SupportedLanguage.BASH)
        assert "".join(line.text for line in shell.logs.stdout) == "/usr\n", shell
        long = asyncio.ensure_future(codes.run("import time; time.sleep(1000)", context=context))
        await asyncio.sleep(1)
        await codes.interrupt(context.id or "")
        assert (await long).error is not None
        await codes.delete_context(context.id or "")
        await codes.delete_contexts(SupportedLanguage.PYTHON)
        assert await codes.list_contexts(SupportedLanguage.PYTHON) == []
    finally:
        await sandbox.kill()
        await sandbox.close()


async def command_line(domain: str, key: str) -> None:
    def osb(*words: str) -> str:
        envs = {**os.environ, "OPEN_SANDBOX_DOMAIN": domain, "OPEN_SANDBOX_API_KEY": key, "NO_COLOR": "1"}
        envs["HOME"] = os.environ.get("COMPAT_HOME", "/nonexistent")
        program = Path(sys.executable).with_name("osb")
        ran = subprocess.run(
            [program, *words],
            env=envs,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert ran.returncode == 0, (words, ran.stdout[-2000:], ran.stderr[-2000:])
        return ran.stdout

    def work() -> None:
        made = json.loads(osb("sandbox", "create", "--image", "python:3.12", "--timeout", "10m", "-o", "json"))
        name = made.get("id") or made["sandbox_id"]
        try:
            assert name in osb("sandbox", "list", "-o", "json")
            assert "Running" in osb("sandbox", "get", name, "-o", "json")
            assert "hello" in osb("command", "run", name, "-o", "raw", "--", "echo", "hello")
            osb("file", "write", name, "/work/a.txt", "-c", "written")
            assert "written" in osb("file", "cat", name, "/work/a.txt")
            assert "id:" in osb("devops", "inspect", name, "-o", "raw")
        finally:
            osb("sandbox", "kill", name)

    await asyncio.to_thread(work)


async def for_models(domain: str, key: str) -> None:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    program = Path(sys.executable).with_name("opensandbox-mcp")
    words = ["--domain", domain, "--api-key", key, "--protocol", "http"]
    async with (
        stdio_client(StdioServerParameters(command=str(program), args=words)) as (reading, writing),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        tools = {tool.name for tool in (await session.list_tools()).tools}
        assert {"sandbox_create", "command_run"} <= tools, tools
        made = await session.call_tool("sandbox_create", {"image": "python:3.12"})
        told = json.loads(made.content[0].text)
        name = told.get("sandbox_id") or told["id"]
        ran = await session.call_tool("command_run", {"sandbox_id": name, "command": "echo hello"})
        assert "hello" in ran.content[0].text, ran
        await session.call_tool("sandbox_kill", {"sandbox_id": name})


TRIED: dict[str, Callable[[str, str], Awaitable[None]]] = {
    "opensandbox-code-interpreter": interpreter,
    "opensandbox-cli": command_line,
    "opensandbox-mcp": for_models,
}


def main() -> int:
    domain, key = sys.argv[1:3]
    failed = 0
    for name, attempt in TRIED.items():
        try:
            asyncio.run(asyncio.wait_for(attempt(domain, key), 300))
            print(f"{name}\tpassed", flush=True)
        except Exception:  # noqa: BLE001 - whatever it is, it is told
            failed += 1
            traceback.print_exc()
            print(f"{name}\tfailed", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
