"""Templates from directories, tars and images: what is in them is in their sessions, and what they say is honoured."""

import bz2
import gzip
import json
import lzma
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from sandlot import Client, Sandbox, Templates
from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.canonical import CANONICAL_ID
from sandlot.model import (
    CallRequest,
    Conflict,
    InvalidArgument,
    SessionSpec,
    TemplateImport,
    TemplateInfo,
    TemplateNotFound,
    TemplateStep,
)
from tests import archives
from tests.archives import Image, busybox_members, busybox_tar, entry, folder, hard_link, link, tar
from tests.conftest import run

pytestmark = pytest.mark.root


async def make(host: SandboxHostService, path: Path, name: str = "t") -> TemplateInfo:
    steps: list[TemplateStep] = []
    async with host.make_template(TemplateImport(str(path), name)) as events:
        async for event in events:
            if isinstance(event, TemplateInfo):
                return event
            steps.append(event)
    raise AssertionError("nothing was made")


async def said(host: SandboxHostService, template: str, command: str, user: str | None = None) -> str:
    """What a command prints in a new session."""
    session = await host.create(SessionSpec(template=template))
    ran = await run(host, CallRequest(session.session_id, ("/bin/sh", "-c", command), user=user))
    await host.destroy(session.session_id)
    assert ran.exit_code == 0, ran
    return ran.stdout.decode()


@pytest.fixture
def root_tar(tmp_path: Path) -> Path:
    path = tmp_path / "root.tar"
    path.write_bytes(busybox_tar())
    return path


@pytest.mark.parametrize("how", ["plain", "gzip", "bzip2", "xz", "zstd"])
async def test_a_root_as_a_tar_of_any_compression(host: SandboxHostService, root_tar: Path, how: str) -> None:
    pack = {
        "plain": bytes,
        "gzip": gzip.compress,
        "bzip2": bz2.compress,
        "xz": lzma.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }[how]
    root_tar.write_bytes(pack(root_tar.read_bytes()))
    made = await make(host, root_tar, "busy:1")
    assert made.names == ("busy:1",)
    assert await said(host, "busy:1", "id -u; pwd; cat /etc/passwd; ls -d /proc/1 /dev/null /tmp") == (
        f"0\n/workspace\n{archives.PASSWD.decode()}/dev/null\n/proc/1\n/tmp\n"
    )
    # The same files have the same digest, however they were packed.
    plain = root_tar.with_name("plain.tar")
    plain.write_bytes(busybox_tar())
    assert (await make(host, plain, "other")).digest == made.digest
    assert (await host.get_template(made.digest[:19])).names == ("busy:1", "other:latest")


async def test_a_directory(host: SandboxHostService, root_tar: Path, tmp_path: Path) -> None:
    source = tmp_path / "root"
    with tarfile.open(root_tar) as archive:
        archive.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # Python has it from 3.11.4
        archive.extractall(source)
    (source / "data").write_bytes(b"hello")
    os.chown(source / "data", 1000, 2000)
    (source / "data").chmod(0o4750)
    os.link(source / "data", source / "twin")
    os.mkfifo(source / "pipe")
    (source / "out").symlink_to("/etc/shadow")
    os.setxattr(source / "data", "user.mark", b"kept")
    with (source / "holes").open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(b"in the middle")
    made = await make(host, source)
    assert made.left_out == {"device, pipe or socket": 1}
    assert made.size_bytes < 10 << 20, "holes stay holes"
    shown = await said(host, "t", "stat -c '%u %g %a %h' /data; stat -c %s /holes; test -p /pipe || echo none")
    assert shown == "1000 2000 4750 2\n1073741824\nnone\n"
    again = await make(host, source, "again")
    assert again.digest == made.digest


async def test_layers_of_an_image(host: SandboxHostService, tmp_path: Path) -> None:
    """Later layers replace, hide and clear what earlier ones hold."""
    first = tar(
        *busybox_members(),
        folder("keep"),
        entry("keep/old", b"old"),
        entry("keep/both", b"old"),
        folder("gone"),
        entry("gone/file", b"x"),
        entry("file", b"x"),
        folder("was-directory"),
        entry("was-directory/x", b"x"),
        link("was-link", "keep"),
        folder("deep/er"),
        entry("deep/er/old", b"x"),
    )
    second = tar(
        entry("keep/new", b"new"),
        entry("keep/.wh..wh..opq"),
        entry("keep/both", b"new"),
        entry(".wh.gone"),
        entry(".wh.file"),
        entry("was-directory", b"now a file"),
        folder("was-link"),
        entry("was-link/inside", b"x"),
        entry("deep/er/new", b"x"),
        entry("deep/.wh..wh..opq"),
        hard_link("copy", "bin/busybox"),
    )
    config = {
        "Env": ["PATH=/bin", "GREETING=hello you", "OWN=template"],
        "WorkingDir": "/srv/app",
        "User": "app:apps",
        "Entrypoint": ["/bin/sh"],
        "Cmd": ["-c", "true"],
        "Labels": {"by": "someone"},
    }
    layout = Image([first, second], config).write_layout(tmp_path / "layout")
    made = await make(host, layout, "image:2")
    assert (made.user, made.cwd, made.entrypoint, made.command) == (
        "1000:2000",
        "/srv/app",
        ("/bin/sh",),
        ("-c", "true"),
    )
    listed = await said(
        host, "image:2", "cd /; ls keep deep/er was-link; cat keep/both was-directory; ls gone file; true"
    )
    assert listed.split() == ["deep/er:", "new", "keep:", "both", "new", "was-link:", "inside", "newnow", "a", "file"]
    session = await host.create(SessionSpec(template="image:2", envs={"OWN": "session"}))
    assert session.workspace == "/srv/app"
    command = "pwd; id -u; id -g; echo $GREETING $OWN $PATH; echo x > here; stat -c %h /copy"
    ran = await run(host, CallRequest(session.session_id, ("/bin/sh", "-c", command)))
    assert ran.stdout.decode() == "/srv/app\n1000\n2000\nhello you session /bin\n2\n", ran


@pytest.mark.parametrize("form", ["layout", "layout tar", "saved", "saved gzip"])
async def test_every_form_of_an_image_is_the_same_template(host: SandboxHostService, tmp_path: Path, form: str) -> None:
    image = Image([busybox_tar(), tar(entry("second", b"2"))], {"Env": ["A=1"]})
    path = tmp_path / "image"
    if form == "layout":
        image.write_layout(path)
    elif form == "layout tar":
        path.write_bytes(tar(*(entry(name, data) for name, data in image.layout().items())))
    else:
        path.write_bytes(image.saved() if form == "saved" else gzip.compress(image.saved()))
    made = await make(host, path)
    assert made.envs == {"A": "1"}
    assert await said(host, "t", "cat /second; echo $A") == "21\n"
    other = Image([busybox_tar(), tar(entry("second", b"2"))], {"Env": ["A=1"]}, zipped=False)
    assert (await make(host, other.write_layout(tmp_path / "other"), "other")).digest == made.digest


async def test_owners_and_rights_are_those_of_the_archive(host: SandboxHostService, tmp_path: Path) -> None:
    capability = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)
    path = tmp_path / "root.tar"
    path.write_bytes(
        tar(
            *busybox_members(),
            entry("bin/setuid", b"x", mode=0o4755, uid=65535, gid=1),
            entry("bin/capable", b"x", mode=0o755, pax_headers={"SCHILY.xattr.security.capability": _text(capability)}),
            entry(
                "mark", b"x", pax_headers={"SCHILY.xattr.user.mark": "v", "SCHILY.xattr.trusted.overlay.opaque": "y"}
            ),
        )
    )
    made = await make(host, path)
    assert made.left_out == {"extended attribute": 1}
    assert await said(host, "t", "stat -c '%u %g %a' /bin/setuid") == "65535 1 4755\n"
    root = Path(host._settings.data / "imports" / made.digest[7:] / "root")  # pyright: ignore[reportPrivateUsage]
    owners = {os.lstat(found).st_uid for found in (root, *root.rglob("*"))}
    assert owners == {CANONICAL_ID, CANONICAL_ID + 65535}, "nothing on disk belongs to users of the machine"
    assert os.getxattr(root / "mark", "user.mark") == b"v"
    with pytest.raises(OSError, match="No data"):
        os.getxattr(root / "mark", "trusted.overlay.opaque")
    stored = os.getxattr(root / "bin" / "capable", "security.capability")
    assert struct.unpack("<IIIIII", stored)[5] == CANONICAL_ID, "it holds in sessions, and not for users of the machine"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


async def test_names_and_removal(host: SandboxHostService, root_tar: Path, tmp_path: Path) -> None:
    made = await make(host, root_tar, "one:1")
    assert (await host.tag_template("one:1", "two")).names == ("one:1", "two:latest")
    session = await host.create(SessionSpec(template="two"))
    assert session.template == "two:latest"
    assert (await host.get_template("one:1")).sessions == 1
    await host.remove_template("one:1")
    with pytest.raises(TemplateNotFound):
        await host.create(SessionSpec(template="one:1"))
    with pytest.raises(Conflict, match="stand on"):
        await host.remove_template("two")
    with pytest.raises(Conflict):
        await host.remove_template(made.digest)
    assert not await host.prune_templates(0)
    forked = await host.create(SessionSpec(template=made.digest))
    await host.destroy(session.session_id)
    await host.destroy(forked.session_id)
    await host.remove_template("two")
    assert not await host.list_templates()
    folder = host._settings.data / "imports"  # pyright: ignore[reportPrivateUsage]
    assert [path.name for path in folder.iterdir()] == ["names.json"]
    for wrong in ("builtin", "builtin:2", "sha256:" + "0" * 64, "../x", "a:b:c", "", "a/b"):
        with pytest.raises(InvalidArgument):
            TemplateImport(str(root_tar), wrong)


async def test_prune_takes_the_least_recently_used(host: SandboxHostService, tmp_path: Path) -> None:
    for name in ("old", "used", "new"):
        path = tmp_path / name
        path.write_bytes(tar(*busybox_members(), entry("name", name.encode())))
        await make(host, path, name)
    for kept in host._parts.templates._library.all():  # pyright: ignore[reportPrivateUsage]
        (kept.folder / "template.json").write_text(replace(kept.metadata, created=1e9).to_text())
        os.utime(kept.folder / "template.json", (1e9, 1e9))
    await host.destroy((await host.create(SessionSpec(template="old"))).session_id)
    size = (await host.get_template("new")).size_bytes
    removed = await host.prune_templates(2 * size)
    assert [template.names for template in removed] == [("used:latest",)]
    assert [template.names for template in await host.list_templates()] == [("old:latest",), ("new:latest",)]


async def test_leaving_early_gives_it_up(host: SandboxHostService, tmp_path: Path) -> None:
    big = tmp_path / "big.tar"
    big.write_bytes(tar(*busybox_members(), *(entry(f"f{n}", bytes(20_000)) for n in range(2_000))))
    async with host.make_template(TemplateImport(str(big), "big")) as steps:
        async for _step in steps:
            break
    assert not await host.list_templates()
    imports = host._settings.data / "imports"  # pyright: ignore[reportPrivateUsage]
    assert not [path for path in imports.iterdir() if path.name != "names.json"]


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    with Client(data_dir=settings.data) as client:
        yield client


def test_sdk_and_command_line(client: Client, settings: Settings, root_tar: Path) -> None:
    templates = Templates(client=client)
    heard: list[TemplateStep] = []
    made = templates.import_path(root_tar, "busy", on_step=heard.append)
    assert heard
    with Sandbox.create("busy", client=client) as sandbox:
        assert sandbox.commands.run("echo $0").stdout == "/bin/sh\n"
    client.close()

    def sandlot(*words: str, code: int = 0) -> str:
        line = [sys.executable, "-m", "sandlot", "--data-dir", str(settings.data), "template", *words]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done
        return done.stdout if code == 0 else done.stdout + done.stderr

    assert sandlot("import", str(root_tar), "again:2").strip() == made.digest
    assert sandlot("ls").split()[:8] == ["NAME", "DIGEST", "SIZE", "FILES", "MADE", "USED", "SESSIONS", "again:2,"]
    assert json.loads(sandlot("show", "busy", "--json"))["names"] == ["again:2", "busy:latest"]
    assert "root.tar" in sandlot("show", "busy")
    sandlot("tag", "busy", "third")
    sandlot("rm", "busy", "again:2", "third")
    assert "template_not_found" in sandlot("show", "busy", "--json", code=125)
    assert json.loads(sandlot("prune", "--budget", "1G", "--json")) == {"removed": []}
    assert "usage" in sandlot("tag", "one", code=2)
