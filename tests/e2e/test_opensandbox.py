"""The official SDK of OpenSandbox, unchanged, on our sessions."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from opensandbox import Sandbox, SandboxSync
from opensandbox.config import ConnectionConfig, ConnectionConfigSync
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import MoveEntry, SearchEntry, SetPermissionEntry, WriteEntry
from opensandbox.models.sandboxes import NetworkPolicy, SandboxFilter, SnapshotFilter

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import FileNotFound, SessionNotFound
from sandlot.opensandbox import AsyncOpenSandboxClient, FileUpload, OpenSandboxClient, SandboxOpts
from sandlot.wiring.embedded import build
from tests.opensandbox_stage import KEY, address, connection, create, keep, manage, needs, opened, serve, until

__all__ = ["address", "connection", "opened"]

pytestmark = [pytest.mark.root, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


async def test_a_whole_life(connection: ConnectionConfig) -> None:
    sandbox = await create(
        connection,
        timeout=timedelta(minutes=5),
        metadata={"team": "a"},
        env={"GIVEN": "yes"},
        resource={"cpu": "1", "memory": "256Mi"},
    )
    info = await sandbox.get_info()
    assert info.image is not None
    assert info.expires_at is not None
    assert (info.status.state, info.image.image, info.metadata) == ("Running", "python:3.12", {"team": "a"})
    assert timedelta(minutes=4) < info.expires_at - datetime.now(UTC) <= timedelta(minutes=5)
    assert (await sandbox.commands.run("echo $GIVEN $OPENSANDBOX_ID; pwd; id -u")).text == f"yes {sandbox.id}\n/\n0"
    renewed = await sandbox.renew(timedelta(minutes=30))
    assert renewed.expires_at - datetime.now(UTC) > timedelta(minutes=29)
    await sandbox.pause()
    assert (await sandbox.get_info()).status.state == "Paused"
    resumed = await keep(Sandbox.resume(sandbox.id, connection_config=connection))
    assert (await resumed.commands.run("echo again")).text == "again"
    await resumed.kill()
    with pytest.raises(SandboxApiException) as gone:
        await resumed.get_info()
    assert gone.value.status_code == 404


async def test_commands(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    run = sandbox.commands.run
    failed = await run("echo out; echo err >&2; exit 3")
    assert (failed.exit_code, failed.text, [line.text for line in failed.logs.stderr]) == (3, "out", ["err"])
    assert failed.error is not None
    assert failed.error.value == "3"
    lines = await run("printf 'a\\n\\n\\nb\\n\\nc'")
    assert lines.text == "a\n\n\nb\n\nc", "blank lines are not lost"
    assert (await run("pwd", opts=RunCommandOpts(working_directory="/usr"))).text == "/usr"
    ids = await run("id -u; id -g", opts=RunCommandOpts(uid=1234, gid=4321))
    assert ids.text == "1234\n4321"
    assert (await run("echo $X", opts=RunCommandOpts(envs={"X": "y z"}))).text == "y z"
    with pytest.raises(SandboxApiException) as wrong:
        await run("true", opts=RunCommandOpts(working_directory="/nowhere"))
    assert wrong.value.status_code == 400
    await sandbox.kill()


async def test_arguments_are_not_looked_at_by_a_shell(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    needs(sandbox.commands, "set_env")  # both came together
    assert (await sandbox.commands.run(["printf", "%s|", "a b", "$HOME"])).text == "a b|$HOME|"
    await sandbox.kill()


async def test_variables_that_are_set_for_good(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    needs(sandbox.commands, "set_env")
    await sandbox.commands.set_env("KEPT", 'it\'s "so"')
    assert (await sandbox.commands.run("echo $KEPT")).text == 'it\'s "so"'
    await sandbox.kill()


async def test_a_timeout_ends_all_that_a_command_began(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    slow = await sandbox.commands.run("sleep 4321 & sleep 4321", opts=RunCommandOpts(timeout=timedelta(seconds=0.5)))
    assert slow.exit_code == -1
    left = await sandbox.commands.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 4321' || true")
    assert left.text in ("1", "0"), "the grep's own shell at most"
    await sandbox.kill()


async def test_commands_in_the_background(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    commands = sandbox.commands
    background = RunCommandOpts(background=True)
    started = await commands.run(
        "echo one; echo two >&2; while [ ! -e /tmp/go ]; do sleep 0.05; done; exit 7", opts=background
    )
    command = started.id
    assert command is not None
    assert started.exit_code is None

    async def printed() -> bool:
        return len((await commands.get_background_command_logs(command)).content) == 8

    await until(printed)
    logs = await commands.get_background_command_logs(command)
    assert sorted(logs.content.splitlines()) == ["one", "two"]
    assert (await commands.get_background_command_logs(command, cursor=logs.cursor)).content == ""
    status = await commands.get_command_status(command)
    assert (status.running, status.exit_code) == (True, None)
    await commands.run("touch /tmp/go")

    async def ended() -> bool:
        return not (await commands.get_command_status(command)).running

    await until(ended)
    assert (await commands.get_command_status(command)).exit_code == 7
    endless = await commands.run("trap '' INT; sleep 1000", opts=background)
    assert endless.id is not None
    await commands.interrupt(endless.id)
    assert not (await commands.get_command_status(endless.id)).running
    with pytest.raises(SandboxApiException) as unknown:
        await commands.get_command_status("nobody")
    assert unknown.value.status_code == 404
    await sandbox.kill()


async def test_a_shell_keeps_its_place_and_its_streams_apart(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    commands = sandbox.commands
    shell = await commands.create_session(working_directory="/usr")
    assert (await commands.run_in_session(shell, "pwd; cd /tmp; export A=1; f() { echo f; }")).text == "/usr"
    again = await commands.run_in_session(shell, "pwd; echo $A; f; echo e >&2; false")
    assert (again.text, again.exit_code, [line.text for line in again.logs.stderr]) == ("/tmp\n1\nf", 1, ["e"])
    assert (await commands.run_in_session(shell, "pwd", working_directory="/var")).text == "/var"
    await commands.delete_session(shell)
    for wrong in (shell, "../../../etc/passwd"):
        with pytest.raises(SandboxApiException):
            await commands.run_in_session(wrong, "true")
    await sandbox.kill()


async def test_files(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    files = sandbox.files
    await files.write_files(
        [
            WriteEntry(path="/work/deep/a.txt", data="one\ntwo\nthree\n", mode=640, owner="daemon", group="daemon"),
            WriteEntry(path='/work/b "q".bin', data=bytes(range(256)) * 3000, mode=755),
            WriteEntry(path="/work/empty", data=b""),
        ]
    )
    info = (await files.get_file_info(["/work/deep/a.txt"]))["/work/deep/a.txt"]
    assert (info.size, info.mode, info.owner, info.group) == (14, 640, "daemon", "daemon")
    assert await files.read_file("/work/deep/a.txt") == "one\ntwo\nthree\n"
    assert await files.read_file("/work/deep/a.txt", offset=2, limit=1) == "two"
    assert await files.read_bytes('/work/b "q".bin') == bytes(range(256)) * 3000
    assert await files.read_bytes('/work/b "q".bin', range_header="bytes=10-19") == bytes(range(10, 20))
    assert await files.read_bytes("/work/empty") == b""
    found = await files.search(SearchEntry(path="/work", pattern="*.txt"))
    assert [entry.path for entry in found] == ["/work/deep/a.txt"]
    await files.create_directories([WriteEntry(path="/work/new/dir", mode=700)])
    assert (await files.get_file_info(["/work/new/dir"]))["/work/new/dir"].mode == 700
    await files.move_files([MoveEntry(source="/work/empty", destination="/work/x/y/moved")])
    with pytest.raises(SandboxApiException):
        await files.move_files([MoveEntry(source="/work/deep/a.txt", destination="/work/x/y/moved")])
    await files.set_permissions([SetPermissionEntry(path="/work/x/y/moved", mode=600)])
    assert (await files.get_file_info(["/work/x/y/moved"]))["/work/x/y/moved"].mode == 600
    await files.delete_files(["/work/x/y/moved", "/work/not/there"])
    await files.delete_directories(["/work/x"])
    with pytest.raises(SandboxApiException) as gone:
        await files.get_file_info(["/work/x"])
    assert gone.value.status_code == 404
    await sandbox.kill()


async def test_snapshots_outlive_their_sandbox(connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    await sandbox.files.write_file("/work/kept", "as it was")
    point = await sandbox.create_snapshot("before")
    await sandbox.files.write_file("/work/kept", "later")
    await sandbox.kill()
    manager = await manage(connection)
    assert [
        found.id for found in (await manager.list_snapshots(SnapshotFilter(sandbox_id=sandbox.id))).snapshot_infos
    ] == [point.id]
    assert (await manager.get_snapshot(point.id)).name == "before"
    assert (await manager.list_sandbox_infos(SandboxFilter())).sandbox_infos == [], "a snapshot is no sandbox"
    second = await keep(Sandbox.create(snapshot_id=point.id, connection_config=connection))
    assert await second.files.read_file("/work/kept") == "as it was"
    assert (await second.get_info()).snapshot_id == point.id
    await second.kill()
    await manager.delete_snapshot(point.id)
    with pytest.raises(SandboxApiException) as gone:
        await manager.get_snapshot(point.id)
    assert gone.value.status_code == 404


async def test_lists_have_filters_and_pages(connection: ConnectionConfig) -> None:
    made = [await create(connection, metadata={"n": str(number % 2)}) for number in range(3)]
    manager = await manage(connection)
    odd = await manager.list_sandbox_infos(SandboxFilter(metadata={"n": "1"}))
    assert [info.id for info in odd.sandbox_infos] == [made[1].id]
    page = await manager.list_sandbox_infos(SandboxFilter(states=["Running"], page=2, page_size=2))
    assert [info.id for info in page.sandbox_infos] == [made[0].id]
    assert (page.pagination.total_items, page.pagination.has_next_page) == (3, False)
    assert (await manager.list_sandbox_infos(SandboxFilter(states=["Terminated"]))).sandbox_infos == []
    for sandbox in made:
        await manager.kill_sandbox(sandbox.id)


async def test_what_cannot_be_enforced_makes_nothing(host: SandboxHostService, connection: ConnectionConfig) -> None:
    with pytest.raises(SandboxApiException) as refused:
        await create(connection, network_policy=NetworkPolicy(defaultAction="allow"))
    assert refused.value.status_code == 400
    assert "way out" in str(refused.value)
    closed = await create(connection, network_policy=NetworkPolicy(defaultAction="deny"))
    policy = await closed.get_egress_policy()
    assert policy.default_action == "deny"
    await closed.kill()


async def test_twenty_at_once(connection: ConnectionConfig) -> None:
    made = await asyncio.gather(*(create(connection) for _ in range(20)))
    answers = await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n, sandbox in enumerate(made)))
    assert [answer.text for answer in answers] == [str(number) for number in range(20)]
    await asyncio.gather(*(sandbox.kill() for sandbox in made))


async def test_the_sync_sdk(address: str) -> None:
    def work() -> str:
        connection = ConnectionConfigSync(domain=address, api_key=KEY, protocol="http", use_server_proxy=True)
        with SandboxSync.create("x", connection_config=connection) as sandbox:
            sandbox.files.write_file("/work/a", "sync")
            text = sandbox.commands.run("cat /work/a").text
            sandbox.kill()
            return text

    assert await asyncio.to_thread(work) == "sync"


async def test_a_restart_of_the_server_in_the_middle(settings: Settings) -> None:
    first, again = build(settings), build(settings)
    async with first, serve(first) as address:
        sandbox = await create(ConnectionConfig(domain=address, api_key=KEY, protocol="http"))
        opts = RunCommandOpts(background=True)
        background = await sandbox.commands.run("sleep 0.2; echo done > /work/done", opts=opts)
        await sandbox.files.write_file("/work/a", "kept")
        assert background.id is not None
        command = background.id
    async with again, serve(again) as address:
        connection = ConnectionConfig(domain=address, api_key=KEY, protocol="http")
        found = await keep(Sandbox.connect(sandbox.id, connection_config=connection))
        assert await found.files.read_file("/work/a") == "kept"

        async def ended() -> bool:
            return not (await found.commands.get_command_status(command)).running

        await until(ended)
        assert await found.files.read_file("/work/done") == "done\n"
        await found.kill()


async def test_strangers_get_nothing(address: str, connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    other = await create(connection)
    where = f"http://{address}/v1/sandboxes/{sandbox.id}"
    async with httpx.AsyncClient() as client:
        endpoint = (await client.get(f"{where}/endpoints/44772", headers={"OPEN-SANDBOX-API-KEY": KEY})).json()
        (header,) = endpoint["headers"].items()
        body = {"command": "true"}
        for headers in ({}, {header[0]: "x"}, {"OPEN-SANDBOX-API-KEY": "x"}, {header[0]: ""}):
            for path in ("/proxy/44772/command", "/proxy/18080/policy", "/proxy/80/"):
                assert (await client.post(where + path, json=body, headers=headers)).status_code == 401
        elsewhere = where.replace(sandbox.id, other.id)
        assert (
            await client.post(f"{elsewhere}/proxy/44772/command", json=body, headers=dict([header]))
        ).status_code == 401
        assert (await client.post(f"{where}/proxy/44772/command", json=body, headers=dict([header]))).status_code == 200
        for method, path in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/pause"),
            ("GET", "/endpoints/44772"),
            ("GET", "/no/such"),
        ):
            for headers in ({}, {"OPEN-SANDBOX-API-KEY": "x"}, dict([header])):
                answer = await client.request(method, where + path, headers=headers)
                assert (answer.status_code, set(answer.json())) == (401, {"code", "message"})
        assert (await client.get(f"http://{address}/health")).json() == {"status": "healthy"}
    await sandbox.kill()
    await other.kill()


async def test_hostile_requests_are_refused_in_their_words(address: str, connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    where = f"http://{address}/v1/sandboxes/{sandbox.id}"
    headers = {"OPEN-SANDBOX-API-KEY": KEY}
    bodies = [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a": NaN}',
        b"null",
        b"[]",
        b'{"command": 1}',
        b'{"command": "\\u0000"}',
        b"\xff",
    ]
    paths = ["", "/../..", "/proxy/44772/command", "/proxy/44772/session/..%2f..%2fx/run", "/proxy/44772/files/replace"]
    paths += [
        "/proxy/44772/files/mv",
        "/proxy/44772/files/upload",
        "/proxy/44772/directories",
        "/proxy/44772/files/permissions",
    ]
    paths += [
        "/renew-expiration",
        "/proxy/99999/x",
        "/proxy/18080/policy",
        "/snapshots",
        "/proxy/44772/files/search?path=%00",
    ]
    async with httpx.AsyncClient(timeout=30) as client:
        for path in paths:
            for body in bodies:
                for method in ("POST", "GET", "DELETE") if "proxy" in path else ("POST",):
                    answer = await client.request(method, where + path, content=body, headers=headers)
                    assert answer.status_code < 500 or answer.status_code == 501, (method, path, body, answer.text)
                    if answer.status_code >= 400:
                        assert {"code", "message"} <= set(answer.json()), (method, path, body)
        big = await client.post(f"http://{address}/v1/sandboxes", content=b"x" * (5 << 20), headers=headers)
        assert big.status_code == 429 or big.status_code == 413
    found = await sandbox.commands.run("echo alive")
    assert found.text == "alive"
    await sandbox.kill()


@pytest.mark.parametrize("api_key", [KEY, ""])
async def test_our_own_client(host: SandboxHostService, api_key: str) -> None:
    async with serve(host, api_key) as address, AsyncOpenSandboxClient(f"http://{address}/v1", api_key) as client:
        made = await client.create_sandbox(SandboxOpts("x", metadata={"a": "b"}))
        await client.wait_ready(made.sandbox_id)
        assert [found.sandbox_id for found in await client.list_sandboxes({"a": "b"})] == [made.sandbox_id]
        execd = await client.discover_execd(made.sandbox_id)
        await client.upload_files(execd, [FileUpload("/work/a", [b"1" * 100_000, b"2"]), FileUpload("/work/b", b"")])
        async with client.download_file(execd, "/work/a") as pieces:
            assert b"".join([piece async for piece in pieces]) == b"1" * 100_000 + b"2"
        result = await client.run_command(execd, "echo out; echo err >&2; printf 'no end'; exit 4", timeout_s=20)
        assert (result.stdout, result.stderr, result.exit_code) == ("out\nno end", "err\n", 4)
        with pytest.raises(FileNotFound):
            await client.file_info(execd, "/nowhere")
        assert [found.path for found in await client.search_files(execd, "/work", "b")] == ["/work/b"]
        point = await client.create_snapshot(made.sandbox_id)
        await client.delete_snapshot(point.snapshot_id)

        def work() -> str:
            with OpenSandboxClient(f"http://{address}/v1", api_key) as sync:
                where = sync.discover_execd(made.sandbox_id)
                return sync.run_command(where, ["cat", "/work/b"]).stdout + str(where.port)

        assert await asyncio.to_thread(work) == "44772"
        await client.delete_sandbox(made.sandbox_id)
        with pytest.raises(SessionNotFound):
            await client.get_sandbox(made.sandbox_id)


async def test_the_older_clients_words_are_understood(address: str) -> None:
    headers = {"OPEN-SANDBOX-API-KEY": KEY}
    async with httpx.AsyncClient(headers=headers, timeout=30) as client:
        body = {"image": {"uri": "x"}, "entrypoint": ["sh", "-c", "echo begun > /tmp/begun; sleep 100"], "timeout": 60}
        made = (await client.post(f"http://{address}/sandboxes", json=body | {"resource_limits": {"cpu": "1"}})).json()
        assert made["created_at"] == made["createdAt"]
        assert made["expires_at"]
        where = f"http://{address}/sandboxes/{made['id']}"
        url = (await client.get(f"{where}/endpoints/44772")).json()
        answer = await client.post(
            f"http://{url['endpoint']}/command", json={"command": "cat /tmp/begun"}, headers=url["headers"]
        )
        frames = [json.loads(frame) for frame in answer.text.split("\n\n") if frame]
        assert [frame["type"] for frame in frames] == ["init", "ping", "stdout", "execution_complete"]
        assert (frames[2]["data"], frames[3]["exitCode"]) == ("begun\n", 0)
        assert (await client.delete(where)).status_code == 204
