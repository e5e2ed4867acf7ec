"""Root filesystems as others make them, unchanged: Debian's own, and one of busybox alone, which knows no C library.
`make roots` makes the first, which takes a download."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, SessionSpec, SnapshotRequest, TemplateImport, TemplateInfo, TemplateSnapshot
from tests.archives import busybox_tar
from tests.conftest import run

pytestmark = pytest.mark.root
SUITE = "bookworm"
CACHED = Path(__file__).parents[2] / "build" / "roots" / f"debian-{SUITE}.tar"
RUNTIMES = ("namespaces", "gvisor")
MAKING_S = 1800
# Packages as they were installed, programs that are setuid, users that are made, and files that are theirs.
DEBIAN = """
test "$(cat /etc/debian_version | cut -d. -f1)" = 12 && dpkg --verify && perl -e 'print 6 * 7, "\\n"'
su -s /bin/sh nobody -c 'id -un'
useradd -m someone && su someone -c 'touch ~/file && stat -c %U ~/file'
stat -c %a /usr/bin/passwd
find / -xdev -nouser -o -xdev -nogroup | head -5
"""
BUSYBOX = "echo $((6 * 7)); id -u; touch /workspace/x && ls /workspace; stat -c %a /tmp"


@pytest.fixture
def debian(request: pytest.FixtureRequest) -> Path:
    if not request.config.getoption("--make-roots"):
        pytest.skip("a root filesystem of Debian takes a download and minutes: `make roots`")
    if CACHED.is_file():
        return CACHED
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed")
    CACHED.parent.mkdir(parents=True, exist_ok=True)
    fresh = CACHED.with_suffix(".new.tar")
    made = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", SUITE, str(fresh)],
        capture_output=True,
        text=True,
        timeout=MAKING_S,
    )
    if made.returncode != 0:
        fresh.unlink(missing_ok=True)
        pytest.skip(f"no root could be made, is the mirror there? {made.stderr.strip()[-300:]}")
    return fresh.rename(CACHED)


async def make(host: SandboxHostService, request: TemplateImport | TemplateSnapshot) -> TemplateInfo:
    async with host.make_template(request) as events:
        async for event in events:
            if isinstance(event, TemplateInfo):
                return event
    raise AssertionError("nothing was made")


async def said(host: SandboxHostService, template: str, runtime: str, script: str) -> list[str]:
    ready = next(probe for probe in (await host.probes())[1] if probe.name == runtime)
    if not ready.ready:
        pytest.skip(f"{runtime}: {ready.reason}")
    session = await host.create(SessionSpec(template=template, runtime=runtime))
    ran = await run(host, CallRequest(session.session_id, ("/bin/sh", "-c", script)))
    assert ran.exit_code == 0, ran
    return ran.stdout.decode().split()


@pytest.mark.timeout(MAKING_S + 240)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_an_unchanged_debian_is_a_template(host: SandboxHostService, debian: Path, runtime: str) -> None:
    await make(host, TemplateImport(str(debian), "debian:12"))
    assert await said(host, "debian:12", runtime, DEBIAN) == ["42", "nobody", "someone", "4755"]


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_root_without_a_c_library_is_a_template(host: SandboxHostService, tmp_path: Path, runtime: str) -> None:
    (tmp_path / "root.tar").write_bytes(busybox_tar())
    await make(host, TemplateImport(str(tmp_path / "root.tar"), "busybox"))
    assert await said(host, "busybox", runtime, BUSYBOX) == ["42", "0", "x", "1777"]
    # And what was made of it inside is one again.
    session = await host.create(SessionSpec(template="busybox", runtime=runtime))
    await run(host, CallRequest(session.session_id, ("/bin/sh", "-c", "echo kept > /kept")))
    await host.create_snapshot(SnapshotRequest(session.session_id, "here"))
    await make(host, TemplateSnapshot(session.session_id, "here", "again"))
    assert await said(host, "again", runtime, "cat /kept") == ["kept"]
