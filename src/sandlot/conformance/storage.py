"""What every storage does with the files of a session. It talks to a `Host`, so the same suite runs at every depth."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet

from sandlot.conformance.checks import Broken, Check, Outcome, Stage, conform, equal, expect, read_until
from sandlot.conformance.plain import MADE_UP_FOR, OF_ROOTS, OF_RUNTIMES, PLAIN_CHECKS
from sandlot.conformance.volumes import VOLUME_CHECKS, conform_volumes
from sandlot.contracts import Host, Storage
from sandlot.model import (
    Capability,
    Change,
    ChangeKind,
    DiffRequest,
    Finding,
    ForkRequest,
    Resources,
    RollbackRequest,
    SnapshotNotFound,
    SnapshotRequest,
    SnapshotsNotAvailable,
    TurnRequest,
)

MIB = 1 << 20
_LOOKS, _LOOK_S = 20, 0.3
# Everything that can be seen of a tree, but the sizes of directories, which are the filesystem's own.
_LOOK = (
    r"find . -mindepth 1 \( -type d -printf '%P %y %m %U %G %T@\n' -o -printf '%P %y %m %U %G %T@ %s %n %l\n' \)"
    " | LC_ALL=C sort; find . -type f -print0 | LC_ALL=C sort -z | xargs -0r md5sum"
)


async def sh(stage: Stage, script: str, **options: str) -> str:
    ran = await stage.sh(f"set -e; {script}", **options)
    expect(ran.result.exit_code == 0, f"{script}: {ran.result.exit_code}, {ran.stderr[-500:]!r}")
    return ran.stdout.decode(errors="surrogateescape")


async def turn(stage: Stage) -> str:
    """Close a turn; the name of its snapshot."""
    closed = await stage.host.turn_complete(TurnRequest(stage.session.session_id))
    if closed.snapshot is None:
        raise Broken("a turn has no snapshot")
    return closed.snapshot


async def back(stage: Stage, to: str, *, keep: bool = True) -> None:
    await stage.host.rollback(RollbackRequest(stage.session.session_id, to, keep))


async def fork(stage: Stage, at: str | None = None, count: int = 1) -> list[Stage]:
    made = await stage.host.fork(ForkRequest(stage.session.session_id, at, count=count))
    return [stage.on(session) for session in made]


async def differences(stage: Stage, old: str, new: str = ".") -> dict[str, ChangeKind]:
    """By path below the workspace."""
    below = stage.session.workspace
    found: list[Change] = []
    async with stage.host.diff(DiffRequest(stage.session.session_id, old, new, below=below)) as batches:
        async for batch in batches:
            found += batch
    return {change.path.removeprefix(f"{below}/"): change.kind for change in found}


# ---- files ---------------------------------------------------------------------------------------------------------


async def files_are_those_of_a_filesystem(stage: Stage) -> None:
    """Files are written, renamed, linked, locked, synced and removed as on any filesystem."""
    script = """
    echo one > a; ln a b; ln -s a c; mkdir -p d/e/f; mkfifo p; mv a d/e/f/a; sync d/e/f/a
    flock d/e/f/a true; truncate -s 1G sparse; test $(stat -c %s sparse) = 1073741824
    test $(stat -c %b sparse) -lt 2048; echo two >> b; cat d/e/f/a; rm -r d; cat b; stat -c %h b
    """
    equal((await sh(stage, script)).split(), ["one", "two", "one", "two", "1"])


async def names_are_any_bytes(stage: Stage) -> None:
    """A name of any bytes, of 255 of them, and at any depth is kept, restored and told."""
    script = r"""
    mkdir work; cd work
    printf x > "$(printf 'a\nb')"; printf x > "$(printf '\377\200')"; printf x > -rf; printf x > 'a b*?'
    printf x > "$(head -c 255 /dev/zero | tr '\0' n)"
    deep=$(for i in $(seq 40); do printf 'directory/'; done); mkdir -p "$deep"; printf x > "$deep/end"
    """
    await sh(stage, script)
    before = await sh(stage, _LOOK)
    shot = await turn(stage)
    await sh(stage, "rm -r work; echo other > work")
    await back(stage, shot)
    equal(await sh(stage, _LOOK), before)


async def every_kind_of_file_is_kept(stage: Stage) -> None:
    """Modes, times, links, pipes, holes and attributes are in a snapshot as they were."""
    script = """
    echo text > a; chmod 4751 a; touch -d '2001-02-03 04:05:06.789' a; ln a hard; ln -s nowhere soft; mkfifo -m 600 p
    mkdir -m 1777 sticky; mkdir -m 500 closed; truncate -s 100M hole; echo end >> hole; : > empty
    python3 -c 'import os; os.setxattr("empty", "user.mark", b"of mine")'
    """
    await sh(stage, script)
    look = _LOOK + """; python3 -c 'import os; print(os.getxattr("empty", "user.mark"))'; test a -ef hard"""
    before = await sh(stage, look)
    shot = await turn(stage)
    await sh(stage, "rm -rf a hard soft p sticky hole empty; chmod 700 closed; rmdir closed")
    await back(stage, shot)
    equal(await sh(stage, look), before)
    blocks = int(await sh(stage, "stat -c %b hole"))
    expect(blocks < 4096, f"a hole of 100 MiB takes {blocks} blocks after a rollback")


# ---- going back ----------------------------------------------------------------------------------------------------


async def a_rollback_restores_everything(stage: Stage) -> None:
    """What was added, changed, moved and removed since is undone; the session is the same one."""
    await sh(stage, "echo one > a; mkdir -p d/e g; echo x > d/e/f; chmod 750 d; ln -s a link; echo g > g/g")
    before = await sh(stage, _LOOK)
    shot = await turn(stage)
    await sh(stage, "echo two >> a; rm -r d; mv link other; mv g moved; mkdir d; echo y > d/new; chmod 700 moved")
    await turn(stage)
    told = await stage.host.rollback(RollbackRequest(stage.session.session_id, shot))
    equal((told.session_id, told.head, told.workspace), (stage.session.session_id, shot, stage.session.workspace))
    equal(await sh(stage, _LOOK), before)


async def a_rollback_restores_the_root(stage: Stage) -> None:
    """Files of the system go back too: those that were changed, those that were removed, and their owners."""
    look = "cat /etc/passwd | md5sum; stat -c '%u %g %a' /etc/hostname /opt/mine; ls /usr/bin | md5sum"
    await sh(stage, "mkdir /opt/mine; chown 1234:2345 /opt/mine", user="root")
    before = await sh(stage, look, user="root")
    shot = await turn(stage)
    script = "echo x >> /etc/passwd; chown 5 /etc/hostname; rm -r /opt/mine /usr/bin/tar; mv /usr/bin/find /usr/bin/f"
    await sh(stage, script, user="root")
    await back(stage, shot)
    equal(await sh(stage, look, user="root"), before)


async def a_snapshot_never_changes(stage: Stage) -> None:
    """A session goes back to the same snapshot any number of times, and finds the same."""
    await sh(stage, "echo one > a; mkdir d; echo x > d/x")
    before = await sh(stage, _LOOK)
    shot = await turn(stage)
    for number in range(4):
        await sh(stage, f"echo {number} > a; rm -r d; echo {number} > n-{number}")
        await back(stage, shot)
        equal(await sh(stage, _LOOK), before)


async def every_turn_can_be_gone_back_to(stage: Stage) -> None:
    """Of twelve turns each holds what was there, in whatever order they are asked for."""
    looks: dict[str, str] = {}
    for number in range(12):
        await sh(stage, f"echo {number} > a; echo {number} > f-{number}; rm -f f-{number - 3}; mkdir d-{number}")
        looks[await turn(stage)] = await sh(stage, "ls; cat a f-*")
    shots = list(looks)
    for shot in (shots[3], shots[11], shots[0], shots[7]):
        await back(stage, shot)
        equal((shot, await sh(stage, "ls; cat a f-*")), (shot, looks[shot]))


async def a_branch_is_kept(stage: Stage) -> None:
    """What is newer than the target stays when that is asked for, and goes when it is not."""
    for text in ("one", "two"):
        await sh(stage, f"echo {text} > a")
        await turn(stage)
    await back(stage, "1")
    await sh(stage, "echo other > a")
    await turn(stage)
    await back(stage, "2")
    equal(await sh(stage, "cat a"), "two\n")
    await back(stage, "1", keep=False)
    names = [shot.name for shot in await stage.host.list_snapshots(stage.session.session_id)]
    equal(len(names), 1)


async def a_wrong_target_changes_nothing(stage: Stage) -> None:
    """Going to what is not there is an error, and the session goes on as it was."""
    await sh(stage, "echo kept > a")
    await turn(stage)
    try:
        await back(stage, "no-such-snapshot")
    except SnapshotNotFound:
        equal(await sh(stage, "cat a"), "kept\n")
        return
    raise Broken("it went to a snapshot that is not there")


async def what_was_removed_and_made_again_is_new(stage: Stage) -> None:
    """A directory that replaces one of an earlier turn holds nothing of it."""
    await sh(stage, "mkdir -p d/e; echo old > d/e/f; echo file > other")
    await turn(stage)
    await sh(stage, "rm -r d other; mkdir d other; echo new > d/new")
    equal(await sh(stage, "find d other | LC_ALL=C sort"), "d\nd/new\nother\n")
    shot = await turn(stage)
    await sh(stage, "rm -r d; echo d > d")
    await back(stage, shot)
    equal(await sh(stage, "find d other | LC_ALL=C sort"), "d\nd/new\nother\n")


async def a_large_file_changes_in_places(stage: Stage) -> None:
    """A file that is written here and there holds, at every turn, what it held."""
    await sh(stage, f"head -c {8 * MIB} /dev/urandom > a")
    sums: dict[str, str] = {}
    for number in range(4):
        write = f"printf '%s' change-{number} | dd of=a bs=1 seek={number * 2_000_003} conv=notrunc 2>/dev/null"
        await sh(stage, write)
        sums[await turn(stage)] = await sh(stage, "md5sum a")
    for shot in reversed(sums):
        await back(stage, shot)
        equal(await sh(stage, "md5sum a"), sums[shot])


# ---- living processes ----------------------------------------------------------------------------------------------

# Whoever reads one after the other sees the same number, or one less in the second.
_PAIR = "n=0; while :; do n=$((n+1)); echo $n > new; mv new first; echo $n > new; mv new second; echo line >> log; done"


async def a_snapshot_is_one_moment(stage: Stage) -> None:
    """A snapshot that is taken while a process writes holds one moment: what was written later is not in it alone."""
    await sh(stage, "echo 0 > first; echo 0 > second; : > log")
    async with stage.host.call(stage.request("sh", "-c", _PAIR, detach=True)) as stream:
        async for _started in stream:
            break
    shots: list[str] = []
    for _ in range(5):
        await asyncio.sleep(0.05)
        shots.append(await turn(stage))
    seen: list[int] = []
    for shot in shots:
        await back(stage, shot)
        first, second, lines, *words = (await sh(stage, "cat first second; wc -l < log; sort -u log")).split()
        expect(int(first) - int(second) in (0, 1), f"{first} was written before {second}")
        expect(int(second) - int(lines) in (0, 1), f"{second} was written before line {lines}")
        expect(set(words) <= {"line"}, f"a torn line: {words[:5]}")
        seen.append(int(first))
    expect(seen == sorted(seen), f"moments out of order: {seen}")


async def a_rollback_ends_what_ran(stage: Stage) -> None:
    """Processes that held the old files are gone after a rollback, and write nothing any more."""
    shot = await turn(stage)
    script = "exec 3>>held; echo $$ ready; while :; do echo line >&3; sleep 0.01; done"
    async with stage.host.call(stage.request("sh", "-c", script, detach=True)) as stream:
        pid = int((await read_until(stream, b"ready\n")).split()[0])
    await back(stage, shot)
    await stage.wait_gone(pid)
    equal((await sh(stage, "ls")).split(), [])


# ---- forks ---------------------------------------------------------------------------------------------------------


async def forks_are_independent(stage: Stage) -> None:
    """Forks hold what the snapshot holds, see nothing of each other, and outlive the session they come from."""
    await sh(stage, "echo one > a; mkdir d; echo x > d/x")
    shot = await turn(stage)
    await sh(stage, "echo two > a")
    children = await fork(stage, shot, 3)
    for number, child in enumerate(children):
        equal(await sh(child, f"cat a d/x; echo child-{number} > a; rm -r d"), "one\nx\n")
    equal(await sh(stage, "cat a d/x"), "two\nx\n")
    await stage.host.destroy(stage.session.session_id)
    for number, child in enumerate(children):
        equal(await sh(child, "cat *"), f"child-{number}\n")
        await turn(child)
        await sh(child, "rm a")
        await back(child, "1")
        equal(await sh(child, "cat *"), f"child-{number}\n")


async def forks_of_forks_work(stage: Stage) -> None:
    """A fork of now, of a fork, of a fork holds all that was written on the way, whoever has gone meanwhile."""
    generations = [stage]
    for number in range(3):
        await sh(generations[-1], f"echo {number} > n-{number}")
        generations += await fork(generations[-1])
    for gone in generations[:-1]:
        await stage.host.destroy(gone.session.session_id)
    equal(await sh(generations[-1], "cat n-0 n-1 n-2"), "0\n1\n2\n")


# ---- comparing -----------------------------------------------------------------------------------------------------


async def a_diff_tells_what_changed(stage: Stage) -> None:
    """A comparison tells what was added, changed and removed, forwards, backwards and up to now, and nothing else."""
    script = "echo same > same; echo one > changed; echo x > gone; mkdir -p old/sub keep; echo y > old/sub/y; ln -s a l"
    await sh(stage, script + "; echo k > keep/k; : > mode; : > kind")
    first = await turn(stage)
    await sh(
        stage, "echo two > changed; rm gone; mv old moved; chmod 600 mode; ln -sf b l; rm kind; mkdir kind; touch n"
    )
    expected = {
        **dict.fromkeys(("moved", "moved/sub", "moved/sub/y", "n"), ChangeKind.ADDED),
        **dict.fromkeys(("changed", "mode", "l", "kind"), ChangeKind.CHANGED),
        **dict.fromkeys(("gone", "old", "old/sub", "old/sub/y"), ChangeKind.REMOVED),
    }
    equal(await differences(stage, first), expected)
    second = await turn(stage)
    equal(await differences(stage, first, second), expected)
    turned = {ChangeKind.ADDED: ChangeKind.REMOVED, ChangeKind.REMOVED: ChangeKind.ADDED}
    equal(await differences(stage, second, first), {path: turned.get(kind, kind) for path, kind in expected.items()})
    equal(await differences(stage, second), {})


async def a_turn_counts_its_changes(stage: Stage) -> None:
    """A turn tells how many files it added, changed and removed."""
    await sh(stage, "echo one > a; echo two > b")
    await turn(stage)
    await sh(stage, "echo more >> a; rm b; echo c > c; echo d > d")
    await turn(stage)
    session_id = stage.session.session_id
    while (last := (await stage.host.turns(session_id))[-1]).changes is None:  # noqa: ASYNC110 - counted behind the answer
        await asyncio.sleep(0.02)
    equal((last.changes.added, last.changes.changed, last.changes.removed), (2, 1, 1))


# ---- space ---------------------------------------------------------------------------------------------------------


async def space_is_told(stage: Stage) -> None:
    """A snapshot tells how much space it needs, and a session how much it has taken."""
    session_id = stage.session.session_id
    before = (await stage.host.get(session_id)).space_used or 0

    async def enough(told: Callable[[], Awaitable[int]]) -> int:
        """Figures may be a moment old."""
        found = 0
        for _ in range(_LOOKS):
            if (found := await told()) > 3.5 * MIB:
                break
            await asyncio.sleep(_LOOK_S)
        return found

    async def grown() -> int:
        return ((await stage.host.get(session_id)).space_used or 0) - before

    async def taken() -> int:
        return (await stage.host.list_snapshots(session_id))[0].space_bytes or 0

    await sh(stage, f"head -c {4 * MIB} /dev/urandom > a; sync -f .")
    used = await enough(grown)
    expect(3.5 * MIB < used < 8 * MIB, f"the session needs {used} bytes more after 4 MiB were written")
    await turn(stage)
    kept = await enough(taken)
    expect(3.5 * MIB < kept < before + 8 * MIB, f"its snapshot needs {kept} bytes, with 4 MiB that were written")


async def what_is_deleted_leaves_the_others(stage: Stage) -> None:
    """Of three snapshots the middle one goes, and the others hold what they held."""
    for text in ("one", "two", "three"):
        await sh(stage, f"echo {text} > a; echo {text} > {text}")
        await turn(stage)
    await stage.host.delete_snapshot(stage.session.session_id, "turn-0002")
    await back(stage, "1")
    equal(await sh(stage, "cat *"), "one\none\n")
    await back(stage, "3")
    equal(await sh(stage, "cat a one two three"), "three\none\ntwo\nthree\n")


async def nothing_is_left_behind(stage: Stage) -> None:
    """When sessions are gone the host finds nothing that no session needs."""
    await sh(stage, "echo one > a")
    shot = await turn(stage)
    children = await fork(stage, shot, 2)
    await sh(children[0], "echo two > a")
    await turn(children[0])
    await back(stage, shot, keep=False)
    for one in (children[0], stage, children[1]):
        await stage.host.destroy(one.session.session_id)
    found = await stage.host.examine()
    equal([finding for finding in found.findings if "files" in finding.kind], list[Finding]())


# ---- limits --------------------------------------------------------------------------------------------------------

_DISK = 48 * MIB


async def the_disk_is_limited(stage: Stage) -> None:
    """A session that may write so much writes so much and at most 1 MiB more; when it has made room it goes on."""
    other = await stage.another(resources=Resources(disk_bytes=_DISK))
    ran = await other.sh(f"head -c {2 * _DISK} /dev/urandom > a; sync -f .")
    expect(ran.result.exit_code != 0 or b"space" in ran.stderr or b"quota" in ran.stderr, "nothing was refused")
    size = int(await sh(other, "stat -c %s a"))
    expect(_DISK // 2 <= size <= _DISK + MIB, f"{size} bytes fit into {_DISK}")
    await sh(other, "rm a; sync -f .; echo room > b; cat b")


async def the_limit_holds_after_a_rollback(stage: Stage) -> None:
    """A session at its limit goes back and can be used, and still gets no more than it may."""
    other = await stage.another(resources=Resources(disk_bytes=_DISK))
    await sh(other, "echo begun > a")
    shot = await turn(other)
    await other.sh(f"head -c {2 * _DISK} /dev/urandom > big; sync -f .")
    await back(other, shot)
    equal(await sh(other, "ls; cat a"), "a\nbegun\n")
    for _ in range(_LOOKS):  # what was given up counts a moment longer where history counts
        if (await other.sh("echo more > b")).result.exit_code == 0:
            break
        await asyncio.sleep(_LOOK_S)
    equal(await sh(other, "echo more > b; cat b"), "more\n")
    await other.sh(f"head -c {2 * _DISK} /dev/urandom > big; sync -f .")
    size = int(await sh(other, "stat -c %s big"))
    expect(size <= _DISK + MIB, f"{size} bytes fit into {_DISK} after a rollback")


# ---- without snapshots ---------------------------------------------------------------------------------------------


async def what_has_no_snapshots_says_so(stage: Stage) -> None:
    """Without the capability every verb of snapshots is refused as such, and a turn is recorded without one."""
    session_id = stage.session.session_id
    for attempt in (
        stage.host.create_snapshot(SnapshotRequest(session_id, "mine")),
        stage.host.rollback(RollbackRequest(session_id, "1")),
        stage.host.list_snapshots(session_id),
        stage.host.fork(ForkRequest(session_id)),
    ):
        try:
            await attempt
        except SnapshotsNotAvailable:
            continue
        raise Broken("it was not refused")
    closed = await stage.host.turn_complete(TurnRequest(session_id))
    equal((closed.number, closed.snapshot), (1, None))


_ROOT = (Capability.SNAPSHOTS, Capability.OWN_ROOT, Capability.USERS)
_SNAPSHOTS = (Capability.SNAPSHOTS,)
_LIMITED = (Capability.SNAPSHOTS, Capability.LIMIT_DISK)

STORAGE_CHECKS: tuple[Check[Stage], ...] = (
    Check(files_are_those_of_a_filesystem),
    Check(what_has_no_snapshots_says_so, unless=Capability.SNAPSHOTS),
    *(
        Check(run, _SNAPSHOTS)
        for run in (
            names_are_any_bytes,
            every_kind_of_file_is_kept,
            a_rollback_restores_everything,
            a_snapshot_never_changes,
            every_turn_can_be_gone_back_to,
            a_branch_is_kept,
            a_wrong_target_changes_nothing,
            what_was_removed_and_made_again_is_new,
            a_large_file_changes_in_places,
            a_snapshot_is_one_moment,
            a_rollback_ends_what_ran,
            forks_are_independent,
            forks_of_forks_work,
            a_diff_tells_what_changed,
            a_turn_counts_its_changes,
            space_is_told,
            what_is_deleted_leaves_the_others,
            nothing_is_left_behind,
        )
    ),
    Check(a_rollback_restores_the_root, _ROOT),
    Check(the_disk_is_limited, (Capability.LIMIT_DISK,)),
    Check(the_limit_holds_after_a_rollback, _LIMITED),
    *PLAIN_CHECKS,
)


async def conform_storage(
    host: Host, runtime: str, storage: Storage, have: frozenset[Capability], only: frozenset[str] | None = None
) -> AsyncIterator[Outcome]:
    """Sessions on this storage and runtime, then the storage alone. `have`: what such sessions can do; `only`: the
    checks of these names. What the storage says that it lacks deviates, by the name of the check."""
    lacks = {**OF_ROOTS, **OF_RUNTIMES.get(runtime, {})}
    lacks |= {name.replace("-", "_"): reason for name, reason in storage.lacks.items()}
    lacks = _named(lacks, lacks.keys() - MADE_UP_FOR.get(runtime, frozenset()))
    if only is not None:
        lacks = _named(lacks, only)
    alone = _named(lacks, {check.name for check in VOLUME_CHECKS})
    rest = {name: reason for name, reason in lacks.items() if name not in alone}
    sessions = tuple(check for check in STORAGE_CHECKS if only is None or check.name in only)
    async for outcome in conform(host, runtime, sessions, rest, storage.name, have):
        yield outcome
    volumes = tuple(check for check in VOLUME_CHECKS if only is None or check.name in only)
    async for outcome in conform_volumes(storage, volumes, alone):
        yield outcome


def _named(lacks: Mapping[str, str], names: AbstractSet[str]) -> dict[str, str]:
    return {name: reason for name, reason in lacks.items() if name in names}
