"""An environment that is derived from a program, an upload and a download keeps the promises of environments and of
tools, whatever programs its sandboxes have."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sandlot.conformance import (
    ENVIRONMENT_CHECKS,
    Outcome,
    conform_environment,
    conform_environment_tools,
    is_conforming,
)
from sandlot.environments.derived import DerivedProvider
from tests.shell_vendor import ShellVendor, bare, busybox

NO_GIT = "these sandboxes have no git"
GIT = (
    "a_repository_from_the_first_commit_on",
    "commits_go_to_another_repository_and_come_back",
    "options_are_not_smuggled_in_as_names",
    "what_a_repository_names_neither_hangs_nor_fools",
)
WITHOUT = {**dict.fromkeys(GIT, NO_GIT), "a_named_shell_remembers": "these sandboxes have no bash"}
BARE = {
    **WITHOUT,
    "a_write_goes_where_the_file_is": "without `stat` the mode of a file is not known: it is that of a new one",
}


def wrong(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(one.check, one.detail) for one in outcomes if not one.is_good]


async def test_an_environment_of_a_vendor_conforms(tmp_path: Path) -> None:
    vendor = ShellVendor(tmp_path, sessions_max=4)
    make = DerivedProvider(vendor, vendor, pause=vendor).environment
    outcomes = [one async for one in conform_environment(make, at_once=12)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert list(tmp_path.iterdir()) == []


async def test_a_vendor_that_tells_output_at_the_end_says_so(tmp_path: Path) -> None:
    vendor = ShellVendor(tmp_path, streams=False)
    make = DerivedProvider(vendor, vendor).environment
    names = {"progress_is_heard_while_a_tool_works", "bytes_stay_as_they_are", "a_call_ends_at_its_time_limit"}
    checks = [check for check in ENVIRONMENT_CHECKS if check.name in names]
    outcomes = [one async for one in conform_environment(make, checks)]
    assert wrong(outcomes) == []
    assert not (await make().capabilities()).streaming_progress


@pytest.mark.parametrize("able", [True, False])
async def test_what_a_vendor_does_not_have_is_declared_and_refused(tmp_path: Path, able: bool) -> None:
    vendor = ShellVendor(tmp_path)
    provider = DerivedProvider(vendor, vendor, pause=vendor if able else None)
    names = {"a_pause_that_cannot_be_is_refused", "a_paused_session_takes_no_tools", "the_state_follows_others"}
    checks = [check for check in ENVIRONMENT_CHECKS if check.name in names]
    outcomes = [one async for one in conform_environment(provider.environment, checks)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)


@pytest.mark.parametrize(("make", "deviations"), [(busybox, WITHOUT), (bare, BARE)], ids=["busybox", "bare"])
async def test_its_tools_conform_with_the_programs_that_there_are(
    tmp_path: Path, make: Callable[[Path], Path], deviations: Mapping[str, str]
) -> None:
    """Those of a whole machine are tried by the guide to adding an environment."""
    vendor = ShellVendor(tmp_path / "sessions", make(tmp_path / "bin"))
    provider = DerivedProvider(vendor, vendor)
    outcomes = [one async for one in conform_environment_tools(provider.environment, deviations=deviations)]
    assert wrong(outcomes) == []
    assert is_conforming(outcomes)
    assert list((tmp_path / "sessions").iterdir()) == []


async def test_what_nobody_waits_for_is_ended_with_few_programs_too(tmp_path: Path) -> None:
    vendor = ShellVendor(tmp_path / "sessions", bare(tmp_path / "bin"))
    make = DerivedProvider(vendor, vendor).environment
    names = {"whoever_gives_up_ends_the_call", "a_call_ends_at_its_time_limit", "destroying_ends_what_runs"}
    checks = [check for check in ENVIRONMENT_CHECKS if check.name in names]
    outcomes = [one async for one in conform_environment(make, checks)]
    assert wrong(outcomes) == []
    assert len(outcomes) == len(names)
