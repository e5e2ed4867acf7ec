"""The program of a local instance: started on its own, so that it outlives whoever starts it."""

import fcntl
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandlot.model import Unavailable

_SHELL = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')
_HIGH = 64


def spawn(words: Sequence[str], home: Path, variables: Mapping[str, str], log: Path, keeps: Sequence[int]) -> int:
    """In a process group of its own, with an environment of its own, its output in the log, and these descriptors open
    from 3 on, which it need not know of. Gives its pid. Raises Unavailable."""
    opened: list[int] = []
    try:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        opened.append(null)
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        opened.append(out)
        # Sources far above the targets, so that none is overwritten before it is read.
        sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH) for fd in (null, out, out, *keeps)]
        opened += sources
        return os.posix_spawn(
            _SHELL[0],
            [*_SHELL, str(home), *words],
            environment(home, variables),
            file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(sources)],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        )
    except OSError as error:
        raise Unavailable(f"{words[0]} could not be started: {error.strerror}", next_step="try again") from error
    finally:
        for fd in opened:
            os.close(fd)


def environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Nothing of ours."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", **more}


def exit_code(pid: int) -> int | None:
    """Of a child that has ended, which is forgotten then; None while it lives."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # someone else has waited for it
        return -1
    return os.waitstatus_to_exitcode(status) if ended else None
