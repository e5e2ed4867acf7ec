"""`sandlot cp` on real sessions: both ways, between two, by stdin and stdout; hostile trees, full disks, signals."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.test_cli import Program, Terminal, nobody

pytestmark = pytest.mark.root

TREE = """
mkdir -p t/sub/deep t/empty
echo f > t/f; chmod 750 t/f; head -c 3000000 /dev/zero > t/sub/big; echo x > t/sub/deep/x
"""


@pytest.fixture
def sandlot(data_dir: Path) -> Iterator[Program]:
    """With a session `one`."""
    program = Program(data_dir)
    assert program("create", "--id", "one").returncode == 0
    yield program
    program("kill", "--all", "--yes")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def inside(sandlot: Program, script: str, user: str = "user", session: str = "one") -> str:
    ran = sandlot("exec", "--user", user, session, "--", "sh", "-c", script)
    assert (ran.returncode, ran.stderr) == (0, b""), ran
    return ran.stdout.decode(errors="surrogateescape")


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def copied(sandlot: Program, *words: str, stdin: bytes = b"") -> str:
    ran = sandlot("cp", *words, stdin=stdin)
    assert (ran.returncode, ran.stdout) == (0, b""), ran
    return ran.stderr.decode()


def refused(sandlot: Program, *words: str, code: int = 125) -> str:
    ran = sandlot("cp", *words)
    assert (ran.returncode, ran.stdout) == (code, b""), ran
    told = ran.stderr.decode()
    assert told.startswith("sandlot: ")
    assert "  → " in told, "an error says what to do"
    assert "Traceback" not in told
    return told


# ---- both ways ---------------------------------------------------------------------------------------------------


def test_a_file_in_and_out(sandlot: Program, here: Path) -> None:
    (here / "a.txt").write_bytes(b"hello\n")
    (here / "a.txt").chmod(0o640)
    told = copied(sandlot, "a.txt", "one:")
    assert told.startswith("sandlot: copied 1 file, 6 bytes in ")
    assert inside(sandlot, "cat a.txt; stat -c '%a %U' a.txt") == "hello\n640 user\n"
    copied(sandlot, "one:a.txt", "back.txt")
    assert (here / "back.txt").read_bytes() == b"hello\n"
    assert (here / "back.txt").stat().st_mode & 0o7777 == 0o640


def test_a_tree_in_and_out(sandlot: Program, here: Path) -> None:
    subprocess.run(["sh", "-c", TREE], check=True)
    odd = b"t/n\xff\xfe \n'"
    Path(os.fsdecode(odd)).write_bytes(b"odd")
    (here / "t" / "sub" / "big").chmod(0o4711)
    (here / "t" / "link").symlink_to("/etc/passwd")
    os.mkfifo(here / "t" / "pipe")
    told = copied(sandlot, "t", "one:")
    assert inside(sandlot, "readlink t/link") == "/etc/passwd\n"
    assert "left out t/pipe: a pipe, a socket or a device" in told
    assert "copied 4 files, 3,000,007 bytes (2.9 MiB)" in told
    assert inside(sandlot, "stat -c '%a' t/f t/sub/big t/empty; wc -c < t/sub/big") == "750\n711\n755\n3000000\n"
    assert inside(sandlot, "ls t | grep -a '^n'").encode(errors="surrogateescape").startswith(b"n\xff\xfe")
    document = sandlot.json("cp", "one:t", "back")
    assert (document["files"], document["directories"], document["bytes"]) == (4, 4, 3_000_007)
    assert document["skipped"] == [{"path": "./back/link", "reason": "a link that leads out"}]
    (here / "t" / "link").unlink()
    (here / "t" / "pipe").unlink()
    assert everything(here / "back") == everything(here / "t")
    assert subprocess.run(["diff", "-r", "t", "back"], check=False).returncode == 0
    assert (here / "back" / "sub" / "big").stat().st_mode & 0o7777 == 0o711


def test_into_a_directory_or_to_a_new_name(sandlot: Program, here: Path) -> None:
    inside(sandlot, TREE)
    copied(sandlot, "one:t", "new")
    assert "f" in everything(here / "new")
    copied(sandlot, "one:t", "new")
    assert "t/f" in everything(here / "new")
    copied(sandlot, "one:t/.", "new")
    assert everything(here / "new" / "t") == ["empty", "f", "sub", "sub/big", "sub/deep", "sub/deep/x"]
    copied(sandlot, "one:t/f", "one:t/sub/deep/x", "new")
    assert (here / "new" / "x").read_bytes() == b"x\n"
    copied(sandlot, "one:", "workspace")
    assert "t/f" in everything(here / "workspace")
    copied(sandlot, "new/f", "new/sub", "one:t/empty/")
    assert inside(sandlot, "cd t/empty; find . -type f | sort") == "./f\n./sub/big\n./sub/deep/x\n"
    (here / "f").write_bytes(b"replaced")
    copied(sandlot, "f", "one:t/f")
    assert inside(sandlot, "cat t/f") == "replaced"
    copied(sandlot, "one:t/f", "new/f")
    assert (here / "new" / "f").read_bytes() == b"replaced"


def test_stdin_and_stdout(sandlot: Program, here: Path) -> None:
    data = bytes(range(256)) * 20_000
    copied(sandlot, "-", "one:from-stdin", stdin=data)
    assert inside(sandlot, "wc -c < from-stdin; stat -c %a from-stdin") == f"{len(data)}\n644\n"
    ran = sandlot("cp", "one:from-stdin", "-")
    assert (ran.returncode, ran.stdout == data) == (0, True)
    assert b"copied 1 file, 5,120,000 bytes" in ran.stderr
    assert everything(here) == []
    with sandlot.start("cp", "one:from-stdin", "-") as running:
        assert running.stdout
        running.stdout.read(10)
        running.stdout.close()
        assert running.wait(20) == 141


def test_from_one_session_to_another(sandlot: Program, here: Path) -> None:
    sandlot("create", "--id", "two")
    inside(sandlot, TREE)
    copied(sandlot, "one:t", "two:/tmp/got")
    assert inside(sandlot, "cat /tmp/got/sub/deep/x; stat -c '%a %U' /tmp/got/f", session="two") == "x\n750 user\n"
    assert everything(here) == []


def test_names_with_a_colon_and_users(sandlot: Program, here: Path) -> None:
    (here / "a:b").write_bytes(b"colon")
    told = refused(sandlot, "a:b", "one:")
    assert "there is no session a" in told
    assert "./a:b" in told
    copied(sandlot, "./a:b", "one:")
    assert inside(sandlot, "cat a:b") == "colon"
    assert "may not" in refused(sandlot, "./a:b", "one:/etc/colon")
    copied(sandlot, "--user", "root", "./a:b", "one:/etc/colon")
    assert inside(sandlot, "stat -c %U /etc/colon") == "root\n"
    inside(sandlot, "mkdir d d/closed; echo x > d/open; chmod 0 d/closed", user="root")
    assert "may not" in refused(sandlot, "one:d", "d")
    copied(sandlot, "--user", "root", "one:d", "d2")
    assert (here / "d2" / "closed").stat().st_mode & 0o7777 == 0


def test_what_is_wrong_is_told_before_anything_is_written(sandlot: Program, here: Path) -> None:
    (here / "f").write_bytes(b"f")
    (here / "d").mkdir()
    inside(sandlot, TREE)
    before = inside(sandlot, "find . | sort")
    assert "gone: there is no such file" in refused(sandlot, "f", "gone", "one:")
    assert "one:gone: there is no such file" in refused(sandlot, "one:t", "one:gone", "d")
    assert "sandlot exec one -- mkdir -p x/y" in refused(sandlot, "f", "one:x/y/z")
    assert "`mkdir -p x/y`" in refused(sandlot, "one:t/f", "x/y/z")
    assert "there is no directory" in refused(sandlot, "f", "one:new/")
    assert "not a directory" in refused(sandlot, "f", "one:t/f/below")
    assert "not a directory" in refused(sandlot, "one:t", "f/below")
    assert "two of them are called" in refused(sandlot, "one:t/f", "one:/workspace/t/f", "d", code=2)
    assert "takes no 2 things" in refused(sandlot, "f", "d", "one:new", code=2)
    assert "is not replaced" in refused(sandlot, "d", "one:t/f")
    assert "a directory does not go to stdout" in refused(sandlot, "one:t", "-")
    assert "there is no session gone" in refused(sandlot, "gone:x", "d")
    assert "stdin has no name" in refused(sandlot, "-", "one:", code=2)
    assert inside(sandlot, "find . | sort") == before
    assert everything(here) == ["d", "f"]


# ---- hostile and broken ------------------------------------------------------------------------------------------


def test_a_hostile_tree_stays_below_its_target(sandlot: Program, here: Path) -> None:
    script = """
    mkdir -p t/real; cd t
    ln -s / root; ln -s ../../../.. up; ln -s /etc/passwd file; ln -s loop loop
    ln -s real inside; echo x > real/x
    mkfifo pipe; python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('socket')"
    mkdir -p 'a\\..\\b'; echo y > "$(printf 'esc\\033]0;title\\007')"
    chmod 7777 real/x; chmod 3777 real
    """
    inside(sandlot, script)
    before = everything(here.parent)
    document = sandlot.json("cp", "one:t", "t")
    assert (document["files"], document["links"], document["skipped_count"]) == (2, 2, 5)
    reasons = {entry["path"].rpartition("/")[2]: entry["reason"] for entry in document["skipped"]}
    assert reasons["root"] == reasons["up"] == reasons["file"] == "a link that leads out"
    assert reasons["pipe"] == reasons["socket"] == "a pipe, a socket or a device"
    got = [path.relative_to(here / "t") for path in (here / "t").rglob("*")]
    assert sorted(map(str, got)) == ["a\\..\\b", "esc\x1b]0;title\x07", "inside", "loop", "real", "real/x"]
    assert [path for path in everything(here.parent) if not path.startswith("here/t")] == before
    assert (here / "t" / "real" / "x").stat().st_mode & 0o7777 == 0o777
    assert (here / "t" / "real").stat().st_mode & 0o7777 == 0o777
    shown = sandlot("cp", "one:t", "t2").stderr
    assert b"\x1b" not in shown


def test_links_in_the_target_are_not_followed(sandlot: Program, here: Path) -> None:
    inside(sandlot, "mkdir -p t/sub; echo new > t/sub/f; echo new > t/g")
    outside = here / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"old")
    (here / "t").mkdir()
    (here / "t" / "sub").symlink_to(outside)
    assert "a link is there already" in refused(sandlot, "one:t/.", "t")
    (here / "t" / "sub").unlink()
    (here / "t" / "g").unlink(missing_ok=True)
    (here / "t" / "g").symlink_to(outside / "f")
    assert "a link is there already" in refused(sandlot, "one:t/.", "t")
    (here / "link").symlink_to(outside / "f")
    assert "a link is there already" in refused(sandlot, "one:t/g", "link")
    (here / "dangling").symlink_to(outside / "new")
    assert "a link is there already" in refused(sandlot, "one:t/g", "dangling")
    assert everything(outside) == ["f"]
    assert (outside / "f").read_bytes() == b"old"
    # The target itself is what the person says it is.
    (here / "to").symlink_to(outside)
    copied(sandlot, "one:t/g", "to")
    assert everything(outside) == ["f", "g"]


def test_a_very_deep_tree(sandlot: Program, here: Path) -> None:
    script = """
import os
for n in range(700):
    os.mkdir("d"); os.chdir("d")
open("bottom", "w").write("deep")
"""
    inside(sandlot, f"mkdir deep; cd deep; python3 -c '{script}'")
    document = sandlot.json("cp", "one:deep", "deep")
    assert (document["files"], document["directories"]) == (1, 701)
    assert (here / "deep").joinpath(*["d"] * 700, "bottom").read_text() == "deep"
    copied(sandlot, "deep", "one:again")
    assert inside(sandlot, "find again -name bottom -exec cat {} +") == "deep"


@contextlib.contextmanager
def small_disk(folder: Path) -> Generator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_full(sandlot: Program, here: Path) -> None:
    inside(sandlot, "mkdir t; echo small > t/a; head -c 5000000 /dev/zero > t/b")
    with small_disk(here / "small"):
        told = refused(sandlot, "one:t", "small")
        assert "the disk is full" in told
        assert "free some space" in told
        left = everything(here / "small")
        assert left in (["t"], ["t", "t/a"])
        assert ("1 file" in told) is ("t/a" in left)
        error = sandlot.json("cp", "one:t/b", "small/b")["error"]
        assert (error["code"], error["context"]["files_copied"]) == ("limit_reached", 0)


def test_who_may_not_write(here: Path) -> None:
    with nobody() as run:
        script = "import sys; from sandlot.cli.main import main; sys.exit(main())"
        options = ("-c", script, "--data-dir", "data")
        assert run(*options, "create", "--runtime", "none", "--id", "one").returncode == 0
        try:
            assert run(*options, "exec", "one", "--", "sh", "-c", "echo x > f; mkdir d; chmod 0 d").returncode == 0
            barred = run(*options, "cp", "one:f", "/etc/f")
            assert (barred.returncode, b"/etc/f: permission denied" in barred.stderr) == (125, True)
            assert b"run this as someone who may" in barred.stderr
            unread = run(*options, "cp", "/etc/shadow", "one:")
            assert (unread.returncode, b"/etc/shadow: permission denied" in unread.stderr) == (125, True)
            assert run(*options, "cp", "one:f", "copy").returncode == 0
        finally:
            run(*options, "kill", "--all", "--yes")


# ---- interrupted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_an_interrupted_download_leaves_no_half_file(sandlot: Program, here: Path, number: int, code: int) -> None:
    inside(sandlot, "mkdir t; truncate -s 64G t/big")
    (here / "t").mkdir()
    (here / "t" / "big").write_bytes(b"as it was")
    with sandlot.start("cp", "one:t/.", "t") as running:
        wait_until_written(running.pid, here)
        running.send_signal(number)
        assert running.wait(20) == code
    assert everything(here) == ["t", "t/big"]
    assert (here / "t" / "big").read_bytes() == b"as it was"
    assert (here / "t" / "big").stat().st_size == 9


def wait_until_written(pid: int, folder: Path) -> None:
    """Until it holds a file open below the folder that has no name yet, and has written to it."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(folder) in str(fd.readlink()) and fd.stat().st_nlink == 0 and fd.stat().st_size:
                    return
        time.sleep(0.02)
    raise AssertionError("nothing is written")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_upload_leaves_no_half_file(sandlot: Program, number: int, code: int) -> None:
    inside(sandlot, "echo as it was > f")
    for name in ("f", "new"):
        words = sandlot.words("cp", "-", f"one:{name}")
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdin
            running.stdin.write(b"x" * 3_000_000)  # more than a pipe holds, so most of it is on its way
            running.stdin.flush()
            time.sleep(0.3)
            running.send_signal(number)
            assert running.wait(20) == code
    assert inside(sandlot, "ls -A; cat f") == "f\nas it was\n"


def wait_until_open(sandlot: Program, pid: int) -> None:
    """Until the engine of that process holds the data directory."""
    until = time.monotonic() + 20
    while f'"pid": {pid}' not in (sandlot.data / "engine.lock").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_silent_stdin_does_not_keep_the_program(sandlot: Program) -> None:
    words = sandlot.words("cp", "-", "one:f")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        wait_until_open(sandlot, running.pid)
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
        assert time.monotonic() - began < 5
    assert inside(sandlot, "ls -A") == ""


def test_progress_on_a_terminal(sandlot: Program, here: Path) -> None:
    inside(sandlot, "truncate -s 64G big")
    terminal = Terminal(sandlot.words("cp", "one:big", "big"))
    try:
        terminal.wait_for(b"copying")
        line = terminal.wait_for(b"/s")
        assert b"0 files, " in line
        assert b" of 64.0 GiB, " in line
        terminal.type(b"\x03")
        assert terminal.process.wait(20) == 130
    finally:
        terminal.close()
    assert everything(here) == []
