"""A session from create to destroy."""

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, SessionSpec
from tests.conftest import run

pytestmark = pytest.mark.root


async def test_a_command_runs_as_the_user_of_the_session(host: SandboxHostService) -> None:
    session = await host.create(SessionSpec())
    ran = await run(host, CallRequest(session.session_id, ("sh", "-c", "id -un; pwd; echo oops >&2; exit 3")))
    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, b"user\n/workspace\n", b"oops\n")
