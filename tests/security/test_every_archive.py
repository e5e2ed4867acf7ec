"""Archives of strangers, by every door that takes one: refused with a reason or kept in, nothing outside touched."""

import ast
import random
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import sandlot
from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    ExportRequest,
    FileConflict,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    SandlotError,
    SessionSpec,
    TemplateImport,
    VolumeSpec,
    limits,
)
from tests.archives import entry, tar
from tests.conftest import run
from tests.security.archive_doors import BACKUPS, QUICK, READERS, SESSION, TEMPLATES, Attempt, Doors
from tests.security.hostile_archives import CASES, ENTRIES_MAX, Case
from tests.security.outside import Outside, kept_outside

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]
REFUSALS = (InvalidArgument, LimitReached, FileConflict, PermissionDenied)
PARSERS = {"TarReader", "ArchiveReader", "tarfile", "zipfile", "unpack_archive"}
LOOKED_AT_ONLY = (Doors.search_in_a_vendors_sandbox, Doors.docker_save_itself)  # nothing is written by its name
BESIDE = 7  # each so many of them
ELSEWHERE = {
    "cli/backup.py": "the file that it has just written itself",
    "cli/support.py": "it writes one",
    "fakes/files.py": "a host in memory, for tests of others",
    "model/tar.py": "the reader itself",
    "host/archives/reading.py": "the reader itself",
    "host/templates/unpacking/tar.py": "the reader itself",
}


@pytest.fixture
def outside() -> Iterator[Outside]:
    with kept_outside() as outside:
        yield outside


@pytest.fixture
async def doors(
    host: SandboxHostService, settings: Settings, outside: Outside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Doors]:
    (tmp_path / "root.tar").write_bytes(tar(entry("x", b"of a template")))
    async with host.make_template(TemplateImport(str(tmp_path / "root.tar"), "kept")) as events:
        async for _event in events:
            pass
    await host.create_volume(VolumeSpec("kept"))
    await host.create(SessionSpec(SESSION, storage="layers"))
    doors = Doors(host, settings, outside, tmp_path)
    async with host.backup() as stream:
        doors.saved = b"".join([piece async for piece in stream])
    async with host.export(ExportRequest(SESSION)) as stream:
        doors.exported = b"".join([piece async for piece in stream])
    monkeypatch.setattr(limits, "TREE_ENTRIES_MAX", ENTRIES_MAX)
    monkeypatch.setattr(limits, "TEMPLATE_ENTRIES_MAX", ENTRIES_MAX)
    monkeypatch.setattr(limits, "IMPORT_ENTRIES_MAX", ENTRIES_MAX)
    yield doors
    ran = await run(host, CallRequest(SESSION, ("sh", "-c", "echo well; ls -A")))
    assert ran.stdout == b"well\n", "the session is as it was"


async def attempt(doors: Doors, door: Attempt, case: Case) -> bool:
    """Whether it was refused."""
    before, reason = doors.outside.look(), ""
    try:
        await door(doors, case)
    except REFUSALS as error:
        reason = error.message
    except SandlotError as error:
        raise AssertionError(f"{door.__name__}, {case}: {error!r} is no refusal") from error
    refused = bool(reason)
    assert not refused or (len(reason) > 15 and reason.isprintable() and "Error" not in reason), reason
    assert doors.outside.look() == before, f"{door.__name__}, {case}"
    doors.check_machine()
    if case.is_refused and door not in LOOKED_AT_ONLY:
        assert refused, f"{door.__name__}, {case}"
    return refused


@pytest.mark.parametrize("door", QUICK, ids=lambda door: door.__name__)
async def test_each_case_by_each_quick_door(doors: Doors, door: Attempt) -> None:
    refused = [await attempt(doors, door, case) for case in CASES]
    assert door in LOOKED_AT_ONLY or any(refused)
    assert not all(refused), "some of them are harmless where they are"


async def test_each_case_as_a_template(doors: Doors) -> None:
    """In one of its forms, which one program unpacks; and some beside what an image is made of, where nobody looks."""
    refused: list[bool] = []
    for number, case in enumerate(CASES):
        refused.append(await attempt(doors, TEMPLATES[number % len(TEMPLATES)], case))
        if number % BESIDE == 0:
            await attempt(doors, Doors.docker_save_itself, case)
    assert not all(refused), "some of them are harmless where they are"


async def test_each_case_in_a_backup(doors: Doors) -> None:
    """In one of its parts."""
    refused = [await attempt(doors, BACKUPS[number % len(BACKUPS)], case) for number, case in enumerate(CASES)]
    assert not all(refused), "some of them are harmless where they are"


@pytest.mark.parametrize("door", [Doors.upload, Doors.download, Doors.search_in_a_vendors_sandbox, Doors.docker_save])
async def test_real_archives_that_are_changed(doors: Doors, door: Attempt, tmp_path: Path) -> None:
    """Bytes of them are others, and the checksums are right again; or they are cut, or put together anew."""
    real, chance = made_by_tar(tmp_path), random.Random(door.__name__)
    rounds = 12 if door is Doors.docker_save else 120
    refused = [await attempt(doors, door, Case(str(n), raw=changed(real, chance))) for n in range(rounds)]
    assert door in LOOKED_AT_ONLY or 0 < sum(refused) < rounds


def made_by_tar(place: Path) -> bytes:
    top = place / "real"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "x").write_bytes(bytes(range(256)) * 9)
    (top / "a" / ("long" * 50)).write_text("long")
    (top / "a" / "b" / "link").symlink_to("../x")
    (top / "x").hardlink_to(top / "a" / "x")
    (top / "x").chmod(0o4755)
    packed = [
        subprocess.run(["tar", f"--format={form}", "-C", top, "-cf", "-", "."], capture_output=True, check=True).stdout
        for form in ("gnu", "pax")
    ]
    return b"".join(one.rstrip(b"\0") + bytes(-len(one.rstrip(b"\0")) % 512) for one in packed)


def changed(real: bytes, chance: random.Random) -> bytes:
    data = bytearray(real)
    for _change in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        one, two = (512 * chance.randrange(len(data) // 512) for _ in range(2))
        data[one:one] = data[two : two + 512]
    for at in range(0, len(data) - 511, 512):
        if bytes(data[at + 257 : at + 262]) == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    if chance.random() < 0.2:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


def test_every_reader_of_archives_has_a_door() -> None:
    """Found by what they name: whoever begins to read archives is asked for his door here."""
    top = Path(sandlot.__file__).parent
    found: set[str] = set()
    for path in top.rglob("*.py"):
        name = path.relative_to(top).as_posix()
        if name.startswith(("attack/", "rpc/gen/")):
            continue
        text = path.read_text()
        if not any(parser in text for parser in PARSERS):
            continue
        words = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        if words & PARSERS:
            found.add(name)
    assert found - ELSEWHERE.keys() == READERS.keys()
