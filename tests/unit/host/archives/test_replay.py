"""What is found between two points, put onto another volume, gives the same point: directly, and by way of a file."""

import itertools
import os
import random
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from sandlot.contracts.storage import Shown, Volume
from sandlot.host.archives.applying import apply_entries
from sandlot.host.archives.entries import CAPABILITY, Entry, attribute_of, is_kept, owner_of
from sandlot.host.archives.finding import find_entries
from sandlot.host.archives.reading import ArchiveReader
from sandlot.host.archives.writing import MANIFEST, ArchiveWriter
from sandlot.host.storage.canonical import CANONICAL_ID
from tests.unit.host.storage import overlays

pytestmark = pytest.mark.root

POINTS = 5
EDITS = 20
SECTION = "points/0001"


def make_template(folder: Path) -> Path:
    for name in ("base", "etc"):
        (folder / name).mkdir(parents=True)
    (folder / "base" / "f").write_text("hello")
    (folder / "base" / "g").write_text("bye")
    (folder / "etc" / "passwd").write_text("x")
    (folder / "base" / "link").symlink_to("f")
    return folder


def own(upper: Path) -> None:
    """As a session's root does: on disk all of it has canonical owners."""
    for folder, folders, files in os.walk(upper):
        for name in (".", *folders, *files):
            path = f"{folder}/{name}"
            found = os.lstat(path)
            if stat.S_ISCHR(found.st_mode):
                continue
            capability = os.getxattr(path, CAPABILITY, follow_symlinks=False) if CAPABILITY in listed(path) else b""
            numbers = [each if each >= CANONICAL_ID else each + CANONICAL_ID for each in (found.st_uid, found.st_gid)]
            os.chown(path, *numbers, follow_symlinks=False)
            if not stat.S_ISLNK(found.st_mode):
                Path(path).chmod(stat.S_IMODE(found.st_mode))
            if capability:
                os.setxattr(path, CAPABILITY, capability, follow_symlinks=False)


def listed(path: str) -> list[str]:
    return os.listxattr(path, follow_symlinks=False)


def seen(layers: Sequence[Path]) -> dict[str, tuple[object, ...]]:
    """In the session's own numbers."""
    told: dict[str, tuple[object, ...]] = {}
    for path, marks in overlays.view(layers).items():
        mode, uid, gid, size, time, device, content, names, attributes, same = marks
        assert isinstance(uid, int)
        assert isinstance(gid, int)
        assert isinstance(attributes, list)
        kept = [(name, attribute_of(name, value)) for name, value in attributes if is_kept(name)]  # pyright: ignore
        told[path] = (mode, owner_of(uid), owner_of(gid), size, time, device, content, names, kept, same)
    return told


def through_a_file(entries: Iterable[Entry]) -> tuple[ArchiveReader, Iterable[Entry]]:
    writer = ArchiveWriter()
    data = b"".join(itertools.chain(writer.document(MANIFEST, {}), writer.section(SECTION, entries), writer.end()))
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    reader = ArchiveReader(lambda: pieces.pop(0) if pieces else b"")
    reader.manifest()
    return reader, reader.section(SECTION)


@pytest.mark.parametrize("seed", range(8))
def test_points_carried_over_are_the_same(tmp_path: Path, seed: int) -> None:
    is_whole, by_file = bool(seed & 1), bool(seed & 2)
    rng = random.Random(seed)
    template = make_template(tmp_path / "template")
    source: list[Path] = []
    target: list[Path] = []
    if is_whole:
        overlays.layer(tmp_path / "whole")
    for number in range(POINTS):
        upper = overlays.layer(tmp_path / f"source-{number}")
        with overlays.session(upper, [*source, template]) as root:
            overlays.Session(root, rng).work(EDITS)
        own(upper / "u")
        before, source = source, [upper / "u", *source]
        entries: Iterable[Entry] = find_entries(template, Shown(tuple(before), tuple(source), tuple(source[:1])))
        reader = None
        if by_file:
            reader, entries = through_a_file(entries)
        folder = tmp_path / "whole" if is_whole else overlays.layer(tmp_path / f"target-{number}")
        for _count in apply_entries(Volume("v-1", folder, () if is_whole else tuple(target)), template, entries):
            pass
        if reader:
            reader.end()
        target = [folder / "u"] if is_whole else [folder / "u", *target]
        assert seen([*target, template]) == seen([*source, template])
        for at, folders, files in os.walk(folder / "u"):
            for name in (*folders, *files):
                found = os.lstat(f"{at}/{name}")
                assert stat.S_ISCHR(found.st_mode) or min(found.st_uid, found.st_gid) >= CANONICAL_ID, (at, name)
