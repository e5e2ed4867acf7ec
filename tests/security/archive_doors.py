"""Every way by which an archive of a stranger comes in, or one of a session out, and what must be true behind it."""

import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sandlot.config.settings import Settings
from sandlot.environments import derived_files
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    FileRemove,
    ImportRequest,
    RestoreRequest,
    TemplateImport,
    TemplateInfo,
    TemplatePull,
    TreeTally,
    TreeUpload,
)
from sandlot.sdk.unpacking import unpack
from sandlot.wiring.embedded import build
from tests.archives import Image, entry, folder, tar
from tests.e2e.loopback_registry import LoopbackRegistry, serving
from tests.security.hostile_archives import END, PLANTED, Case, pack
from tests.security.outside import Outside

BLOCK = 512
PIECE = 5000  # so that members are cut anywhere
SESSION, COPY = "s", "copy"
_OF_KERNEL = {f"trusted.overlay.{name}" for name in ("opaque", "impure", "origin", "uuid")}
BELOW = "zz"  # behind all that a session has, in the order of an export


async def pieces(data: bytes, size: int = PIECE) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


class Doors:
    """Each attempt raises what refused it, or ends when what came in is known to be harmless, and is gone again."""

    def __init__(self, host: SandboxHostService, settings: Settings, outside: Outside, place: Path) -> None:
        self.host, self.settings, self.outside, self.place = host, settings, outside, place
        self.exported = self.saved = b""
        self.left = {path.name for path in self._imports.iterdir()} if self._imports.exists() else set[str]()

    @property
    def _imports(self) -> Path:
        return self.settings.data / "imports"

    # ---- templates ---------------------------------------------------------------------------------------------

    async def _make(self, request: TemplateImport | TemplatePull) -> None:
        async with self.host.make_template(request) as events:
            *_steps, made = [event async for event in events]
        assert isinstance(made, TemplateInfo)
        self.check_tree(self._imports / made.digest[7:] / "root")
        await self.host.remove_template(made.names[0])

    async def _import(self, data: bytes) -> None:
        path = self.place / "archive"
        path.write_bytes(data)
        await self._make(TemplateImport(str(path), "hostile"))

    def _image(self, case: Case) -> Image:
        hostile = case.archive(self.outside)
        return Image([tar(folder("etc"), entry("etc/passwd", b"root:x:0:0::/:/bin/sh\n")), hostile])

    async def root_filesystem(self, case: Case) -> None:
        await self._import(case.archive(self.outside))

    async def root_filesystem_compressed(self, case: Case) -> None:
        await self._import(gzip.compress(case.archive(self.outside), 1))

    async def image_layout(self, case: Case) -> None:
        folder = self.place / "layout"
        shutil.rmtree(folder, ignore_errors=True)
        await self._make(TemplateImport(str(self._image(case).write_layout(folder)), "hostile"))

    async def image_layout_in_a_file(self, case: Case) -> None:
        await self._import(tar(*(entry(name, data) for name, data in self._image(case).layout().items())))

    async def docker_save(self, case: Case) -> None:
        await self._import(self._image(case).saved())

    async def docker_save_itself(self, case: Case) -> None:
        """The members stand behind those of the image."""
        whole = Image([tar(entry("x"))]).saved().rstrip(b"\0")
        await self._import(whole + bytes(-len(whole) % BLOCK) + case.archive(self.outside))

    async def registry(self, case: Case) -> None:
        with serving(LoopbackRegistry(self._image(case))) as address:
            await self._make(TemplatePull(f"{address}:1", "hostile"))

    # ---- sessions ----------------------------------------------------------------------------------------------

    async def _upload(self, case: Case, user: str | None) -> None:
        data = case.archive(self.outside)
        try:
            await self.host.upload_tree(TreeUpload(SESSION, "in", user), pieces(data))
        finally:
            self.check_tree(self._volume_of(SESSION) / "workspace" / "in", allow=())
            await self.host.remove_file(FileRemove(SESSION, "in", "0", recursive=True))

    async def upload(self, case: Case) -> None:
        await self._upload(case, None)

    async def upload_by_root(self, case: Case) -> None:
        await self._upload(case, "0")

    async def import_of_a_session(self, case: Case) -> None:
        data = spoiled(self.exported, "now", case, self.outside)
        await self.host.import_session(ImportRequest(COPY), pieces(data, 1 << 20))
        try:
            self.check_tree(self._volume_of(COPY), allow=(stat.S_IFIFO,), is_of_engine=True)
        finally:
            await self.host.destroy(COPY)

    def _volume_of(self, session_id: str) -> Path:
        return self.settings.data / "volumes" / self.host._lifecycle.find(session_id).row.volume / "u"  # pyright: ignore[reportPrivateUsage] - where its files lie

    # ---- hosts -------------------------------------------------------------------------------------------------

    async def _restore(self, case: Case, section: str) -> None:
        again = self.place / "again"
        again.mkdir(mode=0o700)
        (again / "templates").symlink_to((self.settings.data / "templates").resolve())
        try:
            data = spoiled(self.saved, section, case, self.outside)
            engine = build(replace(self.settings, data=again)).restores()
            await engine.restore(RestoreRequest(), pieces(data, 1 << 20), lambda _what, _count, _of: None)
        finally:
            self.check_tree(again, allow=(stat.S_IFIFO, stat.S_IFSOCK), is_of_engine=True)
            (again / "templates").unlink()
            shutil.rmtree(again)

    async def backup_session(self, case: Case) -> None:
        await self._restore(case, "sessions/0001/now")

    async def backup_template(self, case: Case) -> None:
        await self._restore(case, "templates/0001")

    async def backup_volume(self, case: Case) -> None:
        await self._restore(case, "volumes/0001")

    async def backup_state(self, case: Case) -> None:
        await self._restore(case, "state")

    # ---- out of a session, onto the machine of whoever asked ---------------------------------------------------

    async def download(self, case: Case) -> None:
        target = self.place / "target"
        data = case.archive(self.outside)
        target.mkdir()
        try:
            await unpack(pieces(data), str(target), (), TreeTally())
        finally:
            self.check_tree(target, allow=(), may_lead_out=False)
            shutil.rmtree(target)

    async def search_in_a_vendors_sandbox(self, case: Case) -> None:
        """Held in memory, and nothing but what was asked for."""
        data = case.archive(self.outside)
        found = derived_files._unpack(data, frozenset({"x"}))  # pyright: ignore[reportPrivateUsage] - a vendor answers it
        assert found.keys() <= {"x"}
        assert not self.outside.is_told_by(found)

    # ---- what is true behind each of them ----------------------------------------------------------------------

    def check_tree(
        self, top: Path, *, allow: Sequence[int] = (), may_lead_out: bool = True, is_of_engine: bool = False
    ) -> None:
        """Files, directories and links, none of them one of the outside, and no mark that the kernel would act on."""
        kinds = {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, *allow}
        outside = {(one.lstat().st_dev, one.lstat().st_ino) for one in self.outside.folder.rglob("*")}
        for below, folders, files in os.walk(os.fsencode(top)):
            for name in (*folders, *files):
                path = os.path.join(below, name)  # noqa: PTH118 - its names are bytes
                found = os.lstat(path)
                assert (found.st_dev, found.st_ino) not in outside, f"{path!r} is a file of the machine"
                if is_of_engine and found.st_rdev == 0 and stat.S_ISCHR(found.st_mode):
                    continue  # how the kernel marks what a session removed
                assert stat.S_IFMT(found.st_mode) in kinds, f"{path!r} is something else"
                if not allow and not is_of_engine and may_lead_out is False:
                    assert not found.st_mode & 0o6000 or stat.S_ISDIR(found.st_mode), f"{path!r} has rights of its own"
                if stat.S_ISLNK(found.st_mode):
                    assert may_lead_out or os.path.realpath(path).startswith(os.fsencode(top.resolve())), (
                        f"{path!r} leads out"
                    )
                    continue
                if stat.S_ISREG(found.st_mode) and found.st_size < 1 << 20:
                    with open(path, "rb") as file:  # noqa: PTH123 - the same
                        assert self.outside.mark.encode() not in file.read(), f"{path!r} tells a secret"
                marks = {mark for mark in os.listxattr(path, follow_symlinks=False) if "overlay" in mark}
                if is_of_engine:  # what a session may set itself means nothing to the kernel that mounts for it
                    marks = {mark for mark in marks - _OF_KERNEL if not mark.startswith("user.")}
                assert not marks, f"{path!r} has {marks}"

    def check_machine(self) -> None:
        """Nothing has the name that all of them try to make, but below the roots of templates and volumes."""
        above = [self.place, *self.place.parents]
        assert not [one for one in above if os.path.lexists(one / PLANTED)]
        for below, folders, files in os.walk(self.settings.data):
            if Path(below).name in ("root", "u"):
                folders.clear()
            assert PLANTED not in {*folders, *files}, f"in {below}"
        if self._imports.exists():
            left = {path.name for path in self._imports.iterdir()} - self.left - {"names.json", "blobs"}
            assert not left, f"templates that nobody has: {left}"


Attempt = Callable[[Doors, Case], Awaitable[None]]
TEMPLATES: tuple[Attempt, ...] = (
    Doors.root_filesystem,
    Doors.root_filesystem_compressed,
    Doors.image_layout,
    Doors.image_layout_in_a_file,
    Doors.docker_save,
    Doors.registry,
)
BACKUPS: tuple[Attempt, ...] = (
    Doors.backup_session,
    Doors.backup_template,
    Doors.backup_volume,
    Doors.backup_state,
)
QUICK: tuple[Attempt, ...] = (
    Doors.upload,
    Doors.upload_by_root,
    Doors.import_of_a_session,
    Doors.download,
    Doors.search_in_a_vendors_sandbox,
)
# Where archives are read, and the doors that lead there: a module that begins to read them is missing here.
READERS: dict[str, tuple[Attempt, ...]] = {
    "environments/derived_files.py": (Doors.search_in_a_vendors_sandbox,),
    "host/importing.py": (Doors.import_of_a_session,),
    "host/restoring.py": BACKUPS,
    "host/templates/unpacking/child.py": (*TEMPLATES, Doors.docker_save_itself),
    "host/unpacking.py": (Doors.upload, Doors.upload_by_root),
    "sdk/unpacking.py": (Doors.download,),
}


# ---- an export in which there is more than its engine wrote --------------------------------------------------------


def spoiled(data: bytes, section: str, case: Case, outside: Outside) -> bytes:
    """An export or a backup, whole and with a right digest, with members behind those of one section."""
    plain = gzip.decompress(data)
    members = list(_members(plain))
    last = max(number for number, (_at, name) in enumerate(members) if f"{name}/".startswith(f"{section}/root/"))
    at, end = members[last + 1][0], members[-1][0]
    below = f"{section}/root/{BELOW}"
    hostile = [(_moved(member, below), content) for member, content in case.members(outside)]
    more = pack([folder(below), *hostile], case.spoil, as_export=True)
    plain = plain[:at] + more + plain[at:end]
    told = {"sha256": hashlib.sha256(plain).hexdigest(), "members": len(members) - 1 + 1 + len(hostile)}
    return gzip.compress(plain + pack([entry("end.json", json.dumps(told).encode())]) + END, 1)


def _moved(member: tarfile.TarInfo, below: str) -> tarfile.TarInfo:
    member.name = f"{below}/{member.name}"
    if "path" in member.pax_headers:
        member.pax_headers = {**member.pax_headers, "path": f"{below}/{member.pax_headers['path']}"}
    if member.islnk():
        member.linkname = f"{below}/{member.linkname}"
    return member


def _members(plain: bytes) -> list[tuple[int, str]]:
    """Where each begins, and its name."""
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as archive:
        return [(member.offset, member.name) for member in archive]
