"""`sandbox.files`: what it promises beyond what both faces have in common."""

import asyncio
import gc
import io
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from sandlot import (
    AsyncSandbox,
    Client,
    FileConflict,
    FileKind,
    FileNotFound,
    InvalidArgument,
    LimitReached,
    PermissionDenied,
    Sandbox,
)
from sandlot.model import limits
from tests.unit.sdk.stage import RUNTIMES, directory, opened

BYTES = bytes(range(256)) * 20
TEXT = "Grüße, 世界\n" * 50
SOON_S = 5.0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, shared_templates: Path) -> Generator[Client]:
    with directory(tmp_path_factory.mktemp("sdk") / "data", shared_templates) as data, opened(data) as made:
        yield made


@pytest.fixture(scope="module", params=RUNTIMES)
def sandbox(client: Client, request: pytest.FixtureRequest) -> Sandbox:
    return Sandbox.create(runtime=request.param, client=client)


@pytest.fixture
def face(client: Client, sandbox: Sandbox) -> AsyncSandbox:
    return AsyncSandbox(sandbox.id, client=client)


async def later(*pieces: Any) -> AsyncGenerator[Any]:
    for piece in pieces:
        await asyncio.sleep(0.001)
        yield piece


def is_open(name: str) -> bool:
    """Whether this process, the engine in it included, has a file of this name open."""
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are all that is needed
        try:
            if os.readlink(f"/proc/self/fd/{entry}").endswith(f"/{name}"):  # noqa: PTH115
                return True
        except FileNotFoundError:
            continue
    return False


def closed_soon(name: str) -> bool:
    deadline = time.monotonic() + SOON_S
    while is_open(name) and time.monotonic() < deadline:
        time.sleep(0.005)
    return not is_open(name)


# ---- writing ---------------------------------------------------------------------------------------------------------

CONTENTS: dict[str, tuple[Callable[[], Any], bytes]] = {
    "str": (lambda: TEXT, TEXT.encode()),
    "empty str": (lambda: "", b""),
    "bytes": (lambda: BYTES, BYTES),
    "bytearray": (lambda: bytearray(BYTES), BYTES),
    "memoryview": (lambda: memoryview(BYTES)[7:], BYTES[7:]),
    "file of text": (lambda: io.StringIO(TEXT), TEXT.encode()),
    "file of bytes": (lambda: io.BytesIO(BYTES), BYTES),
    "empty file": (lambda: io.BytesIO(), b""),
    "generator": (lambda: (BYTES[at : at + 1000] for at in range(0, len(BYTES), 1000)), BYTES),
    "generator of text": (lambda: (line for line in TEXT.splitlines(keepends=True)), TEXT.encode()),
    "empty generator": (lambda: iter(()), b""),
    "list": (lambda: [b"a", b"", bytearray(b"b")], b"ab"),
    "async generator": (lambda: later(b"a", "ü", b"b"), "aüb".encode()),
}


@pytest.mark.parametrize("name", CONTENTS)
async def test_content_of_every_kind_through_both_faces(name: str, sandbox: Sandbox, face: AsyncSandbox) -> None:
    make, expected = CONTENTS[name]
    # Another thread: an async generator of a sync program cannot wait for a loop that is blocked by it.
    told = await asyncio.to_thread(lambda: sandbox.files.write("sync", make()))
    assert told.size_bytes == len(expected)
    assert (await face.files.write("async", make())).size_bytes == len(expected)
    assert sandbox.files.read("sync", format="bytes") == expected
    assert await face.files.read("async", format="bytes") == expected


def test_a_real_file_of_many_pieces(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(5_000_000))
    with source.open("rb") as file:
        sandbox.files.write("copy", file)
    assert sandbox.files.read("copy", format="bytes") == source.read_bytes()


def test_pieces_are_asked_for_in_the_thread_of_the_caller(sandbox: Sandbox) -> None:
    """A cursor of a database may not leave its thread. And they may come from the sandbox itself."""
    threads: set[int] = set()

    def pieces() -> Generator[bytes]:
        for number in range(3):
            threads.add(threading.get_ident())
            yield sandbox.commands.run(f"echo {number}").stdout_bytes

    sandbox.files.write("pieces", pieces())
    assert (sandbox.files.read("pieces"), threads) == ("0\n1\n2\n", {threading.get_ident()})


async def test_pieces_are_asked_for_on_the_loop_of_the_caller(face: AsyncSandbox) -> None:
    """A queue belongs to its loop; and what blocks must not block that loop."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop, threads = asyncio.get_running_loop(), set[int]()

    async def feed() -> None:
        for number in range(3):
            await asyncio.sleep(0.01)
            await queue.put(b"%d" % number)
        await queue.put(None)

    async def pieces() -> AsyncGenerator[bytes]:
        while (piece := await queue.get()) is not None:
            assert asyncio.get_running_loop() is loop
            yield piece

    def blocking() -> Generator[bytes]:
        threads.add(threading.get_ident())
        yield b"x"

    feeding = asyncio.create_task(feed())
    async with asyncio.timeout(SOON_S):
        await face.files.write("pieces", pieces())
        await face.files.write("blocking", blocking())
    await feeding
    assert await face.files.read("pieces") == "012"
    assert threading.get_ident() not in threads


def test_one_sandbox_is_copied_into_another(client: Client, sandbox: Sandbox) -> None:
    sandbox.files.write("source", BYTES * 1000)
    with Sandbox.create(runtime="none", client=client) as other:
        other.files.write("copy", sandbox.files.read("source", format="stream"))
        assert other.files.read("copy", format="bytes") == BYTES * 1000


def test_many_slow_writers_do_not_stop_the_engine(sandbox: Sandbox) -> None:
    """Each waits for a command. In threads of the engine they would wait for each other, for ever."""

    def pieces(number: int) -> Generator[bytes]:
        yield sandbox.commands.run(f"head -c 300000 /dev/zero; sleep 0.05; echo {number}").stdout_bytes

    threads = [
        threading.Thread(target=sandbox.files.write, args=(f"slow{number}", pieces(number)), daemon=True)
        for number in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    sizes = [sandbox.files.stat(f"slow{number}").size_bytes for number in range(40)]
    assert min(sizes) > 300_000


@pytest.mark.parametrize("kind", [KeyError, StopIteration, KeyboardInterrupt])
def test_what_a_piece_raises_comes_out_and_the_file_stays(sandbox: Sandbox, kind: type[BaseException]) -> None:
    class Pieces:
        def __iter__(self) -> "Pieces":
            return self

        def __next__(self) -> bytes:
            raise mine

        def read(self, _size: int) -> bytes:
            raise mine

    mine = kind("mine")
    sandbox.files.write("kept", "old")
    with pytest.raises(kind) as caught:
        sandbox.files.write("kept", Pieces())
    assert caught.value is mine
    assert sandbox.files.read("kept") == "old"
    assert [info.name for info in sandbox.files.list() if info.name.startswith(".sandlot")] == []


async def test_what_an_async_piece_raises_comes_out(face: AsyncSandbox) -> None:
    mine = KeyError("mine")

    async def pieces() -> AsyncGenerator[bytes]:
        yield b"new"
        yield b"new"
        raise mine

    await face.files.write("kept", "old")
    with pytest.raises(KeyError) as caught:
        await face.files.write("kept", pieces())
    assert caught.value is mine
    assert await face.files.read("kept") == "old"


@pytest.mark.parametrize("content", [5, None, Path("x"), [b"a", None], object()], ids=lambda it: type(it).__name__)
def test_what_is_no_content_is_refused(sandbox: Sandbox, content: Any) -> None:
    sandbox.files.write("kept", "old")
    with pytest.raises(InvalidArgument, match="text or bytes"):
        sandbox.files.write("kept", content)
    assert sandbox.files.read("kept") == "old"


def test_modes_and_parents(sandbox: Sandbox) -> None:
    assert sandbox.files.write("m/n/new", "").mode == 0o644
    assert sandbox.files.write("m/n/new", "", mode=0o755).mode == 0o755
    assert sandbox.files.write("m/n/new", "again").mode == 0o755
    assert (sandbox.files.make_dir("m/secret", mode=0o700), sandbox.files.stat("m/secret").mode) == (True, 0o700)
    with pytest.raises(FileNotFound):
        sandbox.files.make_dir("x/y", parents=False)
    with pytest.raises(FileConflict):
        sandbox.files.make_dir("m/n/new")


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_ranges(sandbox: Sandbox) -> None:
    sandbox.files.write("digits", "0123456789")
    assert sandbox.files.read("digits", offset=3) == "3456789"
    assert sandbox.files.read("digits", offset=3, length=2) == "34"
    assert sandbox.files.read("digits", length=100, format="bytes") == b"0123456789"
    assert b"".join(sandbox.files.read("digits", offset=8, length=5, format="stream")) == b"89"
    assert list(sandbox.files.read("digits", offset=10, format="stream")) == []


def test_what_is_too_large_to_be_read_at_once(sandbox: Sandbox) -> None:
    over, huge = limits.FILE_READ_BYTES_MAX + 1, 10 << 30
    sandbox.commands.run(f"truncate -s {over} sparse; truncate -s {huge} huge", check=True)
    for kind in ("text", "bytes"):
        with pytest.raises(LimitReached) as caught:
            sandbox.files.read("huge", format=kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
        assert caught.value.context["limit"] == "file_read_bytes"
        assert f"huge has {huge} bytes" in caught.value.message, "told before it is read"
        assert str(limits.FILE_READ_BYTES_MAX) in caught.value.message
        assert 'format="stream"' in caught.value.next_step
        assert "offset and length" in caught.value.next_step
    for name, length in (("sparse", None), ("sparse", over), ("huge", over)):
        with pytest.raises(LimitReached):
            sandbox.files.read(name, length=length)
    # The way out works, and what fits to the byte is read.
    assert len(sandbox.files.read("sparse", offset=1, format="bytes")) == limits.FILE_READ_BYTES_MAX
    assert len(sandbox.files.read("sparse", offset=over - 10, length=100)) == 10
    assert sum(map(len, sandbox.files.read("sparse", format="stream"))) == over


def test_a_stream_that_is_left_early_is_closed(sandbox: Sandbox) -> None:
    sandbox.files.write("streamed", b"x" * 3_000_000)
    stream = sandbox.files.read("streamed", format="stream")
    assert len(next(stream)) > 0
    assert is_open("streamed"), "a check that sees nothing proves nothing"
    stream.close()
    assert closed_soon("streamed")
    for _piece in sandbox.files.read("streamed", format="stream"):
        break
    assert closed_soon("streamed")
    stream = sandbox.files.read("streamed", format="stream")  # and never looked at
    stream.close()
    del stream
    gc.collect()
    assert closed_soon("streamed")


async def test_an_async_stream_that_is_left_early_is_closed(face: AsyncSandbox) -> None:
    await face.files.write("streamed", b"x" * 3_000_000)
    stream = await face.files.read("streamed", format="stream")
    assert len(await anext(stream)) > 0
    assert is_open("streamed")
    await stream.aclose()
    assert closed_soon("streamed")


def test_a_loop_that_ends_closes_its_streams(face: AsyncSandbox) -> None:
    async def leave_open() -> object:
        await face.files.write("streamed", b"x" * 3_000_000)
        stream = await face.files.read("streamed", format="stream")
        await anext(stream)
        return stream

    kept = asyncio.run(leave_open())
    assert closed_soon("streamed")
    del kept


async def test_a_cancelled_read_closes_its_file(face: AsyncSandbox) -> None:
    await face.files.write("streamed", b"x" * 30_000_000)

    async def read() -> None:
        await face.files.read("streamed", format="bytes")
        await asyncio.sleep(1)

    for delay in (0.001, 0.003, 0.01):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(), delay)
    assert await asyncio.to_thread(closed_soon, "streamed")


# ---- the rest --------------------------------------------------------------------------------------------------------


def test_lists_are_sorted(sandbox: Sandbox) -> None:
    for name in ("b", "a/y", "a/x", "c", "a-b", "A"):
        sandbox.files.write(f"sorted/{name}", "")
    base = sandbox.files.stat("sorted").path
    shallow = [info.path.removeprefix(base) for info in sandbox.files.list("sorted")]
    deep = [info.path.removeprefix(base) for info in sandbox.files.list("sorted", depth=5)]
    assert shallow == ["/A", "/a", "/a-b", "/b", "/c"]
    assert deep == ["/A", "/a", "/a/x", "/a/y", "/a-b", "/b", "/c"]
    page = sandbox.files.list("sorted", depth=5, limit=2, after=f"{base}/a/x")
    assert [info.path.removeprefix(base) for info in page] == ["/a/y", "/a-b"]
    with pytest.raises(FileNotFound):
        sandbox.files.list("nowhere")
    with pytest.raises(FileConflict):
        sandbox.files.list("sorted/b")


def test_too_many_entries_are_refused_not_cut(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILES_LISTED_MAX", 3)
    for number in range(4):
        sandbox.files.write(f"many/{number}", "")
    with pytest.raises(LimitReached, match="more than 3 entries") as caught:
        sandbox.files.list("many")
    assert caught.value.next_step
    sandbox.files.remove("many/0")
    assert len(sandbox.files.list("many")) == 3


def test_links(sandbox: Sandbox) -> None:
    sandbox.commands.run("ln -s nowhere dangling; echo x > there; ln -s there link; ln -s loop loop", check=True)
    exists = [sandbox.files.exists(name) for name in ("link", "there", "dangling", "loop", "there/below", "none")]
    assert exists == [True, True, False, False, False, False]
    assert sandbox.files.stat("dangling", follow=False).target == "nowhere"
    assert (sandbox.files.stat("link").kind, sandbox.files.stat("link").size_bytes) == (FileKind.FILE, 2)
    assert sandbox.files.stat("link", follow=False).kind is FileKind.SYMLINK
    sandbox.files.remove("link")
    assert sandbox.files.read("there") == "x\n"


def test_rename(sandbox: Sandbox) -> None:
    sandbox.files.write("from", "1")
    sandbox.files.write("to", "2")
    with pytest.raises(FileConflict):
        sandbox.files.rename("from", "to", overwrite=False)
    assert sandbox.files.read("to") == "2"
    assert sandbox.files.rename("from", "to").name == "to"
    assert (sandbox.files.read("to"), sandbox.files.exists("from")) == ("1", False)
    with pytest.raises(FileNotFound):
        sandbox.files.rename("from", "to")


def test_remove(sandbox: Sandbox) -> None:
    sandbox.files.write("tree/a/b", "")
    with pytest.raises(FileConflict):
        sandbox.files.remove("tree")
    sandbox.files.remove("tree", recursive=True)
    with pytest.raises(FileNotFound):
        sandbox.files.remove("tree", recursive=True)


@pytest.mark.root
def test_the_user_says_with_whose_rights(client: Client) -> None:
    with Sandbox.create(client=client) as sandbox:
        assert sandbox.files.write("/root/.ssh/secret", "x", user="root", mode=0o600).uid == 0
        assert sandbox.files.read("/root/.ssh/secret", user="root") == "x"
        for attempt in (
            lambda: sandbox.files.read("/root/.ssh/secret"),
            lambda: sandbox.files.write("/etc/new", ""),
            lambda: sandbox.files.exists("/root/.ssh/secret"),
        ):
            with pytest.raises(PermissionDenied):
                attempt()
        assert sandbox.files.write("mine", "").uid == 1000


WRONG: list[Callable[[Sandbox], object]] = [
    lambda sandbox: sandbox.files.read(""),
    lambda sandbox: sandbox.files.read("a\0b"),
    lambda sandbox: sandbox.files.read("a", offset=-1),
    lambda sandbox: sandbox.files.read("a", length=-1),
    lambda sandbox: sandbox.files.write("a", "", mode=0o10000),
    lambda sandbox: sandbox.files.list(depth=0),
    lambda sandbox: sandbox.files.stat("x" * 5000),
    lambda sandbox: sandbox.files.rename("a", ""),
    lambda sandbox: sandbox.files.remove("a", user=""),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments_are_refused_before_anything_happens(number: int, tmp_path: Path) -> None:
    with Client(data_dir=tmp_path / "never") as client, pytest.raises(InvalidArgument):
        WRONG[number](Sandbox("some-id", client=client))
    assert not (tmp_path / "never").exists(), "an engine was started"
