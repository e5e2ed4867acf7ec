"""Times a command-line program in turn with raw, in a process of its own: some need one prepared for them.

`python -m tests.performance.peer_loop PLAN` prints samples as JSON. Ended by SIGINT it still runs what cleans up.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.performance.measure import Raw, Rounds, milliseconds_since, quiet


@dataclass(frozen=True, slots=True)
class Plan:
    """Words `{n}` in a command become the number of the round."""

    program: str
    operation: Sequence[str]
    log: str  # what the commands say goes here
    count: int = 20
    timeout_s: float = 10.0
    before: Sequence[Sequence[str]] = ()
    behind: Sequence[Sequence[str]] = ()  # after each operation, not timed
    after: Sequence[Sequence[str]] = ()

    def to_text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Spawner:
    """Runs one command with a deadline, at hardly more than the cost of raw itself."""

    log: int
    timeout_s: float

    def __call__(self, argv: Sequence[str], *, may_fail: bool = False) -> float:
        streams = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            *((os.POSIX_SPAWN_DUP2, self.log, n) for n in (1, 2)),
        ]
        began = time.perf_counter_ns()
        pid = os.posix_spawnp(argv[0], list(argv), os.environ, file_actions=streams)
        pidfd = os.pidfd_open(pid)
        try:
            ended, _, _ = select.select([pidfd], [], [], self.timeout_s)
            if not ended:
                os.kill(pid, signal.SIGKILL)
            _pid, status = os.waitpid(pid, 0)
            took = milliseconds_since(began)
        finally:
            os.close(pidfd)
        if not ended and not may_fail:
            raise RuntimeError(f"{argv[0]} was not done within {self.timeout_s:g} s")
        if status and not may_fail:
            raise RuntimeError(f"{argv[0]} ended with status {os.waitstatus_to_exitcode(status)}")
        return took


def measure(plan: Plan) -> dict[str, object]:
    raw, rounds = Raw(Path(plan.program)), Rounds(plan.count, warm_up=min(3, plan.count))
    operation_ms: list[float] = []
    raw_ms: list[float] = []
    log = os.open(plan.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    spawn = Spawner(log, plan.timeout_s)
    try:
        for argv in plan.before:
            spawn(argv)
        with quiet():
            for number, counts in enumerate(rounds):
                raw_took, took = raw(), spawn(numbered(plan.operation, number))
                for argv in plan.behind:
                    spawn(numbered(argv, number), may_fail=True)
                if counts:
                    raw_ms.append(raw_took)
                    operation_ms.append(took)
    finally:
        for argv in plan.after:
            with contextlib.suppress(OSError):
                spawn(argv, may_fail=True)
        os.close(log)
    return {"operation_ms": operation_ms, "raw_ms": raw_ms}


def numbered(argv: Sequence[str], number: int) -> list[str]:
    return [word.replace("{n}", str(number)) for word in argv]


def last_words(log: str) -> str:
    with contextlib.suppress(OSError):
        lines = Path(log).read_text(errors="replace").strip().splitlines()
        return lines[-1][:160] if lines else ""
    return ""


def main() -> None:
    plan = Plan(**json.loads(sys.argv[1]))
    try:
        found = measure(plan)
    except (OSError, RuntimeError) as error:
        words = last_words(plan.log)
        found = {"error": f"{error}: {words}" if words else str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
