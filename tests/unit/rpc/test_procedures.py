"""The procedures that the original has are here by their names, and are answered in JSON."""

import asyncio
import http.client
import json
from urllib.parse import urlsplit

import pytest

from sandlot.fakes.host import FakeHost
from sandlot.rpc.messages import PROCEDURES
from tests.unit.rpc.serving import serving

# Of `/rpc.v1.SandboxService/`.
OF_THE_ORIGINAL = (
    *("CreateSession", "GetSession", "PauseSession", "ResumeSession", "DestroySession"),
    *("LaunchProcess", "KillProcess", "GetProcessStatus"),
    *("ExecuteTool", "ExecuteToolStream", "TurnComplete", "CreateSnapshot", "RollbackSession", "ListSnapshots"),
    "HealthCheck",
)
SESSION = {"sessionId": "s-none"}
TOOL = SESSION | {"tool": "bash", "arguments_json": "{}"}
ASKED = {
    "CreateSession": {"labels": {"a": "b"}},
    "PauseSession": SESSION,
    "HealthCheck": {},
    "LaunchProcess": SESSION | {"argv": ["true"]},
    "KillProcess": SESSION | {"processId": "p-1", "signal": 15},
    "GetProcessStatus": SESSION | {"processId": "p-1"},
    "ExecuteTool": TOOL,
    "ExecuteToolStream": {"request": TOOL},
    "TurnComplete": SESSION,
    "CreateSnapshot": SESSION | {"name": "one"},
    "RollbackSession": SESSION | {"to": "one"},
}


def test_there_are_fifteen() -> None:
    assert len(set(OF_THE_ORIGINAL)) == 15


@pytest.mark.parametrize("name", OF_THE_ORIGINAL)
async def test_it_is_answered(name: str) -> None:
    """What needs a session is told that there is none, in the form of Connect; more fields than we know do no harm."""
    procedure = PROCEDURES[name]
    async with serving(FakeHost()) as server:
        url = urlsplit(server.url)
        assert url.port, "it listens on TCP"
        document = json.dumps(ASKED.get(name, SESSION) | {"ofAnotherVersion": [1, {"x": None}]}).encode()
        kind, body = "application/json", document
        if procedure.gives_stream:
            kind, body = "application/connect+json", b"\0" + len(document).to_bytes(4, "big") + document

        def ask() -> tuple[int, str | None, bytes]:
            connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
            connection.request("POST", procedure.path, body, {"content-type": kind})
            answer = connection.getresponse()
            told = answer.status, answer.getheader("x-api-version"), answer.read()
            connection.close()
            return told

        status, version, said = await asyncio.to_thread(ask)
    assert version == "1"
    if name in ("CreateSession", "HealthCheck"):
        assert status == 200
        assert json.loads(said)
    elif procedure.gives_stream:
        assert status == 200
        assert b'"not_found"' in said, "the last envelope has the error"
    else:
        assert status == 404
        told = json.loads(said)
        assert told["code"] == "not_found"
        assert told["details"]
