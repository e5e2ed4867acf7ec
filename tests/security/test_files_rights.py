"""Whose rights the host has in a session's files: those of one user there, and nothing of its own."""

import os
import secrets
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.host.storage.canonical import CANONICAL_ID, RANGE_IDS
from sandlot.model import FileNotFound, FileWrite, InvalidArgument, PermissionDenied, SandlotError
from tests.security.door import NEW, VERBS, Door, file_threads, litter
from tests.security.stage import Stage

pytestmark = pytest.mark.root

SETGID, SETUID = 1 << 6, 1 << 7
CHOWN, DAC_OVERRIDE, FOWNER, FSETID = 1 << 0, 1 << 1, 1 << 3, 1 << 4


@pytest.fixture(scope="module")
def door(stage: Stage) -> Door:
    return Door(stage, stage.create())


@pytest.fixture
def place(door: Door) -> str:
    path = f"/workspace/{secrets.token_hex(6)}"
    door.shell(f"mkdir {path}")
    return path


def owner_and_mode(door: Door, path: str) -> str:
    return door.shell(f"stat -c '%u:%g %a' {path}", "root").strip()


# ---- rights ----------------------------------------------------------------------------------------------------


def test_a_file_of_root_alone_is_for_root_alone(door: Door, place: str) -> None:
    door.shell(f"echo secret >{place}/x; chmod 600 {place}/x; mkdir -m 700 {place}/d; touch {place}/d/y", "root")
    for verb in ("read", "write"):
        with pytest.raises(PermissionDenied):
            VERBS[verb](door, f"{place}/x")
    for verb in ("read", "write", "stat", "list", "make", "rename", "remove", "rename onto"):
        with pytest.raises(PermissionDenied):
            VERBS[verb](door, f"{place}/d/y")
    with pytest.raises(PermissionDenied):
        door.list(f"{place}/d")
    assert sorted(info.name for info in door.list(place, depth=3)) == ["d", "x"]
    root = door.as_user("root")
    assert root.read(f"{place}/x") == b"secret\n"
    root.write(f"{place}/x")
    assert owner_and_mode(door, f"{place}/x") == "0:0 600"
    assert [info.name for info in root.list(f"{place}/d")] == ["y"]
    root.remove(f"{place}/d", recursive=True)


def test_a_directory_that_can_be_read_and_not_entered(door: Door, place: str) -> None:
    door.shell(f"mkdir {place}/d; touch {place}/d/x; chmod 744 {place}/d", "root")
    with pytest.raises(PermissionDenied):
        door.list(f"{place}/d")
    assert [info.name for info in door.list(place, depth=2)] == ["d"]


def test_a_file_that_may_not_be_written_is_not_replaced_either(door: Door, place: str) -> None:
    door.write(f"{place}/x", b"old", mode=0o444)
    with pytest.raises(PermissionDenied):
        door.write(f"{place}/x")
    assert door.read(f"{place}/x") == b"old"


def test_a_new_file_is_the_users(door: Door, place: str) -> None:
    told = door.write(f"{place}/new/below/x")
    assert (told.uid, told.gid, told.mode) == (1000, 1000, 0o644)
    assert owner_and_mode(door, f"{place}/new/below/x") == "1000:1000 644"
    assert owner_and_mode(door, f"{place}/new") == "1000:1000 755"
    door.as_user("root").write(f"{place}/by-root", mode=0o640)
    assert owner_and_mode(door, f"{place}/by-root") == "0:0 640"
    door.as_user("33:50").write("/tmp/by-number")
    assert owner_and_mode(door, "/tmp/by-number") == "33:50 644"


def test_a_replaced_file_keeps_owner_and_mode_but_no_power(door: Door, place: str) -> None:
    door.shell(f"echo x >{place}/x; chown 33:50 {place}/x; chmod 6751 {place}/x", "root")
    told = door.as_user("root").write(f"{place}/x")
    assert (told.uid, told.gid, told.mode) == (33, 50, 0o751)
    assert owner_and_mode(door, f"{place}/x") == "33:50 751"
    door.write(f"{place}/own", b"x", mode=0o6777)
    assert owner_and_mode(door, f"{place}/own") == "1000:1000 6777"
    door.write(f"{place}/own")
    assert owner_and_mode(door, f"{place}/own") == "1000:1000 777"


def test_a_file_of_another_that_all_may_write_stays_anothers(door: Door, place: str) -> None:
    """As it does when a command writes it; only its content is new, and it has no power any more."""
    door.shell(f"echo long content >{place}/x; chmod 6777 {place}/x", "root")
    door.shell(f"cp -p {place}/x {place}/y; ln {place}/x {place}/same", "root")
    door.write(f"{place}/x")
    door.shell(f"echo short >{place}/y")
    assert owner_and_mode(door, f"{place}/x") == owner_and_mode(door, f"{place}/y") == "0:0 777"
    assert door.read(f"{place}/same") == NEW
    with pytest.raises(PermissionDenied):
        door.write(f"{place}/x", b"never", mode=0o600)
    assert (door.read(f"{place}/x"), litter(door)) == (NEW, "")


def test_what_is_written_in_place_is_whole_or_not_at_all(
    door: Door, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is root's, the file the user's."""
    monkeypatch.setattr("sandlot.host.replacement._COPIED_PIECES", 1)  # in many steps, as with a large file
    large = os.urandom(3 << 20)
    door.shell(f"mkdir {place}/d; echo old >{place}/d/x; chown user {place}/d/x", "root")
    with pytest.raises(PermissionDenied):
        door.write(f"{place}/d/new")
    assert door.write(f"{place}/d/x", large[:1000], large[1000:]).size_bytes == len(large)
    assert door.read(f"{place}/d/x") == large
    assert owner_and_mode(door, f"{place}/d/x") == "1000:0 644"
    with pytest.raises(ConnectionResetError):
        door.stage.wait(door.host.write_file(FileWrite(door.session, f"{place}/d/x"), broken()))
    assert door.read(f"{place}/d/x") == large
    assert litter(door) == ""


def test_who_may_write_a_file_and_no_directory_at_all(stage: Stage) -> None:
    """What is not whole yet has no place to be."""
    door = Door(stage, stage.create())
    door.shell("echo old >x; chown user x; chmod 755 /tmp /var/tmp; chown root /workspace", "root")
    with pytest.raises(PermissionDenied):
        door.write("x", b"new")
    assert door.read("x") == b"old\n"
    stage.wait(stage.host.destroy(door.session))


async def broken() -> AsyncIterator[bytes]:
    yield b"first"
    yield b"second"
    raise ConnectionResetError("the one who sends is gone")


def test_the_sticky_bit_of_tmp_holds(door: Door) -> None:
    name = f"/tmp/{secrets.token_hex(6)}"
    door.shell(f"echo x >{name}; chmod 666 {name}", "root")
    for verb in ("remove", "rename", "rename onto"):
        with pytest.raises(PermissionDenied):
            VERBS[verb](door, name)
    door.write(name)
    assert (door.read(name), owner_and_mode(door, name)) == (NEW, "0:0 666")
    assert litter(door) == ""
    door.as_user("root").remove(name)


def test_groups_count(door: Door, place: str) -> None:
    door.shell("echo 'team:x:4242:someone,user' >>/etc/group", "root")
    door.shell(f"echo x >{place}/x; chgrp 4242 {place}/x; chmod 660 {place}/x", "root")
    door.shell(f"mkdir {place}/d; chgrp 4242 {place}/d; chmod 2770 {place}/d", "root")
    assert door.read(f"{place}/x") == b"x\n"
    door.write(f"{place}/x")
    assert owner_and_mode(door, f"{place}/x") == "0:4242 660"
    door.write(f"{place}/d/sub/y")
    # The bit that hands the group on is handed on too, as `mkdir` does.
    assert owner_and_mode(door, f"{place}/d/sub") == "1000:4242 2755"
    assert owner_and_mode(door, f"{place}/d/sub/y") == "1000:4242 644"
    door.shell("sed -i /^team:/d /etc/group", "root")
    with pytest.raises(PermissionDenied):
        door.read(f"{place}/x")


def test_modes_are_what_was_asked_for(door: Door, place: str) -> None:
    for mode in (0o777, 0o700, 0o1777, 0o2775, 0o111):
        assert door.make(f"{place}/d{mode:o}", mode)
        assert owner_and_mode(door, f"{place}/d{mode:o}") == f"1000:1000 {mode:o}"
        door.write(f"{place}/f{mode:o}", mode=mode)
        assert owner_and_mode(door, f"{place}/f{mode:o}") == f"1000:1000 {mode:o}"


def test_links_of_others_in_tmp_are_not_followed_where_the_kernel_says_so(door: Door) -> None:
    if Path("/proc/sys/fs/protected_symlinks").read_text() != "1\n":
        pytest.skip("fs.protected_symlinks is off here")
    name = f"/tmp/{secrets.token_hex(6)}"
    door.shell(f"ln -s /etc/issue {name}")
    with pytest.raises(PermissionDenied):
        door.as_user("root").write(name)


# ---- other sessions --------------------------------------------------------------------------------------------


def test_sessions_do_not_see_each_other(stage: Stage, door: Door) -> None:
    other = Door(stage, stage.create())
    name = f"/workspace/{secrets.token_hex(6)}"
    door.write(name, b"mine")
    with pytest.raises(FileNotFound):
        other.read(name)
    other.write(name, b"yours")
    assert (door.read(name), other.read(name)) == (b"mine", b"yours")
    stage.wait(stage.host.destroy(other.session))
    with pytest.raises(SandlotError):
        other.read(name)


def test_on_disk_everything_belongs_to_the_session(stage: Stage, door: Door) -> None:
    name = f"mark-{secrets.token_hex(6)}"
    door.write(f"{name}-user")
    door.make(f"{name}-folder")
    for user in ("root", "65535:65535"):
        door.as_user(user).write(f"/tmp/{name}-{user[:4]}")
    found = [path.lstat() for path in stage.data.rglob(f"{name}-*")]
    assert {status.st_uid - CANONICAL_ID for status in found} == {0, 1000, 65535}
    assert {status.st_gid - CANONICAL_ID for status in found} == {0, 1000, 65535}


# ---- threads ---------------------------------------------------------------------------------------------------


def status_of(thread: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
    return {name: value.split() for name, _colon, value in (line.partition(":") for line in lines)}


def test_threads_that_act_for_sessions_have_no_power_over_the_host(door: Door, place: str) -> None:
    for user, powers in ((None, SETGID | SETUID), ("root", SETGID | SETUID | CHOWN | DAC_OVERRIDE | FOWNER | FSETID)):
        for _round in range(40):
            door.as_user(user).write(f"{place}/x-{user}")
        acting = [status_of(thread) for thread in file_threads()]
        assert acting
        known = {"root": "0", None: "1000"}[user]
        for status in acting:
            uid, gid = int(status["Uid"][3]), int(status["Gid"][3])
            assert uid >= CANONICAL_ID + RANGE_IDS
            assert (uid - CANONICAL_ID) % RANGE_IDS in (0, 1000)
            assert (gid - CANONICAL_ID) % RANGE_IDS in (0, 1000)
            assert all(int(group) >= CANONICAL_ID + RANGE_IDS for group in status["Groups"])
            assert int(status["CapEff"][0], 16) & ~(SETGID | SETUID | CHOWN | DAC_OVERRIDE | FOWNER | FSETID) == 0
        latest = [status for status in acting if int(status["Uid"][3]) % RANGE_IDS == int(known) % RANGE_IDS]
        assert latest
        assert {int(status["CapEff"][0], 16) for status in latest} == {powers}


def test_the_engine_keeps_its_own_powers(door: Door, place: str) -> None:
    mine = status_of(threading.get_native_id())
    for user in (None, "root"):
        door.as_user(user).write(f"{place}/x-{user}")
        door.as_user(user).read(f"{place}/x-{user}")
        door.as_user(user).remove(f"{place}/x-{user}")
    others = {int(path.name) for path in Path("/proc/self/task").iterdir()} - set(file_threads())
    assert len(others) > 1
    for thread in others:
        status = status_of(thread)
        assert status["Uid"] == status["Gid"] == ["0", "0", "0", "0"]
        assert (status["CapEff"], status["Groups"]) == (mine["CapEff"], mine["Groups"])
    umask = mine["Umask"]
    assert {tuple(status_of(thread)["Umask"]) for thread in others} == {tuple(umask)}


# ---- hostile lists of users ------------------------------------------------------------------------------------

LINE = "user:x:1000:1000::/home/user:/bin/sh"
PASSWD: dict[str, str] = {
    "missing": "rm /etc/passwd",
    "empty": ": >/etc/passwd",
    "link to the host": "ln -sf /proc/1/root/etc/passwd /etc/passwd",
    "link to nothing": "ln -sf /nowhere /etc/passwd",
    "link to itself": "ln -sf passwd /etc/passwd",
    "link to a list": f"echo '{LINE}' >/etc/other; ln -sf other /etc/passwd",
    "pipe": "rm /etc/passwd; mkfifo /etc/passwd",
    "directory": "rm /etc/passwd; mkdir /etc/passwd",
    "device": "ln -sf /dev/zero /etc/passwd",
    "ten megabytes": f"yes 'x:x:1:1::/:/' | head -c 10M >/etc/passwd; echo '{LINE}' >>/etc/passwd",
    "ten megabytes after": f"echo '{LINE}' >/etc/passwd; yes 'x:x:1:1::/:/' | head -c 10M >>/etc/passwd",
    "noise": "head -c 200k /dev/urandom >/etc/passwd",
    "zero byte before": f"printf '\\0\\n{LINE}\\n' >/etc/passwd",
    "zero byte within": "printf 'user:x:1000\\0:1000::/:/\\nuser:x:33:33::/:/\\n' >/etc/passwd",
    "uid -1": "echo 'user:x:4294967295:4294967295::/:/bin/sh' >/etc/passwd",
    "uid out of the range": "echo 'user:x:65536:65536::/:/bin/sh' >/etc/passwd",
    "uid that wraps": "echo 'user:x:18446744073709551616:0::/:/bin/sh' >/etc/passwd",
    "negative uid": "echo 'user:x:-268435456:0::/:/bin/sh' >/etc/passwd",
    "gid out of the range": "echo 'user:x:1000:4294967295::/:/bin/sh' >/etc/passwd",
    "last of the range": "echo 'user:x:65535:65535::/:/bin/sh' >/etc/passwd",
    "root by another name": "echo 'user:x:0:0::/:/bin/sh' >/etc/passwd",
    "first of two": "echo 'user:x:33:34::/:/' >/etc/passwd; echo 'user:x:0:0::/:/' >>/etc/passwd",
    "too few fields": "echo 'user:x:0:0' >/etc/passwd",
    "no line end": f"printf '{LINE}' >/etc/passwd",
    "groups out of the range": "echo 'x:x:4294967295:user' >/etc/group; echo 'y:x:70000:user' >>/etc/group",
    "many groups": "for i in $(seq 300); do echo g$i:x:$((2000 + i)):user; done >/etc/group",
    "no groups": "rm /etc/group; mkfifo /etc/group",
    "same group twice": "for i in 1 2 3; do echo g:x:77:user; done >/etc/group",
    "unreadable": "chmod 0 /etc/passwd /etc/group; chown 1 /etc/passwd",
}


GROUPS = (0, 1, 27, 33, 34, 77, 1000, 2001, 2063, 2064, 65535)
PROBES = "mkdir /probe; for g in {}; do touch /probe/$g; chown 1:$g /probe/$g; chmod 040 /probe/$g; done"
NOBODY = "nobody has that name"


@pytest.mark.parametrize("how", PASSWD)
def test_the_host_takes_a_name_for_the_same_user_as_a_command(stage: Stage, how: str) -> None:
    """Or for none. What is not of the session's own range is nobody."""
    door = Door(stage, stage.create(), "user")
    door.shell("chmod 777 /workspace; " + PROBES.format(" ".join(map(str, GROUPS))), "root")
    door.shell(PASSWD[how], "root")
    by_host, by_command = identity_by_host(door), identity_by_command(door)
    if how in ("link to the host", "device"):  # the host does not leave the session's files for its list
        assert by_host == NOBODY
    else:
        assert by_host == by_command
    for thread in file_threads():
        status = status_of(thread)
        assert min(int(number) for number in (status["Uid"][3], status["Gid"][3], *status["Groups"])) >= CANONICAL_ID
    stage.wait(stage.host.destroy(door.session))


def identity_by_host(door: Door) -> str:
    """Who is the owner of what it writes, and files of which groups it can read."""
    try:
        told = door.write("by-host")
    except InvalidArgument:
        return NOBODY
    return " ".join(map(str, (told.uid, told.gid, *(group for group in GROUPS if can_read(door, f"/probe/{group}")))))


def can_read(door: Door, path: str) -> bool:
    try:
        return door.read(path) == b""
    except PermissionDenied:
        return False


def identity_by_command(door: Door) -> str:
    try:
        said = door.shell("id -u; id -g; cd /probe; for g in *; do cat $g 2>/dev/null && echo $g; done; true")
    except InvalidArgument:
        return NOBODY
    uid, gid, *groups = said.split()
    return " ".join((uid, gid, *sorted(groups, key=int)))
