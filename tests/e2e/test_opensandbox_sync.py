"""The sync face of OpenSandbox's SDK, from the first to the last of a sandbox, in a thread of its own."""

import asyncio
import time
from datetime import timedelta

import httpx
import pytest
from opensandbox import SandboxManagerSync, SandboxSync
from opensandbox.config import ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import WriteEntry
from opensandbox.models.sandboxes import SandboxFilter

from tests.opensandbox_stage import KEY, address, opened

__all__ = ["address", "opened"]
pytestmark = [pytest.mark.root, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def whole_life(connection: ConnectionConfigSync) -> None:
    with SandboxSync.create("x", metadata={"a": "1"}, connection_config=connection) as sandbox:
        sandbox.files.write_files(
            [WriteEntry(path="/work/a", data="sync"), WriteEntry(path="/work/b", data=b"\x00\xff")]
        )
        assert sandbox.files.read_bytes("/work/b") == b"\x00\xff"
        failed = sandbox.commands.run("cat /work/a; echo err >&2; exit 4")
        assert (failed.text, failed.exit_code, [line.text for line in failed.logs.stderr]) == ("sync", 4, ["err"])
        background = sandbox.commands.run("echo done", opts=RunCommandOpts(background=True))
        assert background.id is not None
        deadline = time.monotonic() + 60
        while sandbox.commands.get_command_status(background.id).running:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert sandbox.commands.get_background_command_logs(background.id).content == "done\n"
        shell = sandbox.commands.create_session()
        sandbox.commands.run_in_session(shell, "export A=1; cd /usr")
        assert sandbox.commands.run_in_session(shell, "echo $A $PWD").text == "1 /usr"
        assert sandbox.get_metrics().memory_used_in_mib > 0
        endpoint = sandbox.get_endpoint(44772)
        headers = {**(endpoint.headers or {}), "OPEN-SANDBOX-API-KEY": KEY}
        assert httpx.get(f"http://{endpoint.endpoint}/ping", headers=headers).status_code == 200
        sandbox.renew(timedelta(minutes=20))
        point = sandbox.create_snapshot("p")
        sandbox.pause()
        with pytest.raises(SandboxApiException) as paused:
            sandbox.commands.run("true")
        assert paused.value.status_code == 409
        again = SandboxSync.resume(sandbox.id, connection_config=connection)
        assert again.commands.run("echo again").text == "again"
        again.close()
        manager = SandboxManagerSync.create(connection_config=connection)
        known = manager.list_sandbox_infos(SandboxFilter(metadata={"a": "1"})).sandbox_infos
        assert [info.id for info in known] == [sandbox.id]
        manager.delete_snapshot(point.id)
        manager.close()
        sandbox.kill()
        with pytest.raises(SandboxApiException) as gone:
            sandbox.get_info()
        assert gone.value.status_code == 404


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
async def test_a_whole_life(address: str, proxied: bool) -> None:
    connection = ConnectionConfigSync(domain=address, api_key=KEY, protocol="http", use_server_proxy=proxied)
    await asyncio.to_thread(whole_life, connection)
