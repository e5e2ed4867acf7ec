"""The same work through what a user would pick instead. Each is measured only where it is there and works."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.performance.bundle import write_bundle
from tests.performance.engine import Bench
from tests.performance.measure import Samples
from tests.performance.peer_loop import Plan
from tests.performance.report import Row, ratio_row

RUN = "others: create to first result (static true)"
EXEC = "others: command in a running sandbox (static true)"
PACKAGES = {"bwrap": "bubblewrap", "crun": "crun", "runsc": "runsc"}
SWE_REX = "swe-rex==1.4.0"
CGROUP2_IN_HYBRID = Path("/sys/fs/cgroup/unified")
REPOSITORY = Path(__file__).parents[2]
LOOP_S = 120.0
INSTALL_S = 240.0
CLEAN_S = 15.0
DOCKER_ANSWER_S = 2.0


class PeerFailed(Exception):
    """Why there is no number."""


def measure_peers(bench: Bench) -> None:
    bench.report.say("[peers]")
    install_peers(bench.folder / "apt.log")
    place = bench.folder / "peers"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    try:
        for peer in (_bwrap, _crun, _runsc, _docker, _swe_rex):
            peer(bench, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def install_peers(log: Path) -> None:
    """Quietly; a machine where that cannot be done is measured without them."""
    if os.geteuid() != 0 or not (shutil.which("dpkg-query") and shutil.which("apt-get")):
        return
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *PACKAGES.values()]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")
    missing = [package for package in PACKAGES.values() if f"installed {package}" not in found]
    if not missing:
        return
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=60", "-o", "Acquire::http::Timeout=30"]
    with log.open("wb") as output, contextlib.suppress(subprocess.TimeoutExpired):
        for argv in ([*apt, "update"], [*apt, "install", "-y", "--no-install-recommends", *missing]):
            environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(argv, stdout=output, stderr=output, env=environment, timeout=INSTALL_S, check=False)


# ---- running a loop ------------------------------------------------------------------------------------------------


def _measure(bench: Bench, section: str, name: str, plan: Plan, note: str = "", wrap: Sequence[str] = ()) -> None:
    try:
        found = run_loop([*wrap, sys.executable, "-m", "tests.performance.peer_loop", plan.to_text()])
        samples = Samples(found["operation_ms"], found["raw_ms"])
        bench.report.add(ratio_row(section, name, samples, note=note))
    except PeerFailed as error:
        bench.report.add(Row(section, name, note=f"not measured: {error}"))


def run_loop(argv: Sequence[str | Path]) -> dict[str, Any]:
    """Run a measuring program; whatever stops us, it gets the time to clean up behind itself."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=LOOP_S)
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"not done within {LOOP_S:g} s") from None
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(CLEAN_S)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = output.strip().splitlines()
    if process.returncode or not lines:
        raise PeerFailed(f"the measuring program ended with {process.returncode}")
    found: dict[str, Any] = json.loads(lines[-1])
    if "error" in found:
        raise PeerFailed(found["error"])
    return found


def _absent(bench: Bench, program: str, *rows: tuple[str, str]) -> bool:
    """Whether a program is missing; then its rows say so."""
    if shutil.which(program):
        return False
    for section, name in rows:
        bench.report.add(Row(section, name, note=f"not measured: {program} is not installed"))
    return True


def _version(*argv: str) -> str:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run(argv, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
        return told.splitlines()[0] if told else ""
    return ""


# ---- each of them --------------------------------------------------------------------------------------------------


def _bwrap(bench: Bench, place: Path) -> None:
    name = "bwrap"
    if _absent(bench, "bwrap", (RUN, name)):
        return
    bind = ("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")
    argv = ("bwrap", "--unshare-all", *bind, str(bench.program), "true")
    plan = Plan(str(bench.program), argv, str(place / "bwrap.log"), count=10 if bench.quick else 50)
    _measure(bench, RUN, name, plan, f"{_version('bwrap', '--version')}; it has no running sandbox to go into")


def _crun(bench: Bench, place: Path) -> None:
    if _absent(bench, "crun", (RUN, "crun run"), (EXEC, "crun exec")):
        return
    crun = ("crun", "--root", str(place / "crun"), "--cgroup-manager=disabled")
    note = f"{_version('crun', '--version')}, no cgroups"
    wrap: tuple[str, ...] = ()
    if CGROUP2_IN_HYBRID.is_dir():
        # It refuses to start where cgroup v1 and v2 are mixed, even with cgroups disabled.
        script = f'umount {CGROUP2_IN_HYBRID} && exec "$@"'
        wrap = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
        note += "; in a mount namespace without cgroup2, because it refuses the hybrid layout"
    once = write_bundle(place / "crun-true", bench.program, cgroups=False)
    idle = write_bundle(place / "crun-idle", bench.program, idle=True, cgroups=False)
    _measure_oci(bench, "crun", crun, (once, idle), 10 if bench.quick else 50, note, wrap)


def _runsc(bench: Bench, place: Path) -> None:
    if _absent(bench, "runsc", (RUN, "runsc run"), (EXEC, "runsc exec")):
        return
    flags = ("--network=none", "--platform=ptrace", "--ignore-cgroups")
    runsc = ("runsc", "--root", str(place / "runsc"), *flags)
    note = f"{_version('runsc', '--version')}, platform ptrace"
    once = write_bundle(place / "runsc-true", bench.program)
    idle = write_bundle(place / "runsc-idle", bench.program, idle=True)
    _measure_oci(bench, "runsc", runsc, (once, idle), 3 if bench.quick else 20, note)


def _measure_oci(
    bench: Bench,
    name: str,
    program: tuple[str, ...],
    bundles: tuple[Path, Path],
    count: int,
    note: str,
    wrap: Sequence[str] = (),
) -> None:
    def remove(identity: str) -> tuple[str, ...]:
        return (*program, "delete", "-force" if name == "runsc" else "--force", identity)

    once, idle = bundles
    log = str(once.parent / f"{name}.log")
    start = (*program, "run", "--bundle", str(once), "bench-{n}")
    last = [remove(f"bench-{number}") for number in range(count + 3)]
    plan = Plan(str(bench.program), start, log, count, before=(), after=last if name == "runsc" else ())
    _measure(bench, RUN, f"{name} run", plan, note, wrap)
    before = [(*program, "run", "--detach", "--bundle", str(idle), "bench-idle")]
    enter = (*program, "exec", "bench-idle", "/true", "true")
    plan = Plan(str(bench.program), enter, log, count, before=before, after=[remove("bench-idle")])
    _measure(bench, EXEC, f"{name} exec", plan, note, wrap)


def _docker(bench: Bench, place: Path) -> None:
    rows = ((RUN, "docker run"), (EXEC, "docker exec"))
    if _absent(bench, "docker", *rows):
        return
    try:
        answer = subprocess.run(
            ["docker", "info"], capture_output=True, timeout=DOCKER_ANSWER_S, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        answer = 1
    if answer:
        for section, name in rows:
            bench.report.add(Row(section, name, note=f"not measured: no daemon answers within {DOCKER_ANSWER_S:g} s"))
        return
    tar = shutil.make_archive(str(place / "image"), "tar", write_bundle(place / "docker", bench.program) / "rootfs")
    image, idle = "sandlot-bench:latest", "sandlot-bench-idle"
    load, forget = ("docker", "import", tar, image), ("docker", "rmi", "-f", image)
    count = 5 if bench.quick else 20
    start = ("docker", "run", "--rm", "--network", "none", image, "/true", "true")
    log = str(place / "docker.log")
    plan = Plan(str(bench.program), start, log, count, before=(load,), after=(forget,))
    _measure(bench, RUN, "docker run", plan, _version("docker", "--version"))
    before = (load, ("docker", "run", "-d", "--network", "none", "--name", idle, image, "/bin/sleep", "3600"))
    after = (("docker", "rm", "-f", idle), forget)
    plan = Plan(str(bench.program), ("docker", "exec", idle, "/true", "true"), log, count, before=before, after=after)
    _measure(bench, EXEC, "docker exec", plan, _version("docker", "--version"))


def _swe_rex(bench: Bench, place: Path) -> None:
    del place
    rows = {
        "server start": (RUN, "SWE-ReX, server start and execute"),
        "bash session create": (RUN, "SWE-ReX, bash session in a running server"),
        "execute": (EXEC, "SWE-ReX, execute"),
        "bash session": (EXEC, "SWE-ReX, run in a bash session"),
    }
    try:
        python = _swe_rex_python(bench.folder)
        starts, count = (2, 10) if bench.quick else (5, 50)
        loop = [python, "-m", "tests.performance.swerex_loop", bench.program, str(starts), str(count)]
        found = run_loop(loop)
        for key, (section, name) in rows.items():
            samples = Samples(found[key]["operation_ms"], found[key]["raw_ms"])
            bench.report.add(ratio_row(section, name, samples, note=f"{SWE_REX}, on loopback; isolates nothing itself"))
    except PeerFailed as error:
        for section, name in rows.values():
            bench.report.add(Row(section, name, note=f"not measured: {error}"))


def _swe_rex_python(folder: Path) -> Path:
    """A virtual environment of its own, kept for the next run: making it takes longer than measuring."""
    home = folder / "swe-rex"
    python, done = home / "bin" / "python", home / "installed"
    if done.exists() and done.read_text() == SWE_REX:
        return python
    # Its client imports aiohttp, which its own list of requirements lacks.
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install", SWE_REX, "aiohttp"]
    try:
        for argv in ([sys.executable, "-m", "venv", "--clear", home], pip):
            subprocess.run(argv, check=True, capture_output=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(home, ignore_errors=True)
        raise PeerFailed(f"{SWE_REX} cannot be installed here ({type(error).__name__})") from None
    done.write_text(SWE_REX)
    return python
