"""When a process is ready, and when it is started again."""

import asyncio
import signal
import time
from contextlib import suppress
from typing import Any

from sandlot.conformance.checks import Check, Stage, equal, expect
from sandlot.conformance.file_stage import refused
from sandlot.conformance.port_stage import a_port
from sandlot.conformance.process_stage import FOREVER, ended, launch, printed, read, sh, status, until_ready
from sandlot.model import DeadlineExceeded, ProcessState, Ready, ReadyKind, Restart, StartFailed

# ---- ready ---------------------------------------------------------------------------------------------------------


async def it_is_ready_when_it_says_so(stage: Stage) -> None:
    """Until a text was printed it is starting, and then it runs."""
    ready = Ready(ReadyKind.LOG, text="now serving")
    process = await sh(stage, "echo now; read x; echo now serving >&2; read x", stdin=True, ready=ready)
    equal(process.state, ProcessState.STARTING)
    await refused(until_ready(stage, process.process_id, 0.2), DeadlineExceeded)
    await stage.host.write_process_stdin(stage.session.session_id, process.process_id, b"\n")
    equal((await until_ready(stage, process.process_id)).state, ProcessState.RUNNING)
    equal((await status(stage, process.process_id)).state, ProcessState.RUNNING)


_SERVE = """
import http.server, sys
sys.stdin.readline()
class Handler(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        Handler.count += 1
        self.send_response(200 if self.path == "/well" and Handler.count > 2 else 500)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


async def it_is_ready_when_it_answers(stage: Stage) -> None:
    """A port that takes connections, or a GET that is answered well, whatever listens on."""
    for kind, text in ((ReadyKind.PORT, ""), (ReadyKind.HTTP, "/well")):
        port = a_port()
        ready = Ready(kind, port, text)
        process = await launch(stage, "python3", "-c", _SERVE, str(port), stdin=True, ready=ready)
        equal(process.state, ProcessState.STARTING)
        await stage.host.write_process_stdin(stage.session.session_id, process.process_id, b"\n")
        equal((await until_ready(stage, process.process_id)).state, ProcessState.RUNNING)


async def who_does_not_get_ready_is_told(stage: Stage) -> None:
    """Whoever waits hears that it ended, or that its time is over, and what it printed last; it is not ended for it."""
    ready = Ready(ReadyKind.LOG, text="serving")
    failed = await sh(stage, "echo broken; exit 4", ready=ready)
    error = await refused(until_ready(stage, failed.process_id), StartFailed)
    expect("broken" in error.message and "4" in error.message, error.message)
    late = await sh(stage, "echo thinking; sleep 600", ready=ready, ready_timeout_s=0.3)
    error = await refused(until_ready(stage, late.process_id), StartFailed)
    expect("thinking" in error.message, error.message)
    told = await status(stage, late.process_id)
    equal(told.state, ProcessState.STARTING)
    expect(bool(told.reason), "no reason is told")


# ---- again ---------------------------------------------------------------------------------------------------------


async def what_fails_is_started_again(stage: Stage) -> None:
    """As often as was asked for, later each time; what it printed stays together. What ends well has ended."""
    began = time.monotonic()
    process = await sh(stage, "echo run; exit 3", restart=Restart.ON_FAILURE, restarts_max=3, backoff_s=0.1)
    told = await ended(stage, process.process_id)
    took = time.monotonic() - began
    equal((told.exit_code, told.restarts, told.state), (3, 3, ProcessState.EXITED))
    expect(took >= 0.7, f"three times in {took:.2f} s, instead of 0.1 + 0.2 + 0.4")
    equal(printed(await read(stage, process.process_id)), b"run\n" * 4)
    well = await launch(stage, "true", restart=Restart.ON_FAILURE, backoff_s=0.1)
    equal((await ended(stage, well.process_id)).restarts, 0)
    once = await sh(stage, "exit 3", backoff_s=0.1)
    equal((await ended(stage, once.process_id)).restarts, 0)


async def what_was_killed_stays_ended(stage: Stage) -> None:
    """Whatever it was to do on a failure; also while it waits to be started again."""
    options: dict[str, Any] = {"restart": Restart.ON_FAILURE, "backoff_s": 0.05}
    for number in (None, signal.SIGKILL, signal.SIGTERM):
        process = await launch(stage, *FOREVER, **options)
        await stage.host.kill_process(stage.session.session_id, process.process_id, number)
        equal((await ended(stage, process.process_id)).restarts, 0)
    waiting = await sh(stage, "exit 3", restart=Restart.ON_FAILURE, backoff_s=600)
    with suppress(DeadlineExceeded):
        await stage.host.wait_process(stage.session.session_id, waiting.process_id, timeout_s=0.3)
    equal((await status(stage, waiting.process_id)).state, ProcessState.STARTING)
    told = await stage.host.kill_process(stage.session.session_id, waiting.process_id)
    equal(told.state, ProcessState.EXITED)


async def another_signal_is_a_failure(stage: Stage) -> None:
    """What ends by a signal that is not a kill is started again."""
    process = await launch(stage, *FOREVER, restart=Restart.ON_FAILURE, backoff_s=0.05, restarts_max=1)
    await stage.host.kill_process(stage.session.session_id, process.process_id, signal.SIGHUP)
    while (await status(stage, process.process_id)).restarts == 0:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.02)
    await until_ready(stage, process.process_id)
    await stage.host.kill_process(stage.session.session_id, process.process_id, signal.SIGHUP)
    told = await ended(stage, process.process_id)
    equal((told.exit_code, told.signal, told.restarts), (129, 1, 1))


RUN_CHECKS: tuple[Check[Stage], ...] = (
    Check(it_is_ready_when_it_says_so),
    Check(it_is_ready_when_it_answers),
    Check(who_does_not_get_ready_is_told),
    Check(what_fails_is_started_again),
    Check(what_was_killed_stays_ended),
    Check(another_signal_is_a_failure),
)
