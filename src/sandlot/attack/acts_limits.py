"""What a session could use up for everybody. Every attempt is bounded: a limit that is missing costs little."""

from sandlot.attack.arena import Arena
from sandlot.attack.rows import ROOT, USER
from sandlot.attack.verdicts import demand
from sandlot.model import CallRequest, LimitHit, Resources, SessionSpec, SessionState, limits

SHM_MIB_MAX = 64
SHM_FILES_MAX = 16384
TERMINALS_MAX = 512

_FILL_SHM = """
import os
mib = files = 0
try:
    with open("/dev/shm/large", "wb", 0) as file:
        while mib < %mib%: file.write(bytes(1 << 20)); mib += 1
except OSError: pass
os.unlink("/dev/shm/large")
try:
    while files < %files%: os.close(os.open(f"/dev/shm/{files}", os.O_CREAT | os.O_WRONLY)); files += 1
except OSError: pass
print(mib, files)
"""


async def fill_shared_memory(arena: Arena) -> None:
    script = _FILL_SHM.replace("%mib%", str(SHM_MIB_MAX + 32)).replace("%files%", str(SHM_FILES_MAX + 100))
    async with arena.fresh() as session:
        mib, files = map(int, (await arena.py(script, ROOT, session)).text.split())
    demand(mib <= SHM_MIB_MAX, f"{mib} MiB of the machine's memory were taken by /dev/shm")
    demand(files <= SHM_FILES_MAX, f"{files} files were made in /dev/shm")


_OPEN_TERMINALS = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (900, 900))
count = 0
try:
    while count < 700: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY); count += 1
except OSError: pass
print(count)
"""


async def open_terminals(arena: Arena) -> None:
    """The machine has a few thousand for all sessions together."""
    async with arena.fresh() as session:
        count = int((await arena.py(_OPEN_TERMINALS, USER, session)).text)
    demand(count <= TERMINALS_MAX, f"one session has {count} terminals")


_HOLD = """
import time
open("/workspace/took", "w").close()
time.sleep(120)
"""
_TAKE_WATCHES = """
import ctypes
libc = ctypes.CDLL(None)
count = 0
while count < %count% and libc.inotify_init() >= 0: count += 1
print(count)
"""


async def take_watches(arena: Arena) -> None:
    """The kernel counts these per user. Were all sessions one user to it, one of them could take them all."""
    async with arena.fresh() as greedy, arena.fresh() as other:
        holds = _TAKE_WATCHES.replace("%count%", "9000") + _HOLD
        async with arena.host.call(CallRequest(greedy, ("python3", "-c", holds), user=USER, timeout_s=120)):
            await arena.sh("until test -e /workspace/took; do sleep 0.05; done", USER, greedy)
            said = await arena.py(_TAKE_WATCHES.replace("%count%", "1"), USER, other)
    demand(said.text == "1", "one session has taken the watches of all")


# ---- limits that a session was given ------------------------------------------------------------------------------

_PIDS = 64
_FORKS = """
import os, signal
alive = []
try:
    while len(alive) < 300: alive.append(os.fork() or signal.pause())
except OSError: pass
print(len(alive))
for pid in alive: os.kill(pid, signal.SIGKILL)
"""


async def fork_bomb(arena: Arena) -> None:
    async with arena.fresh(SessionSpec(resources=Resources(pids=_PIDS))) as session:
        for user in (USER, ROOT):
            said = await arena.py(_FORKS, user, session)
            demand(said.text.isdigit() and int(said.text) < _PIDS, f"{said.text} processes, and the limit is {_PIDS}")
        await _goes_on(arena, session)


_MEMORY_BYTES = 64 * limits.MIB
_GROW = "x = bytearray(256 << 20); print(len(x))"
_GROW_FILE = "head -c 268435456 /dev/zero >/dev/shm/x; rm -f /dev/shm/x; true"


async def memory_bomb(arena: Arena) -> None:
    async with arena.fresh(SessionSpec(resources=Resources(memory_bytes=_MEMORY_BYTES))) as session:
        for user in (USER, ROOT):
            said = await arena.py(_GROW, user, session)
            demand(not said.text, f"a session of {_MEMORY_BYTES >> 20} MiB has taken 256 MiB")
            demand(said.result.limit is LimitHit.OOM, f"the result tells {said.result.limit}, not that memory ended")
        await _goes_on(arena, session)
        # Files in memory stay when who wrote them is ended: this session may be beyond help, and nobody else.
        await arena.sh(_GROW_FILE, USER, session)
        await _is_spared(arena)


async def _goes_on(arena: Arena, session: str) -> None:
    """The attacker's session takes calls or says why it does not, and the one beside is not touched."""
    info = await arena.host.get(session)
    if info.state is SessionState.ACTIVE:
        demand((await arena.sh("echo alive", USER, session)).text == "alive", "the session does not go on")
    else:
        demand(bool(info.reason), f"the session is {info.state} and does not tell why")
    await _is_spared(arena)


async def _is_spared(arena: Arena) -> None:
    demand((await arena.sh("echo alive")).text == "alive", "the session beside suffers")


_OPEN_FILES = 256
_OPEN = """
import os, resource
try: resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
except (OSError, ValueError): pass
count = 0
try:
    while count < 1000: os.open("/dev/null", os.O_RDONLY); count += 1
except OSError: pass
print(count)
"""


async def open_files(arena: Arena) -> None:
    async with arena.fresh(SessionSpec(resources=Resources(open_files=_OPEN_FILES))) as session:
        for user in (USER, ROOT):
            count = int((await arena.py(_OPEN, user, session)).text)
            demand(count < _OPEN_FILES, f"{user} has {count} files open, and the limit is {_OPEN_FILES}")


_SEEN = """
import os
total = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal"))
print(os.cpu_count(), len(os.sched_getaffinity(0)), total)
"""


async def views(arena: Arena) -> None:
    memory = 256 * limits.MIB
    async with arena.fresh(SessionSpec(resources=Resources(cpus=1, memory_bytes=memory))) as session:
        count, own, total = map(int, (await arena.py(_SEEN, USER, session)).text.split())
    demand((count, own) == (1, 1), f"a session of one processor sees {count}, and may use {own}")
    demand(total * 1024 <= memory, f"a session of {memory >> 20} MiB sees {total >> 10} MiB")


_SPIN_S = 2.0
_SPIN = """
import os, time
children = [os.fork() for _ in range(1)]
end = time.monotonic() + %seconds%
while time.monotonic() < end: pass
if children[0]: os.wait(); print(sum(os.times()[:4]))
"""


async def spin(arena: Arena) -> None:
    """Two processes that want everything. How little they get is the machine's business; that it is no more is ours."""
    async with arena.fresh(SessionSpec(resources=Resources(cpus=0.5))) as session:
        used = float((await arena.py(_SPIN.replace("%seconds%", str(_SPIN_S)), USER, session)).text)
    # The quota is given out in pieces, and a piece may have been under way.
    demand(used < 0.5 * _SPIN_S + 0.75, f"{used:.1f} s of processor time in {_SPIN_S:g} s, and half of it is the limit")
