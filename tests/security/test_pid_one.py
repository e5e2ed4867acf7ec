"""Pid 1 of a session: what root inside can send it, and what of the host can be reached through it."""

import time
from pathlib import Path

import pytest

from sandlot.model import CallRequest, InvalidArgument
from tests.security.stage import ROOT, USER, Stage

pytestmark = pytest.mark.root

BORN = "cut -d' ' -f22 /proc/1/stat"


@pytest.fixture(scope="module")
def session(stage: Stage) -> str:
    return stage.create()


def test_signals_from_inside_do_nothing(stage: Stage, session: str) -> None:
    born = stage.shell(session, BORN)
    stage.shell(session, "for number in $(seq 64); do kill -$number 1; done 2>/dev/null; true")
    assert stage.shell(session, BORN) == born


def test_killing_everybody_leaves_pid_one_and_the_host(stage: Stage, session: str) -> None:
    born = stage.shell(session, BORN)
    host = Path("/proc/1/stat").read_text().split()[21]
    stage.shell(session, "sleep 60 & kill -9 -1; wait $!; test $? = 137")
    assert stage.shell(session, BORN) == born
    assert Path("/proc/1/stat").read_text().split()[21] == host


@pytest.mark.parametrize("user", [ROOT, USER])
@pytest.mark.parametrize(
    "cwd", ["/proc/1/root", "/proc/1/cwd", *(f"/proc/self/fd/{number}" for number in range(3, 12)), "/proc/1/fd/3"]
)
def test_no_working_directory_outside(stage: Stage, session: str, cwd: str, user: str) -> None:
    """A descriptor that is still open at chdir would be a way out."""
    with pytest.raises(InvalidArgument):
        stage.run(CallRequest(session, ("pwd",), cwd=cwd, user=user))


@pytest.mark.parametrize("cwd", ["/proc/self/root", "/proc/self/cwd", "/proc/self/cwd/.."])
def test_own_links_end_in_the_session(stage: Stage, session: str, cwd: str) -> None:
    """Before its exec the child stands where pid 1 stands: that must be the session's root."""
    ran = stage.run(CallRequest(session, ("stat", "-c", "%d:%i", "."), cwd=cwd, user=ROOT))
    root, workspace = stage.shell(session, "stat -c %d:%i / /workspace").split()
    assert ran.stdout.decode().strip() in (root, workspace), ran


@pytest.mark.parametrize("user", [ROOT, USER])
@pytest.mark.parametrize("name", ["/proc/self/exe", "/proc/thread-self/exe", "/workspace/script"])
def test_program_file_of_pid_one_shows_nothing_of_the_host(stage: Stage, session: str, name: str, user: str) -> None:
    """Until its exec a child is still the keeper's program, and may run that. It is a sealed copy in memory: no path
    and no mount of the host, nothing that anyone could write."""
    stage.place(session, "/workspace/script", b"#!/proc/self/exe\n")
    ran = stage.run(CallRequest(session, (name, "version"), user=user))
    assert ran.stdout.startswith(b"keeper") or ran.exit_code in (2, 126, 127), ran
    keeper = stage.host.keeper_pid
    guests = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    assert {str(Path(f"/proc/{guest}/exe").readlink()) for guest in guests} == {"/memfd:sandlot (deleted)"}


@pytest.mark.parametrize("name", ["/proc/1/exe", "/proc/1/root/bin/true", "/proc/1/cwd/bin/true", "/proc/self/fd/3"])
def test_no_program_through_pid_one(stage: Stage, session: str, name: str) -> None:
    ran = stage.run(CallRequest(session, (name, "version"), user=ROOT))
    assert ran.exit_code in (126, 127), ran


def test_leased_program_does_not_hold_up_other_calls(stage: Stage) -> None:
    session = stage.create()
    holder = (
        "import fcntl, os, signal, time\n"
        "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
        "fcntl.fcntl(os.open('/workspace/leased', os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
        "print(1, flush=True)\n"
        "time.sleep(2)\n"
    )
    stage.place(session, "/workspace/holder.py", holder.encode())
    stage.shell(
        session,
        "cp /bin/true leased; setsid python3 holder.py >told & while ! grep -q 1 told; do sleep 0.02; done",
        USER,
    )
    leased = stage.begin(CallRequest(session, ("/workspace/leased",), user=USER))
    time.sleep(0.1)
    began = time.monotonic()
    stage.shell(session, "true")
    took = time.monotonic() - began
    leased.result()
    assert took < 1


STOPPER = """
import os, signal, time
until = time.monotonic() + 3
open("/tmp/stopping", "w").close()
while time.monotonic() < until:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try:
                os.kill(int(name), signal.SIGSTOP)
            except OSError:
                pass
"""


def test_stopping_children_before_their_exec_does_not_stop_pid_one(stage: Stage) -> None:
    session = stage.create()
    stopper = stage.begin(CallRequest(session, ("python3", "-c", STOPPER), user=USER))
    stage.shell(session, "until [ -e /tmp/stopping ]; do sleep 0.01; done")
    stopped = [stage.begin(CallRequest(session, ("true",), user=USER, timeout_s=1)) for _ in range(20)]
    began = time.monotonic()
    assert stage.shell(session, "echo alive", ROOT) == "alive\n"
    assert time.monotonic() - began < 2.5
    assert {call.result().exit_code for call in stopped} <= {0, 124}
    assert stopper.result().exit_code == 0
