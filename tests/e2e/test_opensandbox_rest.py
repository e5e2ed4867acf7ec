"""What of OpenSandbox is beside sandboxes, commands and files: through their SDK where it has words for it."""

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

import httpx
import pytest
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import NetworkRule, SandboxFilter

from sandlot.host.service import SandboxHostService
from sandlot.model import EventFilter
from tests.opensandbox_stage import KEY, address, connection, create, keep, manage, needs, opened, until

__all__ = ["address", "connection", "opened"]
pytestmark = [pytest.mark.root, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
HEADERS = {"OPEN-SANDBOX-API-KEY": KEY}


async def test_metadata_is_patched(connection: ConnectionConfig) -> None:
    needs(Sandbox, "patch_metadata")
    sandbox = await create(connection, metadata={"kept": "1", "changed": "1", "gone": "1"})
    manager = await manage(connection)
    changed = await sandbox.patch_metadata({"changed": "2", "new": "x", "gone": None, "never": None})
    assert changed.metadata == {"kept": "1", "changed": "2", "new": "x"}
    assert (await sandbox.patch_metadata({})).metadata == changed.metadata
    found = (await manager.list_sandbox_infos(SandboxFilter(metadata={"changed": "2"}))).sandbox_infos
    assert [info.id for info in found] == [sandbox.id]
    wrong: list[tuple[str, str | None]] = [("opensandbox.io/image", "x"), ("opensandbox.io/image", None), ("a b", "x")]
    wrong += [("a", "x y"), ("a", "x" * 64)]
    for key, value in wrong:
        with pytest.raises(SandboxApiException) as refused:
            await sandbox.patch_metadata({key: value})
        assert refused.value.status_code == 400
    info = await sandbox.get_info()
    assert info.metadata == changed.metadata
    assert info.image is not None
    assert info.image.image == "python:3.12", "what is kept beside it is as it was"
    await sandbox.kill()
    with pytest.raises(SandboxApiException) as gone:
        await sandbox.patch_metadata({"a": "b"})
    assert gone.value.status_code == 404


async def test_metrics_are_those_of_the_sandbox(address: str, connection: ConnectionConfig) -> None:
    sandbox = await create(connection, resource={"cpu": "1", "memory": "256Mi"})
    metrics = await sandbox.get_metrics()
    assert metrics.cpu_count == 1
    assert metrics.memory_total_in_mib == 256
    assert 0 < metrics.memory_used_in_mib < 256
    where = f"http://{address}/v1/sandboxes/{sandbox.id}/proxy/44772/metrics/watch"
    async with httpx.AsyncClient(headers=HEADERS, timeout=30) as client, client.stream("GET", where) as answer:
        lines = aiter(answer.aiter_lines())
        told: list[dict[str, Any]] = [json.loads(await anext(lines)) for _ in range(2)]
    assert [set(each) for each in told] == [
        {"cpu_count", "cpu_used_pct", "mem_total_mib", "mem_used_mib", "timestamp"}
    ] * 2
    assert told[0]["timestamp"] < told[1]["timestamp"]
    await sandbox.kill()


async def test_templates_are_told(host: SandboxHostService, connection: ConnectionConfig) -> None:
    models = pytest.importorskip("opensandbox.models.templates", reason="this SDK knows no templates")
    manager = await manage(connection)
    assert (await manager.list_templates(models.TemplateFilter())).template_infos == []
    with pytest.raises(SandboxApiException) as gone:
        await manager.get_template("nobody-made-this:latest")
    assert gone.value.status_code == 404


async def test_what_a_client_does_not_wait_for_any_more_is_ended(
    host: SandboxHostService, address: str, connection: ConnectionConfig
) -> None:
    sandbox = await create(connection)
    where = f"http://{address}/v1/sandboxes/{sandbox.id}/proxy/44772/command"
    body = {"command": "echo begun; sleep 4711"}
    async with (
        httpx.AsyncClient(headers=HEADERS, timeout=30) as client,
        client.stream("POST", where, json=body) as told,
    ):
        async for line in told.aiter_lines():
            if '"begun"' in line:
                break

    async def ended() -> bool:
        return all(call.result is not None for call in await host.calls(sandbox.id))

    await until(ended)
    await sandbox.kill()


async def test_addresses_are_signed_for_a_time(address: str, connection: ConnectionConfig) -> None:
    needs(Sandbox, "get_signed_endpoint")
    sandbox, other = await create(connection), await create(connection)
    ends = int(time.time()) + 600
    signed = await sandbox.get_signed_endpoint(44772, ends)
    async with httpx.AsyncClient(timeout=30) as client:
        assert (await client.get(f"http://{signed.endpoint}/ping")).status_code == 200, "without any header"
        forged = [
            signed.endpoint.replace(sandbox.id, other.id),
            signed.endpoint.replace("/44772", "/18080"),
            signed.endpoint.replace(str(ends), str(ends + 1)),
            signed.endpoint.replace(".sl_", ".sl_0"),
        ]
        for each in forged:
            answer = await client.get(f"http://{each}/ping")
            assert (answer.status_code, answer.json()["code"]) == (401, "INVALID_SIGNATURE")
        where = f"http://{address}/v1/sandboxes/{sandbox.id}/endpoints/44772"
        for wrong in ("1", "x", str(10**12), str(ends + 400 * 86400)):
            answer = await client.get(where, params={"expires": wrong}, headers=HEADERS)
            assert answer.status_code == 400, wrong
        both = await client.get(where, params={"expires": ends, "use_server_proxy": "true"}, headers=HEADERS)
        assert both.status_code == 400
        soon = (await client.get(where, params={"expires": int(time.time()) + 2}, headers=HEADERS)).json()["endpoint"]

        async def over() -> bool:
            return (await client.get(f"http://{soon}/ping")).status_code == 401

        await until(over)
    await sandbox.kill()
    await other.kill()


async def test_a_sandbox_of_a_template_has_its_policy_behind_the_key(connection: ConnectionConfig) -> None:
    needs(Sandbox, "create_from_template")
    sandbox = await keep(
        Sandbox.create_from_template("builtin", timeout=timedelta(minutes=5), connection_config=connection)
    )
    assert (await sandbox.get_egress_policy()).default_action == "deny"
    with pytest.raises(SandboxApiException):
        await sandbox.patch_egress_rules([NetworkRule(action="allow", target="example.com")])
    await sandbox.kill()


async def test_diagnostics(address: str, connection: ConnectionConfig) -> None:
    needs(Sandbox, "get_diagnostic_logs")
    sandbox = await create(connection, entrypoint=["sh", "-c", "echo printed; sleep 1000"])

    async def printed() -> bool:
        return "printed\n" in ((await sandbox.get_diagnostic_logs("container")).content or "")

    await sandbox.commands.run("echo seen")
    await until(printed)
    await sandbox.pause()
    where = f"http://{address}/v1/sandboxes/{sandbox.id}/diagnostics"
    async with httpx.AsyncClient(headers=HEADERS, timeout=30) as client:
        texts = {kind: (await client.get(f"{where}/{kind}")).text for kind in ("logs", "events", "inspect", "summary")}
    assert "echo seen" in texts["logs"]
    assert [line.split()[1] for line in texts["events"].splitlines()] == ["created", "active", "paused"]
    assert "state: Paused" in texts["inspect"]
    assert all(part in texts["summary"] for part in ("== inspect ==", "== events ==", "== logs =="))
    await sandbox.kill()


async def test_expiry_is_durable(host: SandboxHostService, connection: ConnectionConfig) -> None:
    sandbox = await create(connection, timeout=timedelta(seconds=60))
    assert (await sandbox.renew(timedelta(seconds=1))).expires_at is not None

    async def gone() -> bool:
        try:
            await sandbox.get_info()
        except SandboxApiException as error:
            return error.status_code == 404
        return False

    await until(gone)
    async with host.events(EventFilter(session_id=sandbox.id)) as events:
        assert [event.kind async for event in events][-2:] == ["expired", "destroyed"]


async def test_what_is_not_here_says_why(address: str, connection: ConnectionConfig) -> None:
    sandbox = await create(connection)
    inside = f"/sandboxes/{sandbox.id}/proxy"
    paths = ["/pools", f"{inside}/44772/v1/isolated/session", f"{inside}/44772/v1/isolated/session/x/files/upload"]
    paths.append(f"{inside}/18080/credential-vault")
    async with httpx.AsyncClient(headers=HEADERS, timeout=30) as client:
        answers = await asyncio.gather(*(client.post(f"http://{address}/v1{path}") for path in paths))
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(501, "NOT_SUPPORTED")] * 4
    needs(Sandbox, "credential_vault")
    with pytest.raises(SandboxApiException) as refused:
        await sandbox.credential_vault.get()
    assert refused.value.status_code == 501
    await sandbox.kill()
