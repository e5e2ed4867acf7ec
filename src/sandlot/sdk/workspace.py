"""What the workspace of a new sandbox begins with: a directory of this machine, or a git repository.

A repository may belong to nobody we trust. Here it is only packed, by git's own bundle and with nothing of its settings
that runs a program; it is cloned inside the sandbox."""

import os
import re
import subprocess
from collections.abc import Generator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from sandlot.contracts import Host
from sandlot.model import (
    CallRequest,
    Capability,
    CapabilityNotSupported,
    FileNotFound,
    FileRemove,
    FileWrite,
    InvalidArgument,
    SandlotError,
    TreeDownload,
    TreeTally,
    TreeUpload,
    Unavailable,
)
from sandlot.sdk.ignoring import GitIgnore
from sandlot.sdk.packing import ahead, packed
from sandlot.sdk.unpacking import in_thread, unpack

_PIECE_BYTES = 1 << 20
_SAID_BYTES = 2000
_NO_PROGRAM = 127
_BUNDLE = "/tmp/.sandlot-workspace.bundle"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*::?//|[A-Za-z][A-Za-z0-9+.-]*::|[^/]+@[^/]+:")
_CLONE = """
set -e
git clone -q --no-hardlinks "$1" .
git fetch -q --update-head-ok "$1" 'refs/heads/*:refs/heads/*'
git remote remove origin
if [ -n "$2" ]; then git checkout -q "$2" --; fi
"""
# Nothing in a repository makes git run a program, or ask anyone for objects that it lacks.
_SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "core.pager=cat", "protocol.allow=never")
_ENVIRONMENT = ("GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0")


@dataclass(frozen=True, slots=True)
class Workspace:
    upload: str | None = None  # a directory
    ignore: bool = True  # what git would ignore is left out of it
    git: str | None = None  # PATH or PATH#REF

    def check(self) -> None:
        """What can be told before a sandbox is made. Raises SandlotError."""
        if self.upload is not None and self.git is not None:
            raise InvalidArgument("a workspace begins with a directory or with a repository", next_step="give one")
        if self.upload is not None and not os.path.isdir(self.upload):  # noqa: PTH112 - a path may hold any bytes
            raise FileNotFound(f"{self.upload}: there is no such directory", next_step="check the path")
        if self.git is not None:
            path, ref = repository(self.git)
            if ref.startswith("-"):
                raise InvalidArgument(f"{ref!r} is no name of a commit", next_step="give a branch, a tag or a commit")
            if not os.path.isdir(path):  # noqa: PTH112 - the same
                raise FileNotFound(f"{path}: there is no such directory", next_step="check the path")

    @property
    def is_empty(self) -> bool:
        return self.upload is None and self.git is None


def repository(text: str) -> tuple[str, str]:
    """The path of a repository, and what is to be checked out of it. Raises CapabilityNotSupported for an address."""
    if _URL.match(text) and not os.path.exists(text):  # noqa: PTH110 - a path may hold any bytes
        raise CapabilityNotSupported(
            f"{text.partition('#')[0]} is reached by a network, and sandboxes have none",
            next_step="clone it here, and give the path of the clone",
            capability=Capability.NETWORK,
        )
    if os.path.exists(text):  # noqa: PTH110 - the same
        return text, ""
    path, _, ref = text.rpartition("#") if "#" in text else (text, "", "")
    return path, ref


async def upload(host: Host, request: TreeUpload, local: str, *, ignore: bool, tally: TreeTally) -> TreeTally:
    """A directory of this machine into a sandbox. Raises SandlotError."""
    ignoring = GitIgnore(local) if ignore else None
    async with aclosing(packed(local, tally, ignoring)) as pieces:
        came = await host.upload_tree(request, pieces)
    came.skipped_count, came.skipped = tally.skipped_count, tally.skipped
    return came


async def download(host: Host, request: TreeDownload, local: str) -> TreeTally:
    """A directory of a sandbox into one of this machine, which is made when it is not there. Raises SandlotError."""
    tally = TreeTally()
    await in_thread(lambda: os.makedirs(local, exist_ok=True), local)  # noqa: PTH103 - a path may hold any bytes
    async with host.download_tree(request) as stream:
        await unpack(stream, local, (), tally)
    for path, why in stream.tally.skipped:
        tally.skip(path, why)
    tally.skipped_count += stream.tally.skipped_count - len(stream.tally.skipped)
    return tally


async def fill(host: Host, session_id: str, workspace: Workspace, tally: TreeTally) -> None:
    """Raises SandlotError; then some of it may be there."""
    if workspace.upload is not None:
        await upload(host, TreeUpload(session_id, "."), workspace.upload, ignore=workspace.ignore, tally=tally)
    if workspace.git is not None:
        path, ref = repository(workspace.git)
        await _clone(host, session_id, path, ref, tally)


async def _clone(host: Host, session_id: str, path: str, ref: str, tally: TreeTally) -> None:
    try:
        async with aclosing(ahead(_bundle(path, tally), path)) as pieces:
            await host.write_file(FileWrite(session_id, _BUNDLE, mode=0o600), pieces)
        request = CallRequest(session_id, ("sh", "-c", _CLONE, "sh", _BUNDLE, ref), timeout_s=None)
        async with host.call(request) as stream:
            said = b""
            async for event in stream:
                said = (said + getattr(event, "data", b""))[-_SAID_BYTES:]
            result = await stream.result()
    finally:
        with suppress(SandlotError):
            await host.remove_file(FileRemove(session_id, _BUNDLE))
    if result.exit_code != 0:
        words = said.decode(errors="replace").strip()
        raise InvalidArgument(
            f"git could not make the workspace: {words if words.isprintable() else ascii(words)}",
            next_step="check the name behind #; the template needs git",
        )


def _bundle(path: str, tally: TreeTally) -> Generator[bytes]:
    """All branches and tags, as git packs them."""
    words = [word for setting in _SETTINGS for word in ("-c", setting)]
    # By `env`: what else is in the environment stays, such as where the user keeps his git.
    command = [
        "env",
        *_ENVIRONMENT,
        "git",
        *words,
        "-C",
        path,
        "bundle",
        "create",
        "-q",
        "-",
        "HEAD",
        "--branches",
        "--tags",
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        try:
            while piece := process.stdout.read(_PIECE_BYTES):
                tally.size_bytes += len(piece)
                yield piece
        except BaseException:  # left early, then raised again
            process.kill()
            raise
        said = process.stderr.read(_SAID_BYTES).decode(errors="replace").strip()
        if process.wait() == _NO_PROGRAM:
            raise Unavailable("there is no git on this machine", next_step="install it, or upload a directory")
        if process.returncode:
            raise InvalidArgument(f"{path} cannot be packed: {said}", next_step="give a repository with a commit in it")
