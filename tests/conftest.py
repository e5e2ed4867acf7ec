"""Real engines on throw-away data directories. One built-in template is shared: it costs seconds to make."""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from sandlot.config.settings import Settings, load
from sandlot.contracts import CallStream
from sandlot.host.service import SandboxHostService
from sandlot.host.templates.builtin import build as build_template
from sandlot.host.templates.builtin import fingerprint
from sandlot.model import CallOutput, CallRequest, CallResult, SessionFilter, Stream
from sandlot.wiring.embedded import build
from tests import storages
from tests.scratch import close_scratch, open_scratch

NO_ROOT = "needs root: namespaces, mounts and ids of others"
CAP_SYS_ADMIN = 21
# A file of the template, by all that a session can change of it. Its number of links is not looked at: the built-in
# template shares its files with the machine's, and any engine that makes or removes one changes that number.
LOOK_AT_TAR = "stat -c '%A %u:%g %s %y %n' /usr/bin/tar; md5sum /usr/bin/tar"
MOUNT = (
    "zfs",
    "btrfs",
    "gvisor",
    "test_attack",
    "test_weakenings",
    "test_leaks",
    "test_lost",
    "test_left",
)  # in the names of tests


def is_root() -> bool:
    """Root of the machine. Who is called root in a user namespace, or in a container without rights, is not."""
    if os.geteuid() != 0 or Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]:
        return False
    status = Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SYS_ADMIN & 1)


_scratch: list[Path] = []


def pytest_configure() -> None:
    """A run that was started in the background inherits ignored signals, and so would the programs that tests end."""
    _scratch.extend(filter(None, [open_scratch()]))
    ends = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL, signal.SIGTERM: signal.SIG_DFL}
    for number, action in ends.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, action)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)


def pytest_unconfigure() -> None:
    for scratch in _scratch:
        for mount in close_scratch(scratch):
            print(f"still mounted at the end: {mount}")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sandlot")
    group.addoption("--all-storages", action="store_true", help="every test of storages on every storage")
    group.addoption("--make-roots", action="store_true", help="make the roots of others that tests need: a download")
    group.addoption("--storage", action="append", choices=storages.NAMES, help="tests of storages on this one alone")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `storage` is one of each storage."""
    if "storage" in metafunc.fixturenames:
        metafunc.parametrize("storage", metafunc.config.getoption("--storage") or storages.NAMES, indirect=True)


def _is_chosen(item: pytest.Item) -> bool:
    """On `layers` everything is run; on the others what is marked `every_storage`, unless all is asked for. On zfs each
    step is a command: there the mark must say `slow`."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("storage", "layers") if callspec else "layers"
    options = item.config.getoption("--all-storages") or item.config.getoption("--storage")
    marker = item.get_closest_marker("every_storage")
    is_marked = marker is not None and (name != "zfs" or bool(marker.kwargs.get("slow")))
    return bool(options) or name == "layers" or is_marked


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `root` are skipped, with that reason, when run by someone else."""
    if left_out := [item for item in items if not _is_chosen(item)]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _is_chosen(item)]
    if not is_root():
        for item in items:
            if item.get_closest_marker("root"):
                item.add_marker(pytest.mark.skip(reason=NO_ROOT))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What mounts on the machine, or looks whether someone did, is done by one worker at a time; zfs has one daemon for
    all, and tests that end it. The wait ends with the other's test, which has a deadline, or with his death."""
    if not any(word in item.nodeid for word in MOUNT):
        return (yield)
    with (Path(tempfile.gettempdir()) / "sandlot-tests-mount.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return (yield)


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> str:
    """The storage of sessions that ask for none."""
    name: str = request.param
    ready = storages.probe(name)
    if not ready.ready:
        pytest.skip(f"{name}: {ready.reason}")
    return name


@pytest.fixture(scope="session")
def shared_templates() -> Path:
    """A folder that outlives the run: the template in it is named by its fingerprint, so it is never stale."""
    folder = Path(__file__).parents[1] / "build" / "test-templates"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_root():
        build_template(folder / f"builtin-{fingerprint()}")
    return folder


@pytest.fixture
def data_dir(tmp_path: Path, shared_templates: Path) -> Iterator[Path]:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "templates").symlink_to(shared_templates)
    yield data
    (data / "templates").unlink()
    shutil.rmtree(data)


@pytest.fixture
def settings(data_dir: Path, request: pytest.FixtureRequest) -> Iterator[Settings]:
    name = request.getfixturevalue("storage") if "storage" in request.fixturenames else ""
    environment = {**os.environ, **(storages.ENVIRONMENT if name else {})}
    yield load({**environment, "SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_STORAGE": name, "SANDLOT_RUNTIME": ""})
    if name:
        assert storages.left_of_machine(data_dir) == set(), "an engine that was closed left something of the machine"


async def clean_up(host: SandboxHostService) -> None:
    while page := (await host.list(SessionFilter())).sessions:
        for session in page:
            await host.destroy(session.session_id)


@pytest.fixture
async def host(settings: Settings) -> AsyncIterator[SandboxHostService]:
    """An engine; its sessions are destroyed at the end."""
    async with build(settings) as engine:
        yield engine
        await clean_up(engine)


class Ran:
    """What a finished call left: its result and both streams."""

    def __init__(self, result: CallResult, stdout: bytes, stderr: bytes) -> None:
        self.result = result
        self.exit_code = result.exit_code
        self.stdout = stdout
        self.stderr = stderr

    def __repr__(self) -> str:
        return f"Ran({self.result}, {self.stdout[-2000:]!r}, {self.stderr[-2000:]!r})"


async def collect(events: CallStream) -> Ran:
    """Read a call to its end."""
    streams = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    async for event in events:
        if isinstance(event, CallOutput):
            assert event.offset == len(streams[event.stream]), "a hole or an overlap in the output"
            streams[event.stream] += event.data
    return Ran(await events.result(), bytes(streams[Stream.STDOUT]), bytes(streams[Stream.STDERR]))


async def run(host: SandboxHostService, request: CallRequest) -> Ran:
    """Run a call to its end."""
    async with host.call(request) as events:
        return await collect(events)
