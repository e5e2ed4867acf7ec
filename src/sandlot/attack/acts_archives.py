"""Archives and images of a stranger: unpacked into a session, and made a template."""

import asyncio
import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sandlot.attack.arena import Arena, pieces
from sandlot.attack.rows import ROOT
from sandlot.attack.verdicts import Escaped, Leaked, demand
from sandlot.model import (
    FileKind,
    FileRead,
    FileStat,
    InvalidArgument,
    SandlotError,
    SessionSpec,
    TemplateImport,
    TreeUpload,
)

_EVIL = b"evil"
_BOMB_BYTES = 192 << 20
_NAME = "attack-archives"
_Member = tuple[str, bytes, dict[str, object]]


def _tar(*members: _Member) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data, fields in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(data) if data else None)
    return out.getvalue()


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> _Member:
    return name, b"", {"type": kind, "linkname": target}


def _hostile(outside: str) -> dict[str, Sequence[_Member]]:
    """What leads out, or would be more than a file of the session's user."""
    climbing = "../" * 12 + outside.lstrip("/")
    return {
        "a name that climbs": [(f"{climbing}/climbed", _EVIL, {})],
        "an absolute name": [(f"{outside}/absolute", _EVIL, {})],
        "a file through a link": [_link("way", outside), ("way/through", _EVIL, {})],
        "a file through a chain of links": [_link("a", ".."), _link("b", f"a/{climbing}"), ("b/chained", _EVIL, {})],
        "another name of a file outside": [_link("hard", f"{climbing}/secret", tarfile.LNKTYPE)],
        "a device": [("device", b"", {"type": tarfile.BLKTYPE, "devmajor": 8, "devminor": 0})],
        "a pipe": [("pipe", b"", {"type": tarfile.FIFOTYPE})],
        "a setuid program": [("setuid", _EVIL, {"mode": 0o6755})],
        "a file of another": [("owned", _EVIL, {"uid": 4_000_000, "gid": 4_000_000})],
    }


@contextmanager
def _untouched(folder: Path) -> Generator[None]:
    """Nothing came into it, whatever was tried."""
    before = {path.name for path in folder.iterdir()}
    yield
    if made := sorted({path.name for path in folder.iterdir()} - before):
        raise Escaped(f"made on the machine: {', '.join(made)}")


async def into_session(arena: Arena) -> None:
    """Members that lead out or bring rights, one archive each."""
    folder = arena.bait.sentinel.folder
    with _untouched(folder):
        for number, members in enumerate(_hostile(str(folder)).values()):
            with suppress(SandlotError):  # refused, or contained: what is there afterwards counts
                await arena.host.upload_tree(TreeUpload(arena.session, f"in-{number}", ROOT), pieces(_tar(*members)))
    found = await arena.sh("find /workspace/in-* \\( -perm /6000 -o -type b -o -type c -o -type p \\) | xargs")
    if found.text:
        raise Escaped(f"unpacked with rights of their own: {found.text}")
    secret = arena.bait.sentinel.secret.decode(errors="replace").strip()
    found = await arena.sh(f"grep -rl -- '{secret}' /workspace/in-* 2>/dev/null | xargs")
    if found.text:
        raise Escaped(f"a secret of the machine: {found.text}")


async def bombs(arena: Arena) -> None:
    """What is small outside and large inside, or says that it is large and is not."""
    packed = await asyncio.to_thread(gzip.compress, bytes(_BOMB_BYTES), 1)
    try:
        await arena.host.upload_tree(TreeUpload(arena.session, "bomb", ROOT), pieces(packed))
        raise Escaped("an archive that is compressed was unpacked")
    except InvalidArgument:
        pass
    head = tarfile.TarInfo("large")
    head.size = 1 << 40
    try:
        await arena.host.upload_tree(TreeUpload(arena.session, "bomb", ROOT), pieces(head.tobuf(), bytes(4096)))
        raise Escaped("an archive that was cut off was taken for whole")
    except InvalidArgument:
        pass
    with suppress(SandlotError):
        await arena.host.stat_file(FileStat(arena.session, "bomb/large", ROOT))
        raise Leaked("half a file of an archive that was cut off")
    reason = await _imported(arena, packed)
    demand("grows" in reason or "tar archive" in reason, f"a bomb was made a template: {reason or 'taken'}")


async def image(arena: Arena) -> None:
    """Hostile layers and words. What is not refused means its own root, in the template as in its sessions."""
    folder = arena.bait.sentinel.folder
    with _untouched(folder):
        for what, members in _hostile(str(folder)).items():
            await _imported(arena, _tar(("./bin", b"", {"type": tarfile.DIRTYPE}), *members), what)
        await _imported(arena, _saved({"Env": ["LD_PRELOAD=/x"] * 3, "Entrypoint": ["/bin/sh"], "User": "../../x"}))
        await _linked_etc(arena, folder)


async def _linked_etc(arena: Arena, folder: Path) -> None:
    members: tuple[_Member, ...] = (
        _link("etc", str(folder)),
        ("etc/evil", _EVIL, {}),
        _link("proc", str(folder)),
        (".wh..wh..opq", b"", {}),
        (".wh.secret", b"", {}),
    )
    if await _imported(arena, _tar(*members), keep=True):
        return  # refused is fine too
    try:
        session = (await arena.host.create(SessionSpec(template=_NAME))).session_id
        try:
            with suppress(SandlotError):
                async with arena.host.read_file(FileRead(session, "/etc/secret", ROOT)) as stream:
                    read = b"".join([piece async for piece in stream])
                if arena.bait.sentinel.secret in read:
                    raise Escaped("a linked /etc shows a secret of the machine")
            with suppress(SandlotError):
                kind = (await arena.host.stat_file(FileStat(session, "/proc", ROOT, follow=False))).kind
                demand(kind is FileKind.DIRECTORY, "the /proc of a session is what its template says")
        finally:
            await arena.destroy(session)
    finally:
        await arena.host.remove_template(_NAME)


def _saved(config: dict[str, object]) -> bytes:
    """As `docker save` writes it."""
    layer = _tar(("file", _EVIL, {}), (".wh.", b"", {}))
    text = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "Layers": ["layer.tar"], "RepoTags": []}]).encode()
    return _tar(("manifest.json", manifest, {}), (name, text, {}), ("layer.tar", layer, {}))


async def _imported(arena: Arena, content: bytes, what: str = "", *, keep: bool = False) -> str:
    """Why it was refused; empty when it became a template, which is gone again unless it is kept."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(content)
        file.flush()
        try:
            async with arena.host.make_template(TemplateImport(file.name, _NAME)) as steps:
                async for _step in steps:
                    pass
        except InvalidArgument as error:
            demand(bool(error.message), f"{what}: refused without a reason")
            return error.message
    if not keep:
        await arena.host.remove_template(_NAME)
    return ""
