"""`import sandlot` is cheap and works everywhere: no engine, no event loop, no thread, nothing of Linux."""

import subprocess
import sys

import pytest

# A client needs none of these. Each is slow to import, or not there on other systems.
BANNED = {
    *("_ctypes", "asyncio", "concurrent.futures", "ctypes", "fcntl", "grp", "logging", "pty", "pwd", "resource"),
    *("selectors", "socket", "sqlite3", "ssl", "subprocess", "termios", "tty", "uvloop"),
    *("sandlot.cli", "sandlot.host", "sandlot.wiring", "sandlot.sdk.portal", "sandlot.sdk.engines", "sandlot.rpc"),
    *("connectrpc", "httptools", "hypercorn", "opentelemetry", "prometheus_client", "protobuf", "pyqwest", "uvicorn"),
}

QUIET = """
import os, sys, threading
def look(): return set(os.listdir("/proc/self/fd")), threading.enumerate()
before = look()
import sandlot
sandlot.Client(data_dir="nowhere") if sys.argv[1] == "client" else None
assert look() == before, look()
assert not os.path.exists("nowhere")
"""

ELSEWHERE = """
import os, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"fcntl", "termios", "grp", "pwd", "resource", "pty", "tty", "uvloop", "sqlite3"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
sys.platform = sys.argv[1]
missing = ["pidfd_open", "memfd_create", "posix_spawn"]
if sys.platform == "win32":
    missing += ["register_at_fork", "fork", "geteuid", "getuid"]
for name in missing:
    delattr(os, name)
import sandlot
"""


def python(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=30)


def test_only_what_a_client_needs_is_imported() -> None:
    ran = python("import sandlot, sys; print(*sys.modules)")
    loaded = set(ran.stdout.split())
    assert "sandlot.sdk.sync" in loaded
    assert BANNED & loaded == set()


@pytest.mark.parametrize("with_client", ["import", "client"])
def test_nothing_is_started_and_nothing_opened(with_client: str) -> None:
    ran = python(QUIET, with_client)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_it_imports_on_other_systems(platform: str) -> None:
    ran = python(ELSEWHERE + "print(sandlot.Sandbox, sandlot.AsyncSandbox)", platform)
    assert ran.returncode == 0, ran.stderr


def test_the_engine_says_that_it_needs_linux() -> None:
    attempt = """
try:
    sandlot.Sandbox.create(client=sandlot.Client(data_dir="nowhere"))
except sandlot.CapabilityNotSupported as error:
    print(error)
assert not os.path.exists("nowhere")
"""
    ran = python(ELSEWHERE + attempt, "darwin")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == ("host 'embedded' does not run on darwin (the engine needs Linux; elsewhere use a server)\n")
