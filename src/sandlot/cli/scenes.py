"""The scenes of the demo, in the order in which they are played."""

import asyncio
import os
import time
from pathlib import Path

from sandlot.cli.scenes_turns import HISTORY
from sandlot.cli.story import Measure, Ran, Story
from sandlot.cli.stream import Collected, follow
from sandlot.model import CallRequest, LimitHit, SessionFilter, Stream

_PYTHON = {
    "primes.py": "def primes(n):\n    return [p for p in range(2, n) if all(p % d for d in range(2, p))]\n",
    "test_primes.py": (
        "import unittest\nfrom primes import primes\n\n\nclass Test(unittest.TestCase):\n"
        "    def test_primes(self):\n        self.assertEqual(primes(20), [2, 3, 5, 7, 11, 13, 17, 19])\n"
    ),
}
_SHELL = {"squares.sh": "for n in 1 2 3 4; do echo $((n * n)); done\n"}
_PARALLEL = 20
_NAP_S = 0.2
_TICKS = 20
# One that was ended is seen until it is reaped, a moment later.
_COUNT_SLEEPERS = """
for attempt in $(seq 100); do
    left=$(cat /proc/[0-9]*/comm | grep -cx sleep)
    [ "$left" = 0 ] && break
    sleep 0.02
done
echo $left
"""
_TIMEOUT_S = 0.3
_COMMANDS = 50
_CREATES = 5
_REFILL_S = 0.15


async def make_template(story: Story) -> None:
    with story.step("Make the built-in template, once per machine") as step:
        session = await story.create()
        await story.host.destroy(session.session_id)
        entries = story.context.progress.entries
        step.say(f"{entries:,} files of this machine's own /usr, no network" if entries else "it was made before")


async def create(story: Story) -> None:
    with story.step("Create a sandbox") as step:
        story.session = session = await story.create()
        step.expect(session.state == "active", f"{session.session_id} is {session.state}")
        step.say(f"runtime {session.runtime}, storage {session.storage}")


async def write(story: Story) -> None:
    with story.step("Write a small project, from outside") as step:
        project = _PYTHON if (await story.sh("command -v python3")).exit_code == 0 else _SHELL
        for name, text in project.items():
            told = await story.write(name, text)
            step.expect(told.size_bytes == len(text), f"{told.path}, {told.size_bytes} bytes")


async def run(story: Story) -> None:
    with story.step("Run it") as step:
        ran = await story.sh("if [ -e test_primes.py ]; then python3 -m unittest 2>&1; else sh squares.sh; fi")
        said = [line for line in ran.stdout.splitlines() if any(map(str.isalnum, line))]
        step.expect(ran.exit_code == 0, f"exit code {ran.exit_code}: {', '.join(said)}")


async def look_around(story: Story) -> None:
    with story.step("Look around: this is not the host") as step:
        who = await story.sh("id")
        step.expect("uid=1000(user)" in who.stdout, _told("id", who))
        name = await story.sh("hostname")
        step.expect(name.stdout.strip() == "sandbox", _told("hostname", name))
        top = await story.sh("ls /")
        step.expect("workspace" in top.stdout, f"$ ls /: {' '.join(top.stdout.split())}")
        seen = await story.sh("ls -d /proc/[0-9]* | wc -l")
        step.expect(seen.stdout.strip().isdigit() and int(seen.stdout) < 10, f"{seen.stdout.strip()} processes to see")


async def try_to_get_out(story: Story) -> None:
    secret = story.settings.data / "secret-of-the-host"
    secret.write_text("nobody inside should read this\n")
    with story.step("Try to get out") as step:
        read = await story.run(("cat", str(secret)))
        step.expect(read.exit_code != 0 and not read.stdout, _told("cat a file of the host", read))
        net = await story.run(("timeout", "2", "bash", "-c", ": < /dev/tcp/192.0.2.1/53"))
        step.expect(net.exit_code != 0 and net.result.duration_s < 1, _told("connect to an address outside", net))
        kernel = await story.sh("echo 1 > /proc/sys/vm/drop_caches", user="root")
        step.expect(kernel.exit_code != 0, _told("set something of the kernel, as root inside", kernel))
    secret.unlink()


async def fail(story: Story) -> None:
    with story.step("A command that fails is a result, not an error") as step:
        ran = await story.sh("echo 'no such planet' >&2; exit 3")
        step.expect(ran.exit_code == 3, f"exit code {ran.exit_code}, stderr: {ran.stderr.strip()}")
        missing = await story.run(("no-such-program",))
        step.expect(missing.exit_code == 127, f"exit code {missing.exit_code}, {missing.result.reason}")


async def time_out(story: Story) -> None:
    with story.step(f"A command that would sleep a minute, given {_TIMEOUT_S:g} s") as step:
        ran = await story.sh("sleep 60 & sleep 60", timeout_s=_TIMEOUT_S)
        step.expect(ran.result.limit is LimitHit.TIMEOUT, f"exit code {ran.exit_code}: ended by its {ran.result.limit}")
        left = await story.sh(_COUNT_SLEEPERS)
        if story.runtime != "none":
            step.expect(left.stdout.strip() == "0", "and nothing of it is left running")


async def in_parallel(story: Story) -> None:
    with story.step(f"{_PARALLEL} commands at once, {_NAP_S:g} s each") as step:
        began = time.perf_counter()
        ran = await asyncio.gather(*(story.sh(f"sleep {_NAP_S}; echo {n}") for n in range(_PARALLEL)))
        took = time.perf_counter() - began
        step.expect(
            [one.stdout for one in ran] == [f"{n}\n" for n in range(_PARALLEL)], "every one gave its own answer"
        )
        step.expect(
            took < _NAP_S * _PARALLEL / 2, f"{took:.2f} s in all; one after the other: {_NAP_S * _PARALLEL:g} s"
        )


async def outlive_the_engine(story: Story) -> None:
    with story.step("Close the engine while a command runs, and come back") as step:
        session_id = story.session.session_id
        script = f"for i in $(seq 1 {_TICKS}); do echo tick $i; sleep 0.05; done"
        request = CallRequest(session_id, ("sh", "-c", script), detach=True)
        async with story.host.call(request) as stream:
            call_id = stream.call_id
            await anext(aiter(stream))
        await story.close()
        step.say("the engine is gone; the command runs on")
        await asyncio.sleep(0.2)
        began = time.perf_counter()
        await story.open(warm_pool=2)
        story.measures.append(Measure("open the engine again", (time.perf_counter() - began) * 1000))
        sink = Collected()
        async with story.host.attach(session_id, call_id) as stream:
            result = await follow(stream, sink)
        lines = sink.streams[Stream.STDOUT].decode().splitlines()
        complete = lines == [f"tick {n}" for n in range(1, _TICKS + 1)]
        step.expect(complete and result.exit_code == 0, f"its output is complete: {len(lines)} lines, exit code 0")
        file = await story.sh("ls")
        step.expect(bool(file.stdout.split()), f"and the files are there: {' '.join(file.stdout.split())}")


async def one_after_the_other(story: Story) -> None:
    with story.step(f"{_COMMANDS} commands, one after the other") as step:
        raw, spent = list[float](), list[float]()
        for _ in range(_COMMANDS):
            # Taken in turns, so that a machine that is busy slows both down.
            raw.append(_spawn_and_wait(story.settings.keeper))
            began = time.perf_counter()
            ran = await story.run(("true",))
            spent.append(time.perf_counter() - began)
            if ran.exit_code != 0:
                step.expect(False, f"exit code {ran.exit_code}")
        measure = Measure.of("run a command", spent)
        story.measures += [Measure.of("raw: spawn and wait for a static `true`", raw), measure]
        step.ms = sum(spent) * 1000
        step.expect(measure.ms < 100, f"{measure.ms:.2f} ms each")


async def create_cold(story: Story) -> None:
    await _create_often(story, "cold")


async def create_warm(story: Story) -> None:
    await asyncio.sleep(_REFILL_S)
    await _create_often(story, "from the warm pool")


async def _create_often(story: Story, how: str) -> None:
    with story.step(f"{_CREATES} more sandboxes, {how}") as step:
        kept, spent = story.session, list[float]()
        for _ in range(_CREATES):
            began = time.perf_counter()
            story.session = await story.create()
            await story.run(("true",))
            spent.append(time.perf_counter() - began)
            await story.host.destroy(story.session.session_id)
            await asyncio.sleep(_REFILL_S)  # what is cleaned up or made ready behind us must not count
        story.session = kept
        step.ms = sum(spent) * 1000
        measure = Measure.of(f"create to first result, {how}", spent)
        story.measures.append(measure)
        step.expect(measure.ms < 1000, f"{measure.ms:.1f} ms from the request to the first result")


async def destroy(story: Story) -> None:
    with story.step("Destroy the sandbox") as step:
        began = time.perf_counter()
        await story.host.destroy(story.session.session_id)
        story.measures.append(Measure("destroy", (time.perf_counter() - began) * 1000))
        left = await story.host.list(SessionFilter(labels={"made-by": "demo"}))
        step.expect(not left.sessions, "nothing of it is left")


def _spawn_and_wait(program: Path) -> float:
    """The unit of all times: start the smallest static program and wait for it."""
    began = time.perf_counter()
    os.waitpid(os.posix_spawn(program, ["sandlot-keeper", "true"], {}), 0)
    return time.perf_counter() - began


def _told(command: str, ran: Ran) -> str:
    said = (ran.stdout + ran.stderr).strip().splitlines()
    return f"$ {command}: {said[0] if said else f'exit code {ran.exit_code}'}"


TRUSTED = (
    create,
    write,
    run,
    fail,
    time_out,
    in_parallel,
    one_after_the_other,
    create_cold,
    outlive_the_engine,
    destroy,
)
ISOLATED = (
    make_template,
    create,
    write,
    run,
    *HISTORY,
    look_around,
    try_to_get_out,
    fail,
    time_out,
    in_parallel,
    one_after_the_other,
    create_cold,
    outlive_the_engine,
    create_warm,
    destroy,
)
