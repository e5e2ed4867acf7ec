"""Namespaces that are made before someone wants a session: it must not show."""

import os
import signal
from dataclasses import replace

import pytest

from sandlot.config.settings import Settings
from sandlot.host.runtimes.ahead import MADE_MAX
from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, Capability, Resources, SessionSpec
from sandlot.wiring.embedded import build
from tests.ahead import networks_ahead
from tests.conftest import clean_up, run
from tests.waiting import until

pytestmark = pytest.mark.root

# Whose it is, that loopback is up and takes a port of root's, and how many processes there may be.
LOOK = """
import os, signal, socket
print(os.readlink("/proc/self/ns/net"))
print(open("/proc/self/uid_map").read().split(), os.getuid())
with socket.create_server(("127.0.0.1", 80)) as server, socket.create_connection(("127.0.0.1", 80)):
    print("up")
alive = []
try:
    while len(alive) < 100:
        alive.append(os.fork() or signal.pause())
except OSError as error:
    print(error.errno)
print(len(alive))
for pid in alive:
    os.kill(pid, signal.SIGKILL)
"""


def networks(host: SandboxHostService) -> set[str]:
    return networks_ahead(host.keeper_pid)


async def look(host: SandboxHostService) -> tuple[str, list[str]]:
    """A new session, and what is seen in it as root; the network first."""
    session_id = (await host.create(SessionSpec())).session_id
    ran = await run(host, CallRequest(session_id, ("python3", "-c", LOOK), user="root"))
    assert ran.result.exit_code == 0, ran
    network, *rest = ran.stdout.decode().splitlines()
    return network, [session_id, *rest]


async def test_a_session_in_namespaces_made_ahead_is_like_any_other(settings: Settings) -> None:
    async with build(replace(settings, resources=Resources(pids=30))) as host:
        first, (session_id, *seen) = await look(host)
        assert first not in networks(host)
        assert await until(lambda: len(networks(host)) == 1), "the next one is expected"
        expected = networks(host)
        await host.destroy(session_id)
        assert await until(lambda: len(networks(host)) == 2)
        again = networks(host) - expected
        second, (other, *seen_now) = await look(host)
        assert {second} == again, "what was made ahead was not used"
        assert networks(host) == expected, "nobody but the session holds it"
        third, (_id, *seen_last) = await look(host)
        assert {third} == expected
        assert seen_now[:2] == seen[:2]
        assert seen_last[1] == seen[1] == "up"
        if Capability.LIMIT_PIDS in await host.capabilities():
            for error, alive in (seen[2:], seen_now[2:], seen_last[2:]):
                assert error == "11"
                assert int(alive) < 30  # the kernel counts those of other engines on this machine too
        await host.destroy(other)
        await clean_up(host)


async def test_a_keeper_that_dies_takes_them_with_it_and_nobody_notices(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = (await host.create(SessionSpec())).session_id
        assert await until(lambda: len(networks(host)) == 1)
        before = host.keeper_pid
        os.kill(before, signal.SIGKILL)
        assert await until(lambda: host.keeper_pid != before)
        for _time in range(3):
            other = (await host.create(SessionSpec())).session_id
            assert (await run(host, CallRequest(other, ("true",)))).result.exit_code == 0
        assert (await run(host, CallRequest(session_id, ("true",)))).result.exit_code == 0
        assert await until(lambda: len(networks(host)) == 1)
        await clean_up(host)


async def test_no_more_are_held_than_a_few(settings: Settings) -> None:
    async with build(settings) as host:
        made = [(await host.create(SessionSpec())).session_id for _ in range(2 * MADE_MAX)]
        for session_id in made:
            await host.destroy(session_id)
            assert await until(lambda: 2 <= len(networks(host)) <= MADE_MAX)
        for _time in range(2 * MADE_MAX):
            await host.create(SessionSpec())
        await clean_up(host)
