"""What every storage promises of its volumes and points, asked of the storage itself: no session is made."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandlot.conformance.checks import Broken, Check, Outcome, equal, expect, judge
from sandlot.contracts import Storage, Volume
from sandlot.model import Capability, Conflict, NotFound, SandlotError, limits

MIB = 1 << 20
_LOOKS, _LOOK_S = 50, 0.3
SNAPSHOTS = (Capability.SNAPSHOTS,)
# Texts that no storage wrote; a journal that was tampered with may hold them.
_UNKNOWN = "v-00000000deadbeef"
_WRONG = ("..", "../../etc", "a/b", "/etc", "v-\0", "-rf", " ", "v-@{x}", "\N{BULLET}")


@dataclass(slots=True)
class VolumeStage:
    """A storage that is attached, and what was made in it."""

    storage: Storage
    kept: list[str] = field(default_factory=list[str])  # states and points that were not released

    async def volume(self, point: str = "", disk_bytes: int | None = None) -> Volume:
        made = await self.storage.create("v-" + secrets.token_hex(8), point, disk_bytes)
        self.kept.append(made.state)
        return made

    async def snapshot(self, volume: Volume) -> tuple[str, Volume]:
        """A point, and where to go on; the state before is released, as an engine does when it is recorded."""
        taken = await self.storage.snapshot(volume, alone=True)
        self.kept.append(taken.point)
        if taken.volume != volume:
            self.kept.append(taken.volume.state)
            await self.drop(volume.state)
        return taken.point, taken.volume

    async def restore(self, volume: Volume, point: str) -> Volume:
        made = await self.storage.restore(volume, point)
        self.kept.append(made.state)
        return made

    async def drop(self, text: str) -> None:
        self.kept.remove(text)
        await self.storage.release(text)

    async def no_strays(self) -> None:
        """What was undone or released is on its way out, and not forgotten."""
        equal(list(await self.storage.strays(self.kept)), list[str]())

    async def content(self, point: str, name: str) -> str | None:
        async with self.storage.showing(point, point) as shown:
            return _find(shown.new, name)


def write(volume: Volume, name: str, content: str) -> None:
    (volume.path / "u" / name).write_text(content)


def read(volume: Volume, name: str) -> str | None:
    return _find((volume.path / "u", *volume.layers), name)


def _find(uppers: Sequence[Path], name: str) -> str | None:
    """The newest that has it: nothing here is removed, so no mark of a removal has to be understood."""
    for upper in uppers:
        if (upper / name).exists():
            return (upper / name).read_text()
    return None


async def _refused(attempt: object, *errors: type[SandlotError]) -> None:
    """It is refused with one of these."""
    assert asyncio.iscoroutine(attempt)
    try:
        await attempt
    except errors:
        return
    raise Broken(f"it was not refused as {' or '.join(error.__name__ for error in errors)}")


# ---- the storage ---------------------------------------------------------------------------------------------------


async def a_probe_says_yes_and_changes_nothing(stage: VolumeStage) -> None:
    """A storage that is in use says that it works here, and volumes stay as they are."""
    volume = await stage.volume()
    write(volume, "a", "kept")
    probe = await stage.storage.probe()
    equal((probe.name, probe.ready), (stage.storage.name, True))
    expect(stage.storage.is_attached and stage.storage.was_used(), "it does not know that it is in use")
    equal(read(volume, "a"), "kept")


async def its_health_has_figures(stage: VolumeStage) -> None:
    """How full it is: numbers that fit together."""
    health = await stage.storage.health()
    space = health.space
    equal(health.state, "online")
    expect(space.size_bytes > 0, f"a storage without room: {space}")
    expect(0 <= space.free_bytes <= space.size_bytes, f"more is free than there is: {space}")


async def attaching_again_changes_nothing(stage: VolumeStage) -> None:
    """Who attaches what is attached finds everything in its place."""
    volume = await stage.volume()
    write(volume, "a", "kept")
    await stage.storage.attach()
    equal(read(await stage.storage.open(volume.name, volume.state), "a"), "kept")
    await stage.storage.release(volume.state)  # it was opened once more


async def a_sync_ends(stage: VolumeStage) -> None:
    """Everything that was written can be brought to disk."""
    volume = await stage.volume()
    write(volume, "a", "x" * MIB)
    await stage.storage.sync()


# ---- volumes -------------------------------------------------------------------------------------------------------


async def a_volume_begins_empty(stage: VolumeStage) -> None:
    """A new volume holds an empty directory for what a session writes and one for the kernel, on one filesystem."""
    volume = await stage.volume()
    upper, work = volume.path / "u", volume.path / "w"
    equal((list(upper.iterdir()), work.is_dir(), volume.layers), (list[Path](), True, ()))
    equal(upper.stat().st_dev, work.stat().st_dev)
    equal(upper.stat().st_mode & 0o7777, 0o755)


async def a_name_is_given_once(stage: VolumeStage) -> None:
    """A second volume of a name is refused, and the first is as it was; when that was released the name is free."""
    volume = await stage.volume()
    write(volume, "a", "first")
    await _refused(stage.storage.create(volume.name), Conflict)
    equal(read(volume, "a"), "first")
    await stage.drop(volume.state)
    again = await stage.storage.create(volume.name)
    stage.kept.append(again.state)
    equal(read(again, "a"), None)


async def volumes_do_not_see_each_other(stage: VolumeStage) -> None:
    """What is written to one volume is in no other."""
    one, other = await stage.volume(), await stage.volume()
    write(one, "a", "one")
    equal(read(other, "a"), None)


async def a_volume_is_found_by_its_state(stage: VolumeStage) -> None:
    """A volume that is opened by name and state is where it was."""
    volume = await stage.volume()
    write(volume, "a", "content")
    found = await stage.storage.open(volume.name, volume.state)
    equal((found, read(found, "a")), (volume, "content"))
    equal(await stage.storage.missing(volume.state), [])
    await stage.storage.release(volume.state)


async def what_nobody_made_is_refused(stage: VolumeStage) -> None:
    """States that the storage did not write are refused, and lead nowhere; what is not there is missing."""
    for text in _WRONG:
        await _refused(stage.storage.open("v-" + secrets.token_hex(8), text), SandlotError)
    expect(bool(await stage.storage.missing(_UNKNOWN)), "what nobody made is not missing")
    await stage.no_strays()


async def what_is_released_goes(stage: VolumeStage) -> None:
    """A volume that nobody needs is gone when the storage was swept, and its name leads nowhere."""
    volume = await stage.volume()
    write(volume, "a", "x" * MIB)
    await stage.drop(volume.state)
    await stage.no_strays()
    await stage.storage.sweep()
    expect(bool(await stage.storage.missing(volume.state)), "what was released is still there")
    await _refused(stage.storage.usage(volume.state), NotFound)
    expect(not (volume.path / "u" / "a").exists(), "a file of what was released is still there")


async def what_is_held_stays(stage: VolumeStage) -> None:
    """What someone reads stays until he has done with it, also when it was released meanwhile."""
    volume = await stage.volume()
    write(volume, "a", "held")
    with stage.storage.holding(volume.state):
        await stage.drop(volume.state)
        await stage.storage.sweep()
        equal(read(volume, "a"), "held")
    await stage.storage.sweep()
    expect(bool(await stage.storage.missing(volume.state)), "what was held is still there")


async def space_is_counted(stage: VolumeStage) -> None:
    """A volume needs as much space as was written to it, more or less."""
    volume = await stage.volume()
    before = await stage.storage.usage(volume.state)
    (volume.path / "u" / "a").write_bytes(secrets.token_bytes(4 * MIB))
    await stage.storage.sync()
    if Capability.SNAPSHOTS in stage.storage.capabilities:  # some count what was written when they are asked for one
        _point, volume = await stage.snapshot(volume)
    grown = 0
    for _ in range(_LOOKS):  # figures may be a moment old
        if (grown := await stage.storage.usage(volume.state) - before) > 3.5 * MIB:
            break
        await asyncio.sleep(_LOOK_S)
    expect(3.5 * MIB < grown < 6 * MIB, f"{grown} bytes more after 4 MiB were written")


async def nothing_of_ours_is_a_stray(stage: VolumeStage) -> None:
    """What is in use is no stray, and what is missing is told."""
    volume = await stage.volume()
    equal(list(await stage.storage.strays([volume.state])), [])
    equal(list(await stage.storage.strays([])), [])


# ---- points --------------------------------------------------------------------------------------------------------


async def a_point_never_changes(stage: VolumeStage) -> None:
    """A point holds what was there, whatever is written to the volume afterwards."""
    volume = await stage.volume()
    write(volume, "a", "then")
    point, volume = await stage.snapshot(volume)
    equal(read(volume, "a"), "then")
    write(volume, "a", "now")
    write(volume, "b", "now")
    equal((await stage.content(point, "a"), await stage.content(point, "b")), ("then", None))
    equal((read(volume, "a"), read(volume, "b")), ("now", "now"))


async def many_points_are_kept_apart(stage: VolumeStage) -> None:
    """Each of several points of one volume holds its own."""
    volume = await stage.volume()
    points: list[str] = []
    for number in range(5):
        write(volume, "a", str(number))
        point, volume = await stage.snapshot(volume)
        points.append(point)
    equal(len(set(points)), 5)
    equal([await stage.content(point, "a") for point in points], list("01234"))


async def a_volume_goes_back(stage: VolumeStage) -> None:
    """Restored, a volume of the same name holds what the point holds; the state before stays until it is released."""
    volume = await stage.volume()
    write(volume, "a", "then")
    point, volume = await stage.snapshot(volume)
    write(volume, "a", "now")
    back = await stage.restore(volume, point)
    equal((back.name, read(back, "a")), (volume.name, "then"))
    equal(read(volume, "a"), "now")
    expect(back.path != volume.path, "it is the same place: who stands on the old files would see the new ones")
    write(back, "a", "later")
    equal((read(volume, "a"), await stage.content(point, "a")), ("now", "then"))


async def a_volume_begins_at_a_point(stage: VolumeStage) -> None:
    """Volumes that begin at a point hold what it holds, and share nothing that is written."""
    source = await stage.volume()
    write(source, "a", "then")
    point, source = await stage.snapshot(source)
    one, other = await stage.volume(point), await stage.volume(point)
    write(one, "a", "one")
    write(source, "a", "source")
    equal([read(volume, "a") for volume in (one, other, source)], ["one", "then", "source"])
    equal(await stage.content(point, "a"), "then")


async def a_point_that_nobody_made_is_refused(stage: VolumeStage) -> None:
    """A volume does not go to a point that the storage did not make, and stays as it is."""
    volume = await stage.volume()
    write(volume, "a", "kept")
    for text in (_UNKNOWN, *_WRONG):
        await _refused(stage.storage.restore(volume, text), SandlotError)
    equal(read(volume, "a"), "kept")
    await stage.no_strays()


async def a_point_outlives_its_volume(stage: VolumeStage) -> None:
    """A point stays when its volume is released, and the other way round."""
    volume = await stage.volume()
    write(volume, "a", "then")
    point, volume = await stage.snapshot(volume)
    other = await stage.volume(point)
    await stage.drop(volume.state)
    await stage.storage.sweep()
    equal(await stage.content(point, "a"), "then")
    await stage.drop(point)
    await stage.storage.sweep()
    equal(read(other, "a"), "then")
    further, other = await stage.snapshot(other)
    equal(await stage.content(further, "a"), "then")


async def a_point_goes_and_the_others_stay(stage: VolumeStage) -> None:
    """Of three points the middle one goes, and the others and the volume hold what they held."""
    volume = await stage.volume()
    write(volume, "a", "then")
    kept, volume = await stage.snapshot(volume)
    write(volume, "a", "between")
    gone, volume = await stage.snapshot(volume)
    write(volume, "a", "now")
    last, volume = await stage.snapshot(volume)
    await stage.drop(gone)
    await stage.storage.sweep()
    equal((await stage.content(kept, "a"), await stage.content(last, "a"), read(volume, "a")), ("then", "now", "now"))


async def two_points_are_shown_together(stage: VolumeStage) -> None:
    """Two points can be read side by side, and what is not the same at both lies in what tells them apart."""
    volume = await stage.volume()
    for name in ("same", "changed"):
        write(volume, name, "then")
    old, volume = await stage.snapshot(volume)
    write(volume, "changed", "now!")
    write(volume, "added", "now")
    new, volume = await stage.snapshot(volume)
    async with stage.storage.showing(old, new) as shown:
        await stage.drop(old)
        await stage.storage.sweep()
        equal([_find(shown.old, name) for name in ("same", "changed", "added")], ["then", "then", None])
        equal([_find(shown.new, name) for name in ("same", "changed", "added")], ["then", "now!", "now"])
        told = {path.name for upper in shown.apart for path in upper.iterdir()}
        if shown.places is not None:
            told = {path.removeprefix("/") for path, _whole in shown.places}
        expect({"changed", "added"} <= told, f"only {sorted(told)} is told")


# ---- limits --------------------------------------------------------------------------------------------------------


async def a_volume_stops_at_its_limit(stage: VolumeStage) -> None:
    """A volume with a limit takes no more than that and 1 MiB."""
    limit = 32 * MIB
    volume = await stage.volume(disk_bytes=limit)
    fits = await asyncio.to_thread(_fill, volume.path / "u" / "a", 2 * limit)
    expect(limit // 2 <= fits <= limit + MIB, f"{fits} bytes fit into {limit}")


async def a_limit_can_be_raised(stage: VolumeStage) -> None:
    """A limit that is raised holds from then on; one that this machine cannot raise is told, and stays."""
    limit = 32 * MIB
    volume = await stage.volume(disk_bytes=limit)
    raised = 2 * limit
    try:
        await stage.storage.limit(volume, raised)
    except SandlotError:
        raised = limit
    fits = await asyncio.to_thread(_fill, volume.path / "u" / "a", 3 * limit)
    expect(raised // 2 <= fits <= raised + MIB, f"{fits} bytes fit into {raised}")


async def shrinking(stage: VolumeStage) -> None:
    """A limit that is lowered holds from then on."""
    volume = await stage.volume(disk_bytes=64 * MIB)
    await stage.storage.limit(volume, 32 * MIB)
    fits = await asyncio.to_thread(_fill, volume.path / "u" / "a", 64 * MIB)
    expect(fits <= 33 * MIB, f"{fits} bytes fit into 32 MiB")


def _fill(path: Path, size: int) -> int:
    """How much of it was taken, on disk."""
    written = 0
    piece = secrets.token_bytes(MIB // 4)
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while written < size:
            written += file.write(piece)
            os.fsync(file.fileno())
    return path.stat().st_size


VOLUME_CHECKS: tuple[Check[VolumeStage], ...] = (
    Check(a_probe_says_yes_and_changes_nothing),
    Check(its_health_has_figures),
    Check(attaching_again_changes_nothing),
    Check(a_sync_ends),
    Check(a_volume_begins_empty),
    Check(a_name_is_given_once),
    Check(volumes_do_not_see_each_other),
    Check(a_volume_is_found_by_its_state),
    Check(what_nobody_made_is_refused),
    Check(what_is_released_goes),
    Check(what_is_held_stays),
    Check(space_is_counted),
    Check(nothing_of_ours_is_a_stray),
    Check(a_point_never_changes, SNAPSHOTS),
    Check(many_points_are_kept_apart, SNAPSHOTS),
    Check(a_volume_goes_back, SNAPSHOTS),
    Check(a_volume_begins_at_a_point, SNAPSHOTS),
    Check(a_point_that_nobody_made_is_refused, SNAPSHOTS),
    Check(a_point_outlives_its_volume, SNAPSHOTS),
    Check(a_point_goes_and_the_others_stay, SNAPSHOTS),
    Check(two_points_are_shown_together, SNAPSHOTS),
    Check(a_volume_stops_at_its_limit, (Capability.LIMIT_DISK,)),
    Check(a_limit_can_be_raised, (Capability.LIMIT_DISK,)),
    Check(shrinking, (Capability.LIMIT_DISK,)),
)


async def conform_volumes(
    storage: Storage,
    checks: Sequence[Check[VolumeStage]] = VOLUME_CHECKS,
    deviations: Mapping[str, str] | None = None,
) -> AsyncIterator[Outcome]:
    """On a storage that is attached, beside whatever else it holds. Nothing is left of the checks."""

    async def attempt(check: Check[VolumeStage]) -> None:
        stage = VolumeStage(storage)
        try:
            await check.run(stage)
        finally:
            async with asyncio.timeout(limits.SYNC_DEADLINE_S):
                await storage.release(*stage.kept)
                await storage.sweep()

    async for outcome in judge(checks, deviations or {}, storage.capabilities, attempt):
        yield outcome
