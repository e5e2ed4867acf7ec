"""Hostile archives: each is refused with a reason that says what is wrong, or contained; nothing outside is touched."""

import bz2
import gzip
import json
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.host.templates import unpacker
from sandlot.model import CallRequest, InvalidArgument, SessionSpec, TemplateImport, TemplateInfo, Unavailable, limits
from tests.archives import Image, busybox_members, busybox_tar, digest, entry, folder, hard_link, link, tar
from tests.conftest import run

pytestmark = pytest.mark.root

REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "dots": (lambda: tar(folder("a"), entry("a/../../out", b"x")), "leads out of the template"),
    "dots in a link": (lambda: tar(hard_link("a", "../../etc/passwd")), "leads out of the template"),
    "hard link to nothing": (lambda: tar(hard_link("a", "/etc/passwd")), "which is not there"),
    "hard link to a directory": (lambda: tar(folder("d"), hard_link("a", "d")), "links to a directory"),
    "below a file": (lambda: tar(entry("a", b"x"), entry("a/b", b"x")), "cannot be made"),
    "loop": (lambda: tar(link("a", "b"), link("b", "a"), entry("a/x", b"x")), "cannot be made"),
    "deep": (lambda: tar(folder("/".join(["d"] * 300))), "levels deep"),
    "long name": (lambda: tar(entry("n" * 300, b"x")), "cannot be made"),
    "endless name": (lambda: tar(entry("n/" * 50_000 + "x", b"x")), "too long|levels deep"),
    "foreign user": (lambda: tar(entry("a", b"x", uid=65536)), "a session has the ids 0 to 65535"),
    "foreign group": (lambda: tar(entry("a", b"x", gid=1 << 30)), "a session has the ids 0 to 65535"),
    "cut": (lambda: tar(entry("a", bytes(9999)))[:2000], "ends in the middle"),
    "nothing": (lambda: b"", "nothing in it"),
    "no archive": (lambda: b"#!/bin/sh\n" * 100, "not a tar archive"),
    "broken gzip": (lambda: gzip.compress(tar(entry("a", os.urandom(5000))))[:3000], "gzip stream is broken"),
    "broken bzip2": (
        lambda: bz2.compress(tar(entry("a", os.urandom(5000))))[:3000],
        "bzip2 stream is broken|not a tar",
    ),
    "bomb": (lambda: gzip.compress(tar(entry("zeros", bytes(200 << 20)))), "times its size"),
    "large header": (lambda: tar(entry("a", b"x", pax_headers={"x": "y" * (2 << 20)})), "a header has"),
}


async def make(host: SandboxHostService, path: Path) -> TemplateInfo:
    async with host.make_template(TemplateImport(str(path), "hostile")) as events:
        async for event in events:
            if isinstance(event, TemplateInfo):
                return event
    raise AssertionError("nothing was made")


async def refused(host: SandboxHostService, path: Path, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        await make(host, path)
    assert not await host.list_templates()
    imports = imports_of(host)
    assert not [found.name for found in imports.iterdir() if found.name != "names.json"], "something is left"


def imports_of(host: SandboxHostService) -> Path:
    return host._settings.data / "imports"  # pyright: ignore[reportPrivateUsage]


async def test_hostile_archives_are_refused(host: SandboxHostService, tmp_path: Path) -> None:
    path = tmp_path / "hostile"
    for name, (pack, reason) in REFUSED.items():
        path.write_bytes(pack())
        try:
            await refused(host, path, reason)
        except BaseException as error:  # which one it was, then raised again
            error.add_note(name)
            raise


async def test_what_would_lead_out_stays_in(host: SandboxHostService, tmp_path: Path) -> None:
    """Absolute names and links mean the template's own root, whatever the order of the entries."""
    bait = tmp_path / "bait"
    bait.mkdir()
    path = tmp_path / "hostile.tar"
    path.write_bytes(
        tar(
            *busybox_members(),
            entry("/absolute", b"x"),
            link("up", "../../../../../.."),
            entry("up/tmp/by-dots", b"x"),
            link("out", str(bait)),
            folder(str(bait)),
            entry("out/by-link", b"x"),
            folder("first"),
            link("first", "/etc"),  # a directory becomes a link, and is written through
            entry("first/by-swap", b"x"),
            link("proc", "/etc"),
            link("dev", str(bait)),
            entry("device", type=tarfile.BLKTYPE, devmajor=8, devminor=0),
            entry("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
            entry("pipe", type=tarfile.FIFOTYPE),
            entry("setuid", b"x", mode=0o6777),
        )
    )
    made = await make(host, path)
    assert made.left_out == {"device, pipe or socket": 3}
    assert not list(bait.iterdir()), "something was written outside"
    root = imports_of(host) / made.digest[7:] / "root"
    assert (root / str(bait)[1:] / "by-link").is_file()
    assert (root / "etc" / "by-swap").is_file()
    assert (root / "tmp" / "by-dots").is_file()
    kinds = {stat.S_IFMT(found.lstat().st_mode) for found in root.rglob("*")}
    assert kinds <= {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}
    assert all(stat.S_ISDIR((root / name).lstat().st_mode) for name in ("proc", "dev", "sys"))
    session = await host.create(SessionSpec(template="hostile"))
    ran = await run(host, CallRequest(session.session_id, ("/bin/sh", "-c", "echo > /dev/null && ls /proc/1/status")))
    assert ran.stdout == b"/proc/1/status\n", ran


@pytest.fixture
def image(tmp_path: Path) -> tuple[Image, Path]:
    made = Image([busybox_tar(), tar(entry("second", b"2"))])
    return made, made.write_layout(tmp_path / "layout")


async def test_images_that_are_not_what_they_say(
    host: SandboxHostService, image: tuple[Image, Path], tmp_path: Path
) -> None:
    made, layout = image
    blobs = layout / "blobs" / "sha256"
    for name, reason in ((made.layers[1], "layer is not what"), (made.config, "configuration is not what")):
        blob = blobs / name[7:]
        right = blob.read_bytes()
        wrong = gzip.compress(tar(entry("second", b"evil")), mtime=0) if name in made.layers else right + b" "
        blob.write_bytes(wrong)
        await refused(host, layout, reason)
        blob.unlink()
        await refused(host, layout, "is missing")
        blob.symlink_to("/etc/passwd")
        await refused(host, layout, "cannot be read")
        blob.unlink()
        blob.write_bytes(right)
    index = json.loads((layout / "index.json").read_text())
    for manifests, reason in (
        ([], "not there for linux"),
        (index["manifests"][:1], "it is there for linux/s390x"),
        ([{**index["manifests"][1], "digest": "md5:1234"}], "cannot be checked"),
        ([{**index["manifests"][1], "digest": "sha256:../../../../etc/passwd"}], "cannot be checked"),
        ("text", "not of the form"),
    ):
        (layout / "index.json").write_text(json.dumps({"manifests": manifests}))
        await refused(host, layout, reason)
    (layout / "index.json").write_text("[" * 100_000)
    await refused(host, layout, "not JSON")
    for config, reason in (
        ({"User": "nobody-knows"}, "/etc/passwd knows nobody"),
        ({"WorkingDir": "/a/../../b"}, "leads out"),
        ({"Env": ["A=" + "x" * (1 << 20)]}, "too many variables"),
        ({"Env": "text", "Cmd": [1, 2]}, "of another form"),
    ):
        other = Image([busybox_tar()], config).write_layout(tmp_path / f"other-{digest(reason.encode())[7:15]}")
        await refused(host, other, reason)


async def test_bounds_hold(host: SandboxHostService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hostile.tar"
    path.write_bytes(tar(*(entry(f"e{number}") for number in range(600)), entry("large", bytes(3 << 20))))
    monkeypatch.setattr(limits, "TEMPLATE_ENTRIES_MAX", 500)
    await refused(host, path, "more than 500 entries")
    monkeypatch.undo()
    monkeypatch.setattr(limits, "TEMPLATE_BYTES_MAX", 1 << 20)
    await refused(host, path, "larger than 1048576 bytes")
    # A file that says it is larger than what the archive holds does not get there by holes either.
    holes = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(1 << 59), "GNU.sparse.map": "0,1"}
    path.write_bytes(tar(entry("hole", b"x", pax_headers=holes)))
    await refused(host, path, "cannot be made")


async def test_a_process_that_unpacks_has_no_rights(tmp_path: Path) -> None:
    """What it could do if it were taken over, tried in its place, behind the same walls."""
    attempt = (
        "import os, socket, sys, json\n"
        "from sandlot.host.templates.unpacking import child, jail\n"
        "secret = sys.argv[2]\n"
        "def tries():\n"
        "    yield 'read', lambda: open(secret).read()\n"
        "    yield 'up', lambda: os.stat('/../../../etc/passwd')\n"
        "    yield 'proc', lambda: os.listdir('/proc')\n"
        "    yield 'fork', os.fork\n"
        "    yield 'exec', lambda: os.execv('/bin/sh', ['sh'])\n"
        "    yield 'socket', lambda: socket.socket()\n"
        "    yield 'mknod', lambda: os.mknod('/node', 0o600 | 0o020000, os.makedev(1, 3))\n"
        "    yield 'chroot', lambda: os.chroot('/')\n"
        "    yield 'kill', lambda: os.kill(1, 0)\n"
        "    yield 'setuid', lambda: os.setuid(1)\n"
        "    yield 'unshare', lambda: jail.leave_namespaces()\n"
        "    yield 'foreign', lambda: os.chown('/', 70000, 0)\n"
        "class Tried:\n"
        "    def __init__(self, request): pass\n"
        "    def do(self):\n"
        "        done = {}\n"
        "        for name, act in tries():\n"
        "            try: act(); done[name] = 1\n"
        "            except OSError as error: done[name] = 0\n"
        "        open('/written', 'w').close()\n"
        "        return {'config': {}, 'diff_ids': [], 'entries': 0, 'bytes': 0, 'left_out': done}\n"
        "child.Work = Tried\n"
        "sys.exit(child.main())\n"
    )
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    program = tmp_path / "attempt.py"
    program.write_text(attempt)
    root = tmp_path / "root"
    root.mkdir()
    words = (str(program), str(os.getpid()), str(secret))
    tried = await unpacker.unpack({}, root, "", 0, lambda _step: None, program=words)
    assert set(tried.left_out.values()) == {0}, tried.left_out
    assert [found.name for found in root.iterdir()] == ["written"], "it may write its own tree"


async def test_a_process_that_lies_or_dies_is_not_believed(tmp_path: Path) -> None:
    for text in ("print('{}')", "print('[' * 100000)", "import os; os.abort()", 'print(\'{"done": {"config": 1}}\')'):
        program = tmp_path / "liar.py"
        program.write_text(text)
        root = tmp_path / "root"
        root.mkdir(exist_ok=True)
        with pytest.raises(Unavailable):
            await unpacker.unpack({}, root, "", 0, lambda _step: None, program=(str(program),))
