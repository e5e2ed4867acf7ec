"""What a session could use up for everybody. Every attempt is bounded: a limit that is missing costs little."""

from sandlot.attack.arena import Arena
from sandlot.attack.rows import ROOT, USER
from sandlot.attack.verdicts import demand
from sandlot.model import CallRequest

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
