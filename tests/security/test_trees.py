"""Archives that mean harm, given to a session: refused or contained, nothing outside touched, no file by halves."""

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, Client, FileConflict, InvalidArgument, LimitReached, SandlotError
from sandlot.model import TreeDownload, TreeTally, TreeUpload, limits

pytestmark = pytest.mark.root


def archive(*members: tuple[str, bytes, str] | tuple[str, bytes, str, int]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, kind, text, *mode in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, mode[0] if mode else 0o644
            if kind == tarfile.REGTYPE:
                info.size = len(text)
                made.addfile(info, io.BytesIO(text.encode()))
            else:
                info.linkname = text
                made.addfile(info)
    return buffer.getvalue()


async def send(client: Client, sandbox: AsyncSandbox, data: bytes, path: str = "t", piece: int = 4096) -> TreeTally:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(data), piece):
            yield data[at : at + piece]

    async def work() -> TreeTally:
        return await (await client.host()).upload_tree(TreeUpload(sandbox.id, path), pieces())

    return await client.run(work())


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


async def test_hostile_archives(data_dir: Path, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    bait.write_text("bait")
    async with Client(data_dir=data_dir) as client, await AsyncSandbox.create(client=client) as sandbox:
        await sandbox.commands.run("mkdir -p t/planted-in /tmp/other; ln -s /tmp/other t/planted; echo x > t/file")
        refused: list[tuple[bytes, type[SandlotError]]] = [
            (archive(("../up", FILE, "x")), InvalidArgument),
            (archive(("/tmp/root", FILE, "x")), InvalidArgument),
            (archive(("a/../../up", FILE, "x")), InvalidArgument),
            (archive(("dev", tarfile.CHRTYPE, "")), InvalidArgument),
            (archive(("disk", tarfile.BLKTYPE, "")), InvalidArgument),
            (archive(("pipe", tarfile.FIFOTYPE, "")), InvalidArgument),
            (archive(("hard", HARD, "../../etc/passwd")), InvalidArgument),
            (archive(("hard", HARD, "/etc/passwd")), InvalidArgument),
            (archive(("l", LINK, "/tmp/other"), ("l/x", FILE, "x")), FileConflict),
            (archive(("m", LINK, "/tmp/other"), ("hard", HARD, "m/x")), FileConflict),
            (archive(("planted/x", FILE, "x")), FileConflict),
            (archive(("planted", FOLDER, "")), FileConflict),
            (archive(("file/x", FILE, "x")), FileConflict),
            (archive(("planted-in", FILE, "x")), FileConflict),
            (b"\x1f\x8b\x08" + bytes(2000), InvalidArgument),
            (archive(("whole", FILE, "x"), ("half", FILE, "y" * 9000))[:7000], InvalidArgument),
        ]
        for data, error in refused:
            with pytest.raises(error) as caught:
                await send(client, sandbox, data)
            assert caught.value.message
            assert "files_done" in caught.value.context
        left = await sandbox.commands.run("ls -A /tmp/other; ls -A . t | LC_ALL=C sort | tr '\\n' ' '")
        assert left.stdout.strip() == ".: file l m planted planted-in t t: whole", left
        assert bait.read_text() == "bait"


async def test_what_is_contained(data_dir: Path) -> None:
    async with Client(data_dir=data_dir) as client, await AsyncSandbox.create(client=client) as sandbox:
        await sandbox.commands.run("mkdir t; ln -s /etc/passwd t/link; echo old > t/kept; ln t/kept t/other")
        tally = await send(
            client,
            sandbox,
            archive(
                ("suid", FILE, "x", 0o6755),
                ("out", LINK, "../../../../etc/shadow"),
                ("link", FILE, "not passwd"),
                ("kept", FILE, "new"),
                ("again", HARD, "suid"),
                ("deep/er/file", FILE, "made"),
                ("locked", FOLDER, "", 0o500),
                ("locked/in", FILE, "filled"),
            ),
        )
        assert (tally.files, tally.links, tally.directories) == (6, 1, 3)
        script = "cd t; stat -c '%a %U' suid locked; readlink out; cat link kept other; echo; ls -A deep/er locked ."
        seen = (await sandbox.commands.run(script)).stdout.split()
        assert seen[:5] == ["755", "user", "500", "user", "../../../../etc/shadow"]
        assert " ".join(seen[5:7]) == "not passwdnewold", "a link is replaced, not written through; so is another name"
        assert (await sandbox.commands.run("grep -c root: /etc/passwd")).stdout.strip() == "1"
        assert not any(name.startswith(".sandlot") for name in seen)


async def test_members_are_counted(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TREE_ENTRIES_MAX", 50)
    async with Client(data_dir=data_dir) as client, await AsyncSandbox.create(client=client) as sandbox:
        with pytest.raises(LimitReached, match="more than 50 members"):
            await send(client, sandbox, archive(*[(f"d{n}", FOLDER, "") for n in range(60)]))


async def test_what_a_session_holds_comes_out_and_nothing_else(data_dir: Path) -> None:
    async with Client(data_dir=data_dir) as client, await AsyncSandbox.create(client=client) as sandbox:
        await sandbox.commands.run(
            "mkdir t; cd t; mkfifo p; ln -s / root; echo x > f; chmod 4755 f; mkdir d; echo y > d/g"
        )

        async def take(path: str) -> tuple[bytes, TreeTally]:
            data = b""
            async with (await client.host()).download_tree(TreeDownload(sandbox.id, path)) as stream:
                async for piece in stream:
                    data += piece
            return data, stream.tally

        data, tally = await client.run(take("t"))
        with tarfile.open(fileobj=io.BytesIO(data)) as made:
            assert sorted(made.getnames()) == [".", "d", "d/g", "f", "root"]
            assert made.getmember("root").issym()
            assert made.getmember("f").mode == 0o755
        assert (tally.files, tally.skipped) == (2, [("p", "a pipe, a socket or a device")])
        for path in ("/proc", "t/root/proc", "/dev", "t/f"):
            with pytest.raises(SandlotError):
                await client.run(take(path))
