"""What one session can notice of another, and what it can take from all."""

import fcntl
import hashlib
import os
import secrets
import struct
from pathlib import Path

import pytest

from sandlot.host.storage.canonical import CANONICAL_ID
from tests.security.stage import ROOT, USER, Stage

pytestmark = pytest.mark.root

NS_GET_OWNER_UID = 0xB704

WATCH = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
libc.inotify_add_watch(watch, b"%path%", 0x23)
open("/workspace/watching", "w").close()
print(len(select.select([watch], [], [], 0.4)[0]))
"""
LOCK = """
import fcntl, os, time
file = os.open("%path%", os.O_RDONLY)
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
open("/workspace/locked", "w").close()
time.sleep(%seconds%)
"""
# Nodes and folders of /dev, which every session has for itself; and a program of the template, whose inode is the
# overlay's own.
PLACES = ["/dev/null", "/dev/empty", "/usr/bin/true", "/dev/shm", "/dev/pts", "/tmp"]


@pytest.fixture(scope="module")
def pair(stage: Stage) -> tuple[str, str]:
    return stage.create(), stage.create()


@pytest.mark.parametrize("path", PLACES)
def test_watches_see_nothing_of_others(stage: Stage, pair: tuple[str, str], path: str) -> None:
    first, second = pair
    stage.shell(first, "rm -f /workspace/watching", ROOT)
    watching = stage.begin_script(first, WATCH.replace("%path%", path), USER)
    stage.shell(first, "while ! test -e /workspace/watching; do sleep 0.01; done")
    stage.shell(second, f"test -d {path} && ls {path} >/tmp/x || cat {path} >/tmp/x")
    assert watching.result().stdout == b"0\n"


@pytest.mark.parametrize("path", PLACES)
def test_locks_hold_nobody_else(stage: Stage, pair: tuple[str, str], path: str) -> None:
    first, second = pair
    stage.shell(first, "rm -f /workspace/locked", ROOT)
    locking = stage.begin_script(first, LOCK.replace("%path%", path).replace("%seconds%", "0.5"), USER)
    stage.shell(first, "while ! test -e /workspace/locked; do sleep 0.01; done")
    ran = stage.begin_script(second, LOCK.replace("%path%", path).replace("%seconds%", "0"), ROOT).result()
    locking.result()
    assert ran.exit_code == 0, ran


def test_counts_of_the_kernel_are_not_those_of_the_hosts_root(stage: Stage, pair: tuple[str, str]) -> None:
    """The owner of a user namespace pays for what is used in it. Were it the host's root, one session could take all
    the inotify instances of the machine's root, without a privilege."""
    owners = {owner_of_user_namespace(stage, session) for session in pair}
    assert 0 not in owners
    assert len(owners) == len(pair)


def owner_of_user_namespace(stage: Stage, session: str) -> int:
    mark = f"mark-{secrets.token_hex(8)}"
    sleeping = stage.begin_script(session, f"import time; time.sleep(1)  # {mark}", USER)
    while not sleeping.done():
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark not in (folder / "cmdline").read_text(errors="replace") or int(folder.name) == os.getpid():
                    continue
                namespace = os.open(folder / "ns" / "user", os.O_RDONLY)
            except (FileNotFoundError, ProcessLookupError):
                continue
            try:
                answer = fcntl.ioctl(namespace, NS_GET_OWNER_UID, bytes(4))
            finally:
                os.close(namespace)
            sleeping.result()
            return int(struct.unpack("I", answer)[0])
    raise LookupError("the process of the session was not found on the host")


# ---- files -----------------------------------------------------------------------------------------------------

MUTATIONS = {
    "append": "echo x >>%file%",
    "truncate": ": >%file%",
    "mode and then data": "chmod 777 %file%; echo x >>%file%",
    "owner and then data": "chown user %file%; echo x >>%file%",
    "through a link": "ln %file% /usr/bin/linked; echo x >>/usr/bin/linked; chmod 700 /usr/bin/linked",
    "through memory": 'python3 -c \'import mmap; f = open("%file%", "r+b"); mmap.mmap(f.fileno(), 0)[0:1] = b"x"\'',
    "times": "touch -d 2001-01-01 %file%",
    "removal": "rm %file%",
}


@pytest.mark.parametrize("how", MUTATIONS)
def test_programs_of_the_host_stay_as_they_are(stage: Stage, how: str) -> None:
    """The template's programs are hard links to the host's: a write must copy, always."""
    session = stage.create()
    program = Path("/usr/bin/env")
    before = (hashlib.sha256(program.read_bytes()).digest(), program.stat().st_mode, program.stat().st_mtime_ns)
    stage.shell(session, MUTATIONS[how].replace("%file%", str(program)))
    after = (hashlib.sha256(program.read_bytes()).digest(), program.stat().st_mode, program.stat().st_mtime_ns)
    assert after == before
    stage.wait(stage.host.destroy(session))


def test_files_on_disk_never_belong_to_the_hosts_root(stage: Stage, pair: tuple[str, str]) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    stage.shell(
        pair[0],
        f"cp /bin/sh {mark}-root; chmod 6755 {mark}-root; cp /bin/sh {mark}-user; chown 65534:65535 {mark}-user;"
        f" mkdir {mark}-folder; mkfifo {mark}-fifo",
    )
    found = {path.name: path.lstat() for path in stage.data.rglob(f"{mark}-*")}
    assert len(found) == 4
    assert {status.st_uid - CANONICAL_ID for status in found.values()} == {0, 65534}
    assert {status.st_gid - CANONICAL_ID for status in found.values()} == {0, 65535}
    assert stage.data.stat().st_mode & 0o077 == 0
