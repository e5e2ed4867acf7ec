"""Code in contexts, through OpenSandbox's interpreter SDK and as its wire has it."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import httpx
import pytest
from code_interpreter import CodeInterpreter
from code_interpreter.models.code import SupportedLanguage
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.exceptions import SandboxApiException

from sandlot.host.service import SandboxHostService
from sandlot.model import CodeStatus, ContextState
from tests.opensandbox_stage import KEY, address, closed_later, connection, create, keep, opened, until

__all__ = ["address", "connection", "opened"]
pytestmark = [pytest.mark.root, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SCRIPT = "/opt/code-interpreter/code-interpreter.sh"
HEADERS = {"OPEN-SANDBOX-API-KEY": KEY}


async def interpreter(connection: ConnectionConfig) -> CodeInterpreter:
    """As their examples begin: the script of their image is not in ours, and their client waits for what it starts."""
    sandbox = await create(connection, entrypoint=[SCRIPT])
    made = await CodeInterpreter.create(sandbox, ready_timeout=timedelta(seconds=60))
    closed_later.append(made.aclose)
    return made


async def test_their_interpreter_remembers(connection: ConnectionConfig) -> None:
    code = await interpreter(connection)
    first = await code.codes.run("x = 20\nprint('a\\n\\nb')\nx + 1", language=SupportedLanguage.PYTHON)
    assert "".join(line.text for line in first.logs.stdout) == "a\n\nb\n"
    assert [value.text for value in first.result] == ["21"]
    assert first.execution_count == 1
    assert (await code.codes.run("x * 2", language=SupportedLanguage.PYTHON)).result[0].text == "40"
    context = await code.codes.create_context(SupportedLanguage.PYTHON)
    assert context.id is not None
    failed = await code.codes.run("x", context=context)
    assert failed.error is not None
    assert (failed.error.name, failed.error.value) == ("NameError", "name 'x' is not defined")
    assert any("NameError" in line for line in failed.error.traceback)
    shell = await code.codes.run("cd /usr; echo err >&2; pwd", language=SupportedLanguage.BASH)
    assert "".join(line.text for line in shell.logs.stdout) == "/usr\n"
    assert "".join(line.text for line in shell.logs.stderr) == "err\n"
    known = [one.id for one in await code.codes.list_contexts(SupportedLanguage.PYTHON)]
    assert context.id in known
    assert len(known) == 2
    assert (await code.codes.get_context(context.id)).language == "python"
    await code.codes.delete_context(context.id)
    for gone in (code.codes.get_context(context.id), code.codes.delete_context(context.id)):
        with pytest.raises(SandboxApiException) as unknown:
            await gone
        assert unknown.value.status_code == 404
    await code.codes.delete_contexts(SupportedLanguage.PYTHON)
    assert await code.codes.list_contexts(SupportedLanguage.PYTHON) == []
    await code.sandbox.kill()


async def test_a_run_is_interrupted(host: SandboxHostService, connection: ConnectionConfig) -> None:
    code = await interpreter(connection)
    context = await code.codes.create_context(SupportedLanguage.PYTHON)
    assert context.id is not None
    running = asyncio.ensure_future(code.codes.run("y = 1\nimport time; time.sleep(1000)", context=context))

    async def is_busy() -> bool:
        return any(one.state is ContextState.BUSY for one in await host.contexts(code.sandbox.id))

    await until(is_busy)
    await code.codes.interrupt(context.id)
    assert (await running).error is not None
    assert (await code.codes.run("y", context=context)).result[0].text == "1", "it remembers what was before"
    await code.sandbox.kill()


async def test_a_run_that_nobody_reads_is_interrupted(
    host: SandboxHostService, address: str, connection: ConnectionConfig
) -> None:
    sandbox = await create(connection)
    where = f"http://{address}/v1/sandboxes/{sandbox.id}/proxy/44772/code"
    body = {"code": "print('begun', flush=True)\nimport time; time.sleep(1000)", "context": {"language": "python"}}
    client = httpx.AsyncClient(headers=HEADERS, timeout=60)
    async with client, client.stream("POST", where, json=body) as told:
        async for line in told.aiter_lines():
            if "begun" in line:
                break

    async def is_idle() -> bool:
        return all(one.state is ContextState.IDLE for one in await host.contexts(sandbox.id))

    await until(is_idle)
    await sandbox.kill()


async def test_frames_are_those_of_their_server(address: str, connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    where = f"http://{address}/v1/sandboxes/{sandbox.id}/proxy/44772"
    async with httpx.AsyncClient(headers=HEADERS, timeout=60) as client:

        async def run(code: str, **context: str) -> list[dict[str, Any]]:
            answer = await client.post(f"{where}/code", json={"code": code, "context": context})
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"] == "text/event-stream"
            return [json.loads(frame) for frame in answer.text.split("\n\n") if frame]

        made = (await client.post(f"{where}/code/context", json={"language": "python", "cwd": "/usr"})).json()
        frames = await run("import os; os.getcwd()", id=made["id"], language="python")
        kinds = [frame["type"] for frame in frames]
        assert kinds == ["init", "ping", "execution_count", "result", "execution_complete"]
        assert frames[0]["text"] == made["id"]
        assert frames[3]["results"]["text"] == "'/usr'"
        assert all(frame["timestamp"] for frame in frames)
        shell = await run("echo $0")
        assert [frame["text"] for frame in shell if frame["type"] == "stdout"] != [], "no language is the shell"
        ended = await run("import os; os._exit(3)", id=made["id"])
        assert ended[-2]["error"]["ename"] == str(CodeStatus.LOST)
        wrong: list[tuple[dict[str, Any], int]] = [
            ({"code": ""}, 400),
            ({"code": "1", "context": {"language": "cobol"}}, 400),
            ({"code": "1", "context": {"id": "nobody"}}, 404),
            ({"code": 1}, 400),
            ({"code": "1", "context": []}, 400),
        ]
        for body, status in wrong:
            answer = await client.post(f"{where}/code", json=body)
            assert (answer.status_code, set(answer.json())) == (status, {"code", "message"}), body
        assert (await client.delete(f"{where}/code")).status_code == 400
        assert (await client.delete(f"{where}/code/contexts")).status_code == 400
    await sandbox.kill()


async def test_an_entrypoint_that_is_there_is_run_instead(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    await sandbox.files.write_file(SCRIPT, "#!/bin/sh\necho own >/tmp/own\n", mode=755)
    point = await sandbox.create_snapshot()
    await sandbox.kill()
    making = Sandbox.create(snapshot_id=point.id, entrypoint=[SCRIPT], connection_config=connection)
    again = await keep(making)

    async def ran() -> bool:
        return (await again.commands.run("cat /tmp/own")).text == "own"

    await until(ran)
    await again.kill()
