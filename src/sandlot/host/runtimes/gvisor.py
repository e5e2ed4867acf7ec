"""gVisor: every session has a kernel of its own, in user space. One `runsc` per session, with our guest as its pid 1.

The session's root is mounted by the host below a directory that the sandbox sees, so it can be swapped under a sandbox
that runs. Programs under it meet another kernel than the machine's; what that lacks is in docs/operating/gvisor.md."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandlot.contracts.runtime import Group, Guest, ProcessEnd, SpawnPlan, StartPlan, Tree
from sandlot.contracts.storage import Volume
from sandlot.host.runtimes import runsc
from sandlot.host.runtimes.keeper import RUNSC_SINCE, Keeper, KeeperLost
from sandlot.host.runtimes.sandboxes import SandboxGroup, net
from sandlot.host.runtimes.trees import open_tree
from sandlot.host.storage.canonical import CANONICAL_ID, first_id
from sandlot.model import (
    AUTO,
    Capability,
    CapabilityNotSupported,
    DeadlineExceeded,
    InvalidState,
    LimitReached,
    Probe,
    SandlotError,
    Stream,
    Unavailable,
    limits,
)

HOSTNAME = "sandbox"
WORKSPACE = "/workspace"
_PROBE_NAME = "probe-gvisor"
_PLATFORM_DEADLINE_S = 8.0
_KILLED = 137
_INSTALL = "install it (`apt-get install runsc`), or set SANDLOT_RUNSC to where it is"
_ALWAYS = frozenset(
    {
        Capability.ISOLATION,
        Capability.OWN_ROOT,
        Capability.USERS,
        Capability.TERMINALS,
        Capability.SURVIVES_ENGINE,
        Capability.LIMIT_OPEN_FILES,
        Capability.LIMIT_PIDS,  # by its own kernel
        Capability.MEMORY,
        Capability.PORTS,
    }
)
_BY_GROUPS = frozenset(
    {
        Capability.PAUSE,
        Capability.LIMIT_CPUS,
        Capability.LIMIT_MEMORY,
        Capability.LIMIT_SWAP,
        Capability.LIMIT_IO,
    }
)


@dataclass(frozen=True, slots=True)
class Found:
    """What was found out of a runsc by running it."""

    platform: str
    takes_automount: bool  # False: programs of today cannot even list a directory without help


class GvisorRuntime:
    name = "gvisor"
    warm_ups = 4

    def __init__(self, keeper: Keeper, data: Path, program: str, platform: str, preload: Path) -> None:
        """`program`: of runsc, a path or a name to look for; `platform`: one of its own, or `auto`."""
        self._keeper = keeper
        self._data = data
        self._asked_program = program
        self._asked_platform = platform
        self._preload = preload
        self._found: Found | None = None
        self._finding = asyncio.Lock()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return _ALWAYS | (self._keeper.groups.capabilities & _BY_GROUPS)

    async def probe(self) -> Probe:
        """Starts a sandbox for real, on each platform until one works."""
        if os.geteuid() != 0:
            return Probe(self.name, False, "not root", "run as root, or use the runtime `none` for code you trust")
        if self._program() is None:
            return Probe(self.name, False, f"there is no program {self._asked_program}", _INSTALL)
        try:
            found = await self._find_out(anew=True)
        except KeeperLost:
            raise  # says nothing about the machine
        except SandlotError as error:
            return Probe(self.name, False, error.message, error.next_step or "run `runsc` by hand to see why")
        helped = (
            "" if found.takes_automount else "; it refuses AT_NO_AUTOMOUNT, so programs get a library that clears it"
        )
        return Probe(self.name, True, f"platform {found.platform}{helped}")

    def workspace(self, volume: Volume) -> str:
        del volume  # the same path in every session
        return WORKSPACE

    def open_tree(self, plan: StartPlan, guest: Guest) -> Tree:
        return open_tree(plan, guest, "cwd/cur")

    async def start(self, plan: StartPlan, on_end: Callable[[str], None]) -> Guest:
        return await self._start(plan, on_end, await self._find_out())

    async def _start(self, plan: StartPlan, on_end: Callable[[str], None], found: Found) -> Guest:
        program = self._program()
        if program is None:
            raise CapabilityNotSupported(f"there is no program {self._asked_program}", next_step=_INSTALL)
        if 0 < self._keeper.version < RUNSC_SINCE:
            raise CapabilityNotSupported(
                "the keeper is of an earlier release, and does not know gVisor",
                next_step="destroy the sessions that it holds, and start the engine again",
            )
        name, log = plan.volume.name, self._data / "run" / f"{plan.volume.name}.log"
        given = runsc.flags(found.platform, log)
        run = runsc.run_words(program, given, name)
        if plan.image:
            run = runsc.restore_words(program, given, name, plan.image)
        text = runsc.config(HOSTNAME, first_id(plan.range))
        words = (str(plan.range), text, self._layer(found), str(len(run)), *run, *_root_words(plan))
        try:
            guest = await self._keeper.start(self.name, name, words, plan.range, net(plan.resources), on_end)
            await guest.known(limits.MEMORY_DEADLINE_S if plan.image else limits.GUEST_DEADLINE_S)
        except (Unavailable, DeadlineExceeded) as error:
            if isinstance(error, KeeperLost):
                raise
            raise Unavailable(f"{error.message}{_last_words(log)}") from error
        finally:
            log.unlink(missing_ok=True)
        guest.limit(plan.resources.pids or 0)
        if not plan.image:
            guest.begin()
        return guest

    async def find(self, name: str, on_end: Callable[[str], None]) -> Guest | None:
        return self._keeper.take(name, on_end)

    async def names(self) -> Sequence[str]:
        return self._keeper.names()

    def group(self, name: str) -> Group:
        return SandboxGroup(self._keeper, name)

    async def swap(self, plan: StartPlan) -> None:
        await self._keeper.swap(plan.volume.name, (self._layer(await self._find_out()), *_root_words(plan)))

    async def checkpoint(self, name: str, image: Path) -> None:
        found, program, link = await self._find_out(), self._program(), self._keeper.link(name)
        if program is None:
            raise CapabilityNotSupported(f"there is no program {self._asked_program}", next_step=_INSTALL)
        log = self._data / "run" / f"{name}.log"
        words = runsc.checkpoint_words(program, runsc.flags(found.platform, log), name, image)
        with contextlib.suppress(CapabilityNotSupported):  # then nobody can tell how much it is
            await asyncio.to_thread(_need_room, image, SandboxGroup(self._keeper, name))
        if forbidding := await link.part():  # what is on the line now would be lost
            raise InvalidState(
                "gVisor cannot keep files that were removed, nor TCP sockets beside an epoll, and the session uses"
                f" {forbidding} of them",
                next_step="end these programs, or pause without memory",
            )
        pidfd = os.dup(link.descriptors()[1])
        link.expect_end(expected=True)
        try:
            wrong = await self._enter(pidfd, words)
            if wrong and link.is_alive():
                link.expect_end(expected=False)
            if wrong:
                raise Unavailable(f"the sandbox could not be kept: {wrong}")
            await self._keeper.stop(name)
        finally:
            os.close(pidfd)
            log.unlink(missing_ok=True)

    async def _enter(self, pidfd: int, words: Sequence[str]) -> str:
        """Run a verb of runsc where its sandbox is. Gives what went wrong."""
        process = await asyncio.create_subprocess_exec(
            *(str(self._keeper.program), "enter", str(pidfd), *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(pidfd,),
            env={},
            cwd="/",
        )
        try:
            async with asyncio.timeout(limits.MEMORY_DEADLINE_S):
                _out, said = await process.communicate()
        except TimeoutError:
            return f"it took more than {limits.MEMORY_DEADLINE_S:g} s"
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode in (0, _KILLED):  # its sandbox, which it is a part of, may have ended before it
            return ""
        words = said.decode(errors="replace").strip().splitlines()  # the first says why, the others where
        return words[0].rpartition("}: ")[2][-300:] if words else f"exit code {process.returncode}"

    async def dial(self, name: str, guest: Guest, port: int) -> socket.socket | None:
        del name, guest, port
        return None  # its network is in its own kernel

    async def stop(self, name: str) -> None:
        await self._keeper.stop(name)

    # ---- finding out -------------------------------------------------------------------------------------------

    def _program(self) -> str | None:
        return shutil.which(self._asked_program)

    async def _find_out(self, *, anew: bool = False) -> Found:
        """Once per engine and, where the program is still the same, once per data directory. Raises Unavailable."""
        async with self._finding:
            if self._found is None or anew:
                known = None if anew else await asyncio.to_thread(self._read_notes)
                self._found = known or await self._try_platforms()
            return self._found

    async def _try_platforms(self) -> Found:
        wrong: list[str] = []
        for platform in runsc.PLATFORMS if self._asked_platform == AUTO else (self._asked_platform,):
            try:
                async with asyncio.timeout(_PLATFORM_DEADLINE_S):
                    found = await self._try(platform)
            except KeeperLost:
                raise
            except TimeoutError:
                wrong.append(f"{platform}: no sandbox started in {_PLATFORM_DEADLINE_S:g} s")
                continue
            except SandlotError as error:
                wrong.append(f"{platform}: {error.message}")
                continue
            await asyncio.to_thread(self._write_notes, found)
            return found
        raise Unavailable(f"no platform of runsc works here ({'; '.join(wrong)})")

    async def _try(self, platform: str) -> Found:
        """Starts a sandbox on a root that has one program: ours, which tries what programs of today do."""
        place = self._data / "run" / _PROBE_NAME
        try:
            plan = await asyncio.to_thread(self._make_probe, place)
            try:
                guest = await self._start(plan, lambda _reason: None, Found(platform, True))
                ended = asyncio.get_running_loop().create_future()
                guest.spawn(1, SpawnPlan(("/probe", "automount"), "/", {}, ""), _Ended(ended))
                async with asyncio.timeout(limits.GUEST_DEADLINE_S):
                    code = await ended
            finally:
                await self.stop(_PROBE_NAME)
        except TimeoutError:
            raise DeadlineExceeded("no program ran in a sandbox") from None
        except OSError as error:
            if isinstance(error, SandlotError):
                raise
            raise Unavailable(f"a root to try it on cannot be made: {error.strerror}") from error
        finally:
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
        return Found(platform, code == 0)

    def _make_probe(self, place: Path) -> StartPlan:
        shutil.rmtree(place, ignore_errors=True)
        for folder in ("root/proc", "root/dev", "volume/u", "volume/w"):
            (place / folder).mkdir(parents=True)
        os.chown(place / "volume" / "u", CANONICAL_ID, CANONICAL_ID)
        shutil.copy(self._keeper.program, place / "root" / "probe")
        (place / "root" / "probe").chmod(0o755)
        return StartPlan(Volume(_PROBE_NAME, place / "volume"), place / "root", 0)

    def _notes(self) -> Path:
        return self._data / "run" / "gvisor.json"

    def _identity(self) -> list[object]:
        program = self._program() or ""
        info = Path(program).stat()
        return [program, info.st_size, info.st_mtime_ns, info.st_ino, self._asked_platform]

    def _read_notes(self) -> Found | None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(self._notes().read_text())
            if known["identity"] == self._identity():
                return Found(str(known["platform"]), bool(known["takes_automount"]))
        return None

    def _write_notes(self, found: Found) -> None:
        text = {"identity": self._identity(), "platform": found.platform, "takes_automount": found.takes_automount}
        new = self._notes().with_suffix(".new")
        new.write_text(json.dumps(text))
        new.replace(self._notes())

    # ---- the layer over the template ---------------------------------------------------------------------------

    def _layer(self, found: Found) -> str:
        """A directory that brings the library into every session, below all that the session wrote; empty: none is
        needed. Programs find it by /etc/ld.so.preload, which neither `env -i` nor sudo takes away."""
        if found.takes_automount:
            return ""
        layer = self._data / "run" / "preload"
        library = layer / "usr" / "lib" / "sandlot" / "no-automount.so"
        if not self._preload.is_file():
            raise CapabilityNotSupported(
                "the library that this gVisor needs is missing from this install",
                next_step="install gcc and libc6-dev, then run `make guest`",
            )
        if not library.exists() or library.stat().st_size != self._preload.stat().st_size:
            make_layer(layer, library, self._preload)
        return str(layer)


def make_layer(layer: Path, library: Path, source: Path) -> None:
    """The file that names the library comes last: no program must look for one that is not there."""
    for folder in (layer / "etc", library.parent):
        folder.mkdir(parents=True, exist_ok=True)
    for folder in (layer, *(layer / part for part in ("etc", "usr", "usr/lib", "usr/lib/sandlot"))):
        folder.chmod(0o755)
    for path, content in (
        (library, source.read_bytes()),
        (layer / "etc" / "ld.so.preload", f"/{library.relative_to(layer)}\n".encode()),
    ):
        new = path.with_name(path.name + ".new")
        new.write_bytes(content)
        new.chmod(0o644)
        new.replace(path)


class _Ended:
    """Hears of one program: with which code it ended."""

    def __init__(self, done: "asyncio.Future[int]") -> None:
        self._done = done

    def _end(self, code: int) -> None:
        if not self._done.done():
            self._done.set_result(code)

    def on_started(self, pid: int) -> None:
        del pid

    def on_output(self, stream: Stream, offset: int, data: bytes) -> None:
        del stream, offset, data

    def on_stdin_taken(self, offset: int, closed: bool) -> None:
        del offset, closed

    def on_failed(self, error: int, stage: str) -> None:
        if not self._done.done():
            self._done.set_exception(Unavailable(f"a program could not be started ({stage}): {os.strerror(error)}"))

    def on_exit(self, ended: ProcessEnd) -> None:
        self._end(ended.code)

    def on_lost(self, reason: str) -> None:
        if not self._done.done():
            self._done.set_exception(Unavailable(reason))


def _need_room(image: Path, group: SandboxGroup) -> None:
    """A sandbox that cannot be written whole is lost. Raises LimitReached."""
    memory_bytes = group.memory_used()
    if shutil.disk_usage(image).free < memory_bytes:
        raise LimitReached(
            f"the disk has no room for {memory_bytes} bytes of memory", next_step="free space", limit="disk"
        )


def _last_words(log: Path) -> str:
    """Of a runsc that did not come to life."""
    with contextlib.suppress(OSError):
        lines = log.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
        if lines:
            return f" (runsc: {lines[-1][-300:]})"
    return ""


def _root_words(plan: StartPlan) -> tuple[str, ...]:
    assert plan.template is not None, "a root needs a template"
    return (str(plan.template), str(plan.volume.path), *map(str, plan.volume.layers))
