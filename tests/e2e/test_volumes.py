"""Volumes on real sessions: what they outlive, who may have them, and what a program can do with them."""

import stat
import subprocess
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, AsyncVolume, Client, Conflict, NotFound, PermissionDenied, SandlotError
from sandlot.host.service import SandboxHostService
from sandlot.model import CallRequest, Mount, MoveRequest, SessionSpec, VolumeSpec
from tests.conftest import run as run_call

pytestmark = pytest.mark.root


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def run(sandbox: AsyncSandbox, script: str, user: str | None = None) -> str:
    ran = await sandbox.commands.run(script, user=user)
    assert ran.exit_code == 0, ran
    return ran.stdout.strip()


async def test_a_volume_outlives_rollbacks_forks_and_sessions(data_dir: Path, tmp_path: Path) -> None:
    async with Client(data_dir=data_dir) as client:
        volume = await AsyncVolume.create("cache", shared=True, client=client)
        places = {"/cache": "cache", "/workspace/deep/er": "cache:ro"}
        async with await AsyncSandbox.create(volumes=places, client=client) as one:
            await run(one, "echo first > /cache/f; echo own > own; id -u > /cache/by")
            assert (
                await run(one, "cat deep/er/f; ls -ld deep/er/../../own >/dev/null; stat -c %U /cache/f")
                == "first\nuser"
            )
            assert (await one.commands.run("touch deep/er/x")).exit_code != 0
            await one.turn()
            await run(one, "echo second > /cache/f; rm own")
            sleeping = await one.commands.run("sleep 1000", background=True)
            await sleeping.kill()
            await one.rollback(1)
            assert await run(one, "cat /cache/f own deep/er/f") == "second\nown\nsecond"
            (child,) = await one.fork()
            assert await run(child, "cat /cache/f; echo child > /cache/f") == "second"
            assert await run(one, "cat /cache/f") == "child"
            # every file verb
            assert await one.files.read("/cache/f") == "child\n"
            await one.files.write("/cache/new/g", "by the host")
            assert await run(child, "cat /cache/new/g; stat -c %U /cache/new/g") == "by the hostuser"
            assert [info.name for info in await one.files.list("/cache/new")] == ["g"]
            await one.files.rename("/cache/new/g", "/cache/new/h")
            assert (await one.files.download("/cache", tmp_path / "out")).files == 3
            await one.files.upload(tmp_path / "out", "/cache/again")
            await one.files.remove("/cache/new", recursive=True)
            assert (
                await run(one, "ls /cache /cache/again | tr '\\n' ' '") == "/cache: again by f  /cache/again: by f new"
            )
            for path in ("/proc/1/status", "/dev/null", "/proc/self/root/etc/passwd"):
                with pytest.raises(SandlotError):
                    await one.files.read(path)
            assert (await one.info()).mounts[0].source == "cache"
            await child.kill()
        async with await AsyncSandbox.create(volumes={"/v": "cache"}, client=client) as two:
            assert await run(two, "cat /v/f") == "child"
            assert ((await volume.info()).space_used or 0) > 0
        assert await volume.remove()
        assert not await volume.remove()
        assert names_in(data_dir / "lockers") == []


async def test_who_has_a_volume(data_dir: Path) -> None:
    async with Client(data_dir=data_dir) as client:
        private = await AsyncVolume.create("mine", client=client)
        with pytest.raises(Conflict, match="there is a volume"):
            await AsyncVolume.create("mine", shared=True, client=client)
        with pytest.raises(NotFound, match="no volume other"):
            await AsyncSandbox.create(volumes={"/v": "other"}, client=client)
        with pytest.raises(SandlotError, match="volumes"):
            await AsyncSandbox.create(volumes={"/v": "mine"}, runtime="none", client=client)
        async with await AsyncSandbox.create(volumes={"/v": "mine"}, client=client) as one:
            with pytest.raises(Conflict, match="private"):
                await AsyncSandbox.create(volumes={"/v": "mine"}, client=client)
            with pytest.raises(Conflict, match="private"):
                await one.fork()
            with pytest.raises(Conflict, match="is used by"):
                await private.remove()
            assert (await AsyncVolume.list(client=client))[0].used_by == (one.id,)
            assert [info.session_id for info in await AsyncSandbox.list(client=client)] == [one.id]
        assert await private.remove()


async def test_a_link_in_the_place_of_a_volume_is_not_followed(data_dir: Path) -> None:
    async with Client(data_dir=data_dir) as client:
        await AsyncVolume.create("v", shared=True, client=client)
        async with await AsyncSandbox.create(client=client) as source:
            await run(source, "mkdir -p /etc/target; ln -s /etc/target /place; echo x > /file", user="root")
            await source.create_snapshot("planted")
            for place in ("/place", "/place/below", "/file", "/file/below"):
                with pytest.raises(SandlotError, match="is a link or no directory"):
                    await AsyncSandbox.create(volumes={place: "v"}, snapshot=f"{source.id}/planted", client=client)
            assert len(await AsyncSandbox.list(client=client)) == 1
        # A program that puts a link in the way from within stands in its own light only.
        async with await AsyncSandbox.create(volumes={"/top/v": "v"}, client=client) as one:
            await run(one, "mv /top /moved; ln -s /proc /top; echo x > /moved/v/f", user="root")
            with pytest.raises(SandlotError):
                await one.files.read("/top/self/status")
            assert await one.files.read("/etc/hostname") is not None


async def test_what_a_session_plants_in_a_shared_volume(data_dir: Path, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    bait.write_text("bait")
    async with Client(data_dir=data_dir) as client:
        volume = await AsyncVolume.create("v", shared=True, client=client)
        async with (
            await AsyncSandbox.create(volumes={"/v": "v"}, client=client) as evil,
            await AsyncSandbox.create(volumes={"/v": "v"}, client=client) as good,
        ):
            await run(
                evil,
                f"cp /bin/id /v/id; chmod 6755 /v/id; ln -s {bait} /v/bait; ln -s / /v/root; ln -s ../../../.. /v/up; "
                "mknod /v/disk b 254 0 || true; mkdir -p /v/d/e; echo x > /v/d/e/f",
                user="root",
            )
            assert await run(good, "/v/id -un") == "user", "a program of root's is anyone's"
            assert (await good.commands.run("cat /v/bait")).exit_code != 0
            assert await run(good, "cat /v/up/etc/hostname /v/root/etc/hostname | sort -u | wc -l") == "1"
            with pytest.raises(SandlotError):
                await good.files.read("/v/bait")
            with pytest.raises(SandlotError):
                await good.files.read("/v/root/proc/self/status")
            await volume.info()
        for path in (data_dir / "lockers" / "v" / "files").rglob("*"):
            found = path.lstat()
            assert found.st_uid >= 1 << 28, "nothing in it belongs to anyone of the machine"
            assert not stat.S_ISBLK(found.st_mode)
        assert await volume.remove()
        assert bait.read_text() == "bait"


async def test_directories_of_the_machine(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("read", "write", "roots", "other"):
        (tmp_path / name / "below").mkdir(parents=True)
        (tmp_path / name / "f").write_text(name)
    tmp_path.chmod(0o755)
    for name in ("read", "write"):
        subprocess.run(["chown", "-R", "1234:1235", tmp_path / name], check=True)
        (tmp_path / name).chmod(0o700)
    (tmp_path / "read" / "out").symlink_to(tmp_path / "other")
    allowed = f"{tmp_path / 'read'}:{tmp_path / 'write'}=rw:{tmp_path / 'roots'}=rw"
    monkeypatch.setenv("SANDLOT_MOUNTS", allowed)
    async with Client(data_dir=data_dir) as client:
        for source in ("other", "read/out", "read/../other", "missing", "write/..", "read:rw", "roots:rw"):
            with pytest.raises(PermissionDenied) as caught:
                await AsyncSandbox.create(volumes={"/v": f"{tmp_path}/{source}"}, client=client)
            assert "SANDLOT_MOUNTS" in caught.value.next_step
        assert await AsyncSandbox.list(client=client) == []
        places = {"/r": f"{tmp_path}/read", "/w": f"{tmp_path}/write:rw", "/b": f"{tmp_path}/read/below"}
        async with await AsyncSandbox.create(volumes=places, client=client) as one:
            assert await run(one, "cat /r/f /w/f; echo new > /w/new; stat -c %U /r/f /w/new") == "readwriteuser\nuser"
            assert (await one.commands.run("touch /r/x || touch /b/x")).exit_code != 0
            made = (tmp_path / "write" / "new").stat()
            assert (made.st_uid, made.st_gid) == (1234, 1235)
            # Where it leads was decided: a link that takes its place later is not followed.
            (tmp_path / "read" / "below").rename(tmp_path / "read" / "gone")
            (tmp_path / "read" / "below").symlink_to(tmp_path / "other")
            with pytest.raises(SandlotError, match="open a volume"):
                await one.turn()
            with pytest.raises(SandlotError, match="open a volume"):
                await one.recover()
            (tmp_path / "read" / "below").unlink()
            (tmp_path / "read" / "gone").rename(tmp_path / "read" / "below")
            await one.recover()
            assert await run(one, "cat /r/f") == "read"


async def test_a_volume_goes_along_with_a_move(host: SandboxHostService) -> None:
    await host.create_volume(VolumeSpec("v"))
    await host.create(SessionSpec(session_id="s", storage="layers", mounts=(Mount("v", "/v"),)))
    await run_call(host, CallRequest("s", ("sh", "-c", "echo there > /v/f")))
    async with host.move(MoveRequest("s", "local-disk")) as progress:
        async for _told in progress:
            pass
    assert (await run_call(host, CallRequest("s", ("cat", "/v/f")))).stdout == b"there\n"
