"""Attacks on the runtime `gvisor`: a part of them for real, and the list of what another kernel says."""

import shutil
from dataclasses import replace

import pytest

from sandlot.attack import kernels, suite
from sandlot.attack.case import try_rows
from sandlot.attack.cases import CASES
from sandlot.config.settings import Settings
from sandlot.wiring.embedded import build

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
# All of them take minutes there: `sandlot attack --runtime gvisor`.
CHOSEN = ("11-mounts", "14-trace", "17-filter", "18-sockets", "escape-sys-module", "escape-host-mounts")


def test_what_another_kernel_says_is_listed_for_rows_and_cases_that_exist() -> None:
    rows = {row.name for case in CASES for row in case.rows}
    for listed in kernels.ROWS.values():
        assert listed.keys() - rows == set()
        assert all(difference.why for difference in listed.values())
    for listed in kernels.CASES.values():
        assert listed.keys() - {case.name for case in CASES} == set()
    assert kernels.is_known("gvisor", "process_vm_readv", "ENOSYS")
    assert not kernels.is_known("gvisor", "process_vm_readv", "EIO"), "not any number is a refusal"
    assert not kernels.is_known("gvisor", "Dirty COW", "changed"), "nor is what is listed known whatever it says"
    assert not kernels.is_known("gvisor", "any", "ENOSYS")
    assert not kernels.is_known("namespaces", "process_vm_readv", "ENOSYS")


@pytest.mark.root
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)
async def test_a_part_of_the_rows_under_gvisor(settings: Settings) -> None:
    async with build(replace(settings, runtime="gvisor")) as host, suite.arena(host, settings.data) as arena:
        assert arena.runtime == "gvisor"
        for case in CASES:
            if case.name in CHOSEN:
                assert case.rows
                assert await try_rows(arena, case.rows, arena.session) == {}, case.name
