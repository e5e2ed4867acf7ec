"""Local instances: programs with a directory each, which outlive whoever started them."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from sandlot.model import (
    Instance,
    InstanceConfig,
    InstanceFilter,
    InstanceState,
    InvalidArgument,
    InvalidState,
    NotFound,
    Unavailable,
)
from sandlot.provision.directory import reserve_port
from sandlot.provision.holding import holders
from sandlot.provision.local import LocalImage, LocalProvisioner
from tests.waiting import until

WITHIN_S = 60
# Serves its data directory; what it was told and whom it left behind can be read there.
PROGRAM = """
import os, subprocess, sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
data, told, host, port = sys.argv[1:]
os.chdir(data)
with open("starts", "a") as file: file.write("x")
with open("told", "wb") as file: file.write(open(told, "rb").read())
with open("variables", "w") as file: file.write("\\n".join(sorted(os.environ)))
if os.path.exists("leave"): subprocess.Popen(["sleep", "1000"], start_new_session=True)
ThreadingHTTPServer((host, int(port)), SimpleHTTPRequestHandler).serve_forever()
"""
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PROGRAM
ENDS = "import sys; sys.exit('no licence was found')"


def image(program: str, clean: str = "") -> LocalImage:
    run = (sys.executable, "-c", program, "{data}", "{user_data}", "{host}", "{port}")
    return LocalImage(run, (sys.executable, "-c", clean, "{data}") if clean else ())


IMAGES = {
    "web": image(PROGRAM),
    "deaf": image(DEAF),
    "ends": image(ENDS),
    "cleans": image(PROGRAM, "import os, sys; os.rename(sys.argv[1] + '/starts', sys.argv[1] + '/../../../cleaned')"),
    "stuck": image(PROGRAM, "import os, sys; sys.exit(os.path.exists(sys.argv[1] + '/stuck') and 'it is stuck')"),
    "tidy": image(PROGRAM, "pass"),
    "missing": LocalImage(("/no/such/program",)),
}


def provisioner(root: Path, stop_s: float = 20) -> LocalProvisioner:
    return LocalProvisioner(root, IMAGES, stop_s=stop_s)


async def wait(one: LocalProvisioner, instance_id: str, state: InstanceState) -> Instance:
    async with asyncio.timeout(WITHIN_S):
        while (now := await one.describe(instance_id)).state is not state:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    return now


async def running(one: LocalProvisioner, config: InstanceConfig | None = None) -> Instance:
    return await wait(one, (await one.launch(config or InstanceConfig("web"))).instance_id, InstanceState.RUNNING)


def fetch(instance: Instance, path: str) -> bytes:
    with urlopen(f"http://{instance.endpoint}/{path}", timeout=WITHIN_S) as answer:
        read: bytes = answer.read()
    return read


def left(root: Path) -> tuple[list[Path], list[int]]:
    """Directories of instances, and processes that hold something of them."""
    found = [path for name in ("instances", "new", "gone") for path in (root / name).iterdir()]
    return found, holders(str(root))


async def test_it_is_told_its_user_data_and_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "secret")
    one = provisioner(tmp_path)
    made = await running(one, InstanceConfig("web", user_data=b"its own \0 \xff"))
    assert fetch(made, "told") == b"its own \0 \xff"
    assert set(fetch(made, "variables").decode().split()) <= {"HOME", "LANG", "PATH", "PWD", "OLDPWD", "_", "SHLVL"}
    mode = (tmp_path / "instances" / made.instance_id / "user-data").stat().st_mode
    assert mode & 0o077 == 0
    await one.terminate(made.instance_id)


async def test_its_disk_is_kept_over_a_stop_and_gone_after_the_end(tmp_path: Path) -> None:
    one = provisioner(tmp_path)
    made = await running(one)
    assert fetch(made, "starts") == b"x"
    assert (await one.stop(made.instance_id)).state is InstanceState.STOPPED
    assert (await one.describe(made.instance_id)).endpoint == ""
    assert holders(str(tmp_path)) == []
    await one.start(made.instance_id)
    again = await wait(one, made.instance_id, InstanceState.RUNNING)
    assert fetch(again, "starts") == b"xx"
    await one.terminate(made.instance_id)
    assert left(tmp_path) == ([], [])
    with pytest.raises(NotFound):
        await one.describe(made.instance_id)


async def test_it_is_found_by_the_next_provisioner(tmp_path: Path) -> None:
    """Also by one that was not told of it, in another program, which need not be the parent of its program."""
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from sandlot.model import InstanceConfig\n"
        "from tests.unit.provision.test_local import provisioner\n"
        "config = InstanceConfig('web', tags={'fleet': 'f'})\n"
        "print(asyncio.run(provisioner(Path(sys.argv[1])).launch(config)).instance_id)\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    said, _ = await child.communicate()
    one = provisioner(tmp_path)
    (found,) = await one.list(InstanceFilter({"fleet": "f"}))
    assert found.instance_id == said.decode().strip()
    assert fetch(await wait(one, found.instance_id, InstanceState.RUNNING), "starts") == b"x"
    await one.terminate(found.instance_id)
    assert left(tmp_path) == ([], [])


async def test_what_it_left_behind_ends_with_it(tmp_path: Path) -> None:
    one = provisioner(tmp_path)
    made = await running(one)
    data = tmp_path / "instances" / made.instance_id / "data"
    (data / "leave").touch()
    await one.stop(made.instance_id)
    await one.start(made.instance_id)
    await wait(one, made.instance_id, InstanceState.RUNNING)
    assert len(holders(str(data))) == 2
    await one.stop(made.instance_id)
    assert holders(str(data)) == []
    await one.terminate(made.instance_id)


async def test_one_that_does_not_listen_to_term_is_killed(tmp_path: Path) -> None:
    one = provisioner(tmp_path, stop_s=0.2)
    made = await running(one, InstanceConfig("deaf"))
    assert (await one.stop(made.instance_id)).state is InstanceState.STOPPED
    await one.terminate(made.instance_id)


async def test_one_that_ended_by_itself_says_why(tmp_path: Path) -> None:
    one = provisioner(tmp_path)
    made = await one.launch(InstanceConfig("ends", request_id="r"))
    told = await wait(one, made.instance_id, InstanceState.STOPPED)
    assert told.reason == "its program ended: no licence was found"
    assert (await one.launch(InstanceConfig("ends", request_id="r"))).instance_id == made.instance_id
    await one.terminate(made.instance_id)


async def test_one_that_is_killed_from_outside_is_told_as_stopped(tmp_path: Path) -> None:
    one = provisioner(tmp_path)
    made = await running(one)
    for pid in holders(str(tmp_path / "instances" / made.instance_id / "mark")):
        os.kill(pid, signal.SIGKILL)
    await wait(one, made.instance_id, InstanceState.STOPPED)
    await one.start(made.instance_id)
    await wait(one, made.instance_id, InstanceState.RUNNING)
    await one.terminate(made.instance_id)


async def test_a_program_that_is_not_there_leaves_no_instance(tmp_path: Path) -> None:
    one = provisioner(tmp_path)
    with pytest.raises(InvalidArgument, match="is no program that can be run"):
        await one.launch(InstanceConfig("missing"))
    assert left(tmp_path) == ([], [])


async def test_what_it_had_is_given_back_before_it_is_gone(tmp_path: Path) -> None:
    one = provisioner(tmp_path)
    made = await running(one, InstanceConfig("cleans"))
    await one.terminate(made.instance_id)
    assert (tmp_path / "cleaned").read_text() == "x"
    assert left(tmp_path) == ([], [])


async def test_one_whose_things_cannot_be_given_back_stays_until_they_can(tmp_path: Path) -> None:
    one = provisioner(tmp_path)
    made = await running(one, InstanceConfig("stuck"))
    stuck = tmp_path / "instances" / made.instance_id / "data" / "stuck"
    stuck.touch()
    with pytest.raises(Unavailable, match="it is stuck"):
        await one.terminate(made.instance_id)
    assert (await one.describe(made.instance_id)).state is InstanceState.TERMINATING
    with pytest.raises(InvalidState, match="is being terminated"):
        await one.start(made.instance_id)
    stuck.unlink()
    await one.terminate(made.instance_id)
    assert left(tmp_path) == ([], [])


async def test_a_record_that_cannot_be_read_is_a_typed_error_and_hides_no_other(tmp_path: Path) -> None:
    one = provisioner(tmp_path)
    made = await running(one)
    record = tmp_path / "instances" / made.instance_id / "record"
    kept = record.read_bytes()
    for garbage in (b"", b"{}", b"\xff", b"[1]", kept[: len(kept) // 2]):
        record.write_bytes(garbage)
        with pytest.raises(Unavailable, match="cannot be read"):
            await one.describe(made.instance_id)
    record.write_bytes(kept)
    await one.terminate(made.instance_id)


async def test_a_port_is_nobody_elses_while_it_is_kept(tmp_path: Path) -> None:
    """A program that was told of it can listen there, and the kernel gives it to nobody who asks for any."""
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port
        taken = [socket.socket() for _ in range(200)]
        for one in taken:
            one.bind(("127.0.0.1", 0))
        assert port not in [one.getsockname()[1] for one in taken]
        for one in taken:
            one.close()


async def test_whoever_gives_up_a_launch_leaves_nothing_unknown(tmp_path: Path) -> None:
    one = provisioner(tmp_path)
    for pause in (0, 1, 2, 3, 5, 8, 13):
        task = asyncio.create_task(one.launch(InstanceConfig("web", tags={"try": str(pause)})))
        for _ in range(pause):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    listed = [found.instance_id for found in await one.list(InstanceFilter())]
    assert await until(lambda: len(holders(str(tmp_path))) <= len(listed), WITHIN_S)
    for instance_id in listed:
        await one.terminate(instance_id)
    assert left(tmp_path) == ([], [])
