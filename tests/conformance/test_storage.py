"""The storages of this machine keep the promises of every storage; and a promise that is broken is told."""

from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from sandlot.conformance import (
    STORAGE_CHECKS,
    VOLUME_CHECKS,
    Check,
    Outcome,
    Stage,
    Verdict,
    conform,
    conform_storage,
    conform_volumes,
    conform_whole,
    is_conforming,
)
from sandlot.contracts import Storage, Taken, Volume
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.layers import LayersStorage
from sandlot.model import Capability, SessionFilter
from tests.storages import nothing_left

# Where each takes seconds; `make storages` runs all of them.
SHORT = frozenset(
    {
        "every_kind_of_file_is_kept",
        "a_snapshot_is_one_moment",
        "forks_are_independent",
        "a_diff_tells_what_changed",
        "nothing_is_left_behind",
        "a_volume_begins_empty",
        "what_nobody_made_is_refused",
        "what_is_released_goes",
        "a_point_never_changes",
        "a_volume_goes_back",
        "a_point_outlives_its_volume",
        "shrinking",
    }
)
RUNTIMES = [pytest.param("namespaces", marks=pytest.mark.root), "none"]


@pytest.mark.every_storage(slow=True)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_storage_conforms(
    host: SandboxHostService, settings: Any, storage: str, runtime: str, pytestconfig: pytest.Config
) -> None:
    part = await host.storage(storage)
    have = await host.capabilities_of(runtime, storage)
    only = SHORT if storage == "zfs" and not pytestconfig.getoption("--all-storages") else None
    outcomes = [outcome async for outcome in conform_storage(host, runtime, part, have, only)]
    assert [outcome for outcome in outcomes if not outcome.is_good] == []
    assert is_conforming(outcomes)
    assert (await host.list(SessionFilter())).sessions == ()
    await nothing_left(host, settings.data, storage)


async def test_all_suites_are_run_on_a_pair(host: SandboxHostService) -> None:
    """One check of each, on the pair that needs no root; what deviates does so by its reason."""
    names = frozenset(
        {
            "an_id_is_given_once",
            "users_can_be_chosen",
            "what_is_written_is_read_by_both",
            "files_are_written_read_and_edited",
            "a_volume_begins_empty",
        }
    )
    part = await host.storage("local-disk")
    have = await host.capabilities_of("none", "local-disk")
    outcomes = {one.check: one.verdict async for one in conform_whole(host, "none", part, have, names)}
    assert outcomes == {
        "host: an_id_is_given_once": Verdict.PASSED,
        "runtime: users_can_be_chosen": Verdict.DEVIATES,
        "files: what_is_written_is_read_by_both": Verdict.PASSED,
        "tools: files_are_written_read_and_edited": Verdict.PASSED,
        "storage: a_volume_begins_empty": Verdict.PASSED,
    }


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    checks = cast("tuple[Check[Any], ...]", (*STORAGE_CHECKS, *VOLUME_CHECKS))
    assert all(check.promise.endswith(".") for check in checks)
    assert len({check.name for check in checks}) == len(checks)


class Broken:
    """A storage that does one thing wrong, and everything else as the one below does it."""

    def __init__(self, below: Storage) -> None:
        self._below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class Forgets(Broken):
    """Going back goes nowhere."""

    async def restore(self, volume: Volume, point: str) -> Volume:
        del point
        return await self._below.create(volume.name + "0")


class Shares(Broken):
    """A snapshot is the volume itself."""

    async def snapshot(self, volume: Volume, *, alone: bool) -> Taken:
        del alone
        return Taken(volume.state, volume)

    async def release(self, *needless: str) -> None:
        del needless


class Keeps(Broken):
    """What is released stays."""

    async def release(self, *needless: str) -> None:
        del needless


class Trusts(Broken):
    """Whatever a journal says is taken."""

    async def open(self, name: str, state: str) -> Volume:
        return Volume(name, Path("/") / state, (), state)


BROKEN: dict[type[Broken], set[str]] = {
    Forgets: {"a_volume_goes_back"},
    Shares: {"a_point_never_changes", "many_points_are_kept_apart"},
    Keeps: {"what_is_released_goes"},
    Trusts: {"what_nobody_made_is_refused"},
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_storage_that_breaks_a_promise_is_told(data_dir: Path, kind: type[Broken]) -> None:
    below = LayersStorage(data_dir)
    await below.attach()
    outcomes = [outcome async for outcome in conform_volumes(cast("Storage", kind(below)))]
    failed = {outcome.check for outcome in outcomes if outcome.verdict is Verdict.FAILED}
    assert failed >= BROKEN[kind]
    assert not is_conforming(outcomes)
    assert [outcome async for outcome in conform_volumes(below) if not outcome.is_good] == []


async def passes(stage: Stage) -> None:
    """It is kept."""
    del stage


async def test_what_is_not_declared_is_skipped_and_alone_is_no_success(host: SandboxHostService) -> None:
    async def told(have: frozenset[Capability], *checks: Check[Stage]) -> list[Outcome]:
        return [one async for one in conform(host, "none", checks, {}, have=have)]

    needs, unless = Check(passes, (Capability.SNAPSHOTS,)), Check(passes, unless=Capability.SNAPSHOTS)
    without = await told(frozenset(), needs, unless)
    assert [one.verdict for one in without] == [Verdict.SKIPPED, Verdict.PASSED]
    assert without[0].detail == "no snapshots"
    assert is_conforming(without)
    having = await told(frozenset({Capability.SNAPSHOTS}), unless)
    assert [one.verdict for one in having] == [Verdict.SKIPPED]
    assert not is_conforming(having)


@pytest.mark.root
async def test_a_lack_that_is_none_any_more_fails(host: SandboxHostService) -> None:
    """`layers` says that hard links break; a storage of its kind that says so, and keeps them, is wrong."""

    class Boasts(Broken):
        lacks: ClassVar = {
            "a-volume-begins-empty": "so it was once",
            "hard-links": "so it is",
            "no-such-check": "renamed",
        }

    part = Boasts(await host.storage("layers"))
    have = frozenset({Capability.SNAPSHOTS})
    outcomes = {
        one.check: one.verdict async for one in conform_storage(host, "namespaces", cast("Storage", part), have)
    }
    assert outcomes["a_volume_begins_empty"] is Verdict.PASSES_NOW
    assert outcomes["hard_links"] is Verdict.DEVIATES
    assert outcomes["no_such_check"] is Verdict.FAILED
