"""The guide to adding an environment was followed: its code, taken from it, passes the suites over SSH."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "add-an-environment.md"
LINES_MAX = 150
PIECE = 64 * 1024


def code_of_the_guide() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    found = [block for block in blocks if "class SshVendor" in block]
    assert len(found) == 1
    return found[0]


async def shell(home: Path, process: "asyncssh.SSHServerProcess[bytes]") -> None:
    """One channel: a shell of this machine. When the channel is closed it runs on, as with other servers."""
    ran = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", process.command or "exit 1"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        start_new_session=True,
    )
    assert ran.stdin
    assert ran.stdout
    assert ran.stderr
    feeding = asyncio.create_task(feed(process, ran.stdin))
    try:
        await asyncio.gather(tell(ran.stdout, process.stdout), tell(ran.stderr, process.stderr))
        code = await ran.wait()
    finally:
        feeding.cancel()
        await asyncio.wait([feeding])
    if not process.is_closing():
        process.exit(code if code >= 0 else 128 - code)


async def feed(process: "asyncssh.SSHServerProcess[bytes]", pipe: asyncio.StreamWriter) -> None:
    try:
        while data := await process.stdin.read(PIECE):
            pipe.write(data)
            await pipe.drain()
    except (OSError, asyncssh.Error):
        pass
    finally:
        pipe.close()


async def tell(pipe: asyncio.StreamReader, channel: "asyncssh.SSHWriter[bytes]") -> None:
    is_there = True
    while data := await pipe.read(PIECE):
        try:
            if is_there:
                channel.write(data)
                await channel.drain()
        except (OSError, asyncssh.Error):
            is_there = False


@asynccontextmanager
async def machine(place: Path) -> AsyncGenerator[dict[str, str]]:
    """A machine that is reached by SSH, on loopback, with keys that were made for it."""
    for name in ("host", "client"):
        key: Any = asyncssh.generate_private_key("ssh-ed25519")  # pyright: ignore[reportUnknownMemberType]
        key.write_private_key(place / name)
        key.write_public_key(place / f"{name}.pub")
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[place / "host"],
        authorized_client_keys=str(place / "client.pub"),
        process_factory=partial(shell, place),
        encoding=None,
    )
    port = server.get_port()
    (place / "known").write_text(f"[127.0.0.1]:{port} {(place / 'host.pub').read_text()}")
    try:
        yield {
            "SSH_VENDOR_HOST": "127.0.0.1",
            "SSH_VENDOR_PORT": str(port),
            "SSH_VENDOR_KEY": str(place / "client"),
            "SSH_VENDOR_KNOWN_HOSTS": str(place / "known"),
            "SSH_VENDOR_DIRECTORY": str(place / "sandboxes"),
        }
    finally:
        server.close()
        await server.wait_closed()


def test_the_code_of_the_guide_is_short() -> None:
    assert len(code_of_the_guide().splitlines()) <= LINES_MAX


@pytest.mark.timeout(400)
async def test_who_follows_the_guide_has_an_environment(tmp_path: Path) -> None:
    """The command of the guide, in a process of its own, against a machine that is there."""
    (tmp_path / "ssh_vendor.py").write_text(code_of_the_guide())
    async with machine(tmp_path) as variables:
        ran = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "sandlot", "--json", "conform", "ssh_vendor:environments"),
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await ran.communicate()
    assert out, err.decode()
    document = json.loads(out)
    wrong = [
        (one["check"], one["detail"]) for one in document["outcomes"] if one["verdict"] in ("failed", "passes now")
    ]
    assert (wrong, document["kind"], ran.returncode) == ([], "environment", 0)
    assert list((tmp_path / "sandboxes").iterdir()) == []
