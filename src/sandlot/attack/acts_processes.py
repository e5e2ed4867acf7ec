"""Signals, working directories, orphans and output: what processes of a session do to others."""

import asyncio
from pathlib import Path

from sandlot.attack.arena import Arena, run_call
from sandlot.attack.rows import ATTEMPT, ROOT, USER
from sandlot.attack.verdicts import Escaped, Leaked, demand
from sandlot.model import CallRequest, InvalidArgument, SandlotError, SessionState, limits

_BORN = "cut -d' ' -f22 /proc/1/stat"
_ORPHANS = 20_000
_SETTLE_S = 60.0
_ZOMBIES_MAX = 10  # some may be on their way at any moment
_GROWTH_BYTES_MAX = 300 * limits.MIB


async def kill_everybody(arena: Arena) -> None:
    async with arena.fresh() as session:
        born = (await arena.sh(_BORN, ROOT, session)).text
        await arena.sh("for number in $(seq 64); do kill -$number 1; done 2>/dev/null; true", ROOT, session)
        for user in (USER, ROOT):
            await arena.sh("kill -9 -1; kill -9 -- -1 -2 -2147483647; true", user, session)
            await arena.sh(f"kill -9 {arena.bait.pid}; kill -9 -{arena.bait.pid}; true", user, session)
        demand((await arena.sh(_BORN, ROOT, session)).text == born, "pid 1 of the session was ended from inside")


async def working_directories(arena: Arena) -> None:
    """A descriptor that is still open when the child changes its directory would be a way out (CVE-2024-21626)."""
    ways = ("/proc/1/root", "/proc/1/cwd", "/proc/1/fd/3", *(f"/proc/self/fd/{number}" for number in range(3, 20)))
    for user in (ROOT, USER):
        for cwd in ways:
            try:
                said = await run_call(arena.host, CallRequest(arena.session, ("pwd",), cwd=cwd, user=user))
            except InvalidArgument:
                continue
            raise Escaped(f"{user} stands in {cwd}, which is {said.text}")
    for cwd in ("/proc/self/root", "/proc/self/cwd", "/proc/self/cwd/.."):
        request = CallRequest(arena.session, ("stat", "-c", "%d:%i", "."), cwd=cwd, user=ROOT)
        own = (await arena.sh("stat -c %d:%i / /workspace")).text.split()
        demand((await run_call(arena.host, request)).text in own, f"{cwd} lies outside of the session")


_OVERWRITE = """
import os, time
open("/workspace/looking", "w").close()
seen = wrote = 0
end = time.monotonic() + 60
while time.monotonic() < end and not os.path.exists("/workspace/stop"):
    for name in os.listdir("/proc"):
        if not name.isdigit(): continue
        try:
            if "sandlot" not in os.readlink(f"/proc/{name}/exe"): continue
            seen += 1
            fd = os.open(f"/proc/{name}/exe", os.O_RDWR)
            os.pwrite(fd, b"X", 0)
            wrote += 1
        except OSError: pass
print(wrote)
"""


async def overwrite_runtime(arena: Arena) -> None:
    """Until its exec a child runs the keeper's program. Whoever could write that would own every session."""
    host = arena.host
    async with arena.fresh() as session:
        await arena.sh("printf '#!/proc/self/exe\\n' >/workspace/exe; chmod 755 /workspace/exe", ROOT, session)
        looking = asyncio.create_task(arena.py(_OVERWRITE, ROOT, session, 90))
        await arena.sh("until test -e /workspace/looking; do sleep 0.05; done", ROOT, session)
        for _round in range(50):
            for argv in (("/proc/self/exe", "version"), ("/workspace/exe", "version"), ("true",)):
                await run_call(host, CallRequest(session, argv, user=ROOT, timeout_s=20))
        await arena.sh("touch /workspace/stop", ROOT, session)
        wrote = (await looking).text
        demand(wrote == "0", f"the keeper's program was written {wrote} times")


_STOPPER = """
import os, signal, time
until = time.monotonic() + 1.5
while time.monotonic() < until:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try: os.kill(int(name), signal.SIGSTOP)
            except OSError: pass
"""


async def wedge_pid_one(arena: Arena) -> None:
    """Afterwards the session takes calls, or it has failed and says why; it never just hangs."""
    async with arena.fresh() as session:
        await arena.sh("kill -STOP 1; kill -TSTP 1; kill -TTIN 1", ROOT, session)
        stopper = asyncio.create_task(arena.py(_STOPPER, USER, session))
        calls = [CallRequest(session, ("true",), user=USER, timeout_s=1) for _ in range(10)]
        await asyncio.gather(*(run_call(arena.host, call) for call in calls), return_exceptions=True)
        await stopper
        full = CallRequest(session, ("sh", "-c", "head -c 8000000 /dev/zero"), user=USER, timeout_s=20)
        async with arena.host.call(full):
            pass  # nobody reads what it says
        storm = "for _ in $(seq 300); do sleep 30 & done; wait"
        await run_call(arena.host, CallRequest(session, ("sh", "-c", storm), user=USER, timeout_s=2))
        await _answers_or_says_why(arena, session)


async def _answers_or_says_why(arena: Arena, session: str) -> None:
    try:
        async with asyncio.timeout(limits.GUEST_DEADLINE_S * 3):
            said = await arena.sh("echo alive", ROOT, session)
        demand(said.text == "alive", f"the session answers wrongly: {said.text[:100]!r}")
    except (SandlotError, TimeoutError):
        info = await arena.host.get(session)
        demand(
            info.state is SessionState.FAILED and bool(info.reason), f"the session is {info.state}, without a reason"
        )


async def output_flood(arena: Arena) -> None:
    before = _memory_bytes()
    async with arena.fresh() as session:
        kept = limits.MIB
        for script in ("head -c 268435456 /dev/zero", "head -c 33554432 /dev/zero | tr '\\0' x"):
            request = CallRequest(session, ("sh", "-c", script), user=USER, output_bytes_max=kept, timeout_s=60)
            said = await run_call(arena.host, request)
            demand(len(said.stdout) <= kept, f"{len(said.stdout)} bytes of output were kept, and {kept} are the limit")
            demand(said.result.truncated and said.result.stdout_bytes >= 1 << 25, "the cut is not told")
        endless = CallRequest(session, ("yes",), user=USER, output_bytes_max=kept, timeout_s=1)
        demand((await run_call(arena.host, endless)).result.exit_code == 124, "endless output did not end in time")
        async with arena.host.call(CallRequest(session, ("yes",), user=USER, timeout_s=60)):
            pass  # the reader leaves at once
        await _until_gone(arena, session, "yes")
    grown = _memory_bytes() - before
    demand(grown < _GROWTH_BYTES_MAX, f"the engine grew by {grown >> 20} MiB")


async def _until_gone(arena: Arena, session: str, name: str) -> None:
    script = f"for _ in $(seq 600); do pgrep -x {name} >/dev/null || exit 0; sleep 0.05; done; exit 1"
    if (await arena.sh(script, ROOT, session)).result.exit_code:
        raise Leaked(f"{name} runs on, though whoever started it has left")


def _memory_bytes() -> int:
    """Of this process: the engine is in it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def orphans(arena: Arena) -> None:
    async with arena.fresh() as session:
        await arena.sh(f"{ATTEMPT} orphans {_ORPHANS}", USER, session)
        count = "grep -c '^State:.Z' /proc/[0-9]*/status 2>/dev/null | grep -c ':1$'"
        give_up = asyncio.get_running_loop().time() + _SETTLE_S
        while (left := int((await arena.sh(count, ROOT, session)).text or 0)) > _ZOMBIES_MAX:
            if asyncio.get_running_loop().time() > give_up:
                raise Leaked(f"{left} processes that have ended are not reaped")
            await asyncio.sleep(0.1)
