"""The runtimes and storages of this machine keep the promises of files; and a promise that is broken is told."""

import shutil

import pytest

from sandlot.conformance import FILE_CHECKS, Broken, Check, FileStage, Verdict, conform_files, is_conforming
from sandlot.host.service import SandboxHostService
from sandlot.model import SessionFilter

NO_RUNSC = "runsc is not installed: `make setup` as root installs it"
GVISOR = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("runtime", "kept_on"),
    [
        pytest.param("namespaces", "layers", marks=pytest.mark.root),
        pytest.param("namespaces", "local-disk", marks=pytest.mark.root),
        pytest.param("gvisor", "layers", marks=GVISOR),
        ("none", "local-disk"),
    ],
)
async def test_files_conform(host: SandboxHostService, runtime: str, kept_on: str) -> None:
    outcomes = [outcome async for outcome in conform_files(host, runtime, kept_on)]
    assert [(outcome.check, outcome.detail) for outcome in outcomes if not outcome.is_good] == []
    assert is_conforming(outcomes)
    assert len(outcomes) == len(FILE_CHECKS)
    assert (await host.list(SessionFilter())).sessions == ()


async def breaks(stage: FileStage) -> None:
    """It is broken."""
    await stage.write("x", b"")
    raise Broken("so it is")


async def test_what_is_broken_is_told_and_nothing_is_left_of_it(host: SandboxHostService) -> None:
    outcomes = [outcome async for outcome in conform_files(host, "none", "local-disk", (Check(breaks),))]
    assert [(outcome.verdict, outcome.detail) for outcome in outcomes] == [(Verdict.FAILED, "so it is")]
    assert (await host.list(SessionFilter())).sessions == ()


def test_every_check_says_its_promise_and_has_a_name_of_its_own() -> None:
    assert all(check.promise.endswith(".") for check in FILE_CHECKS)
    assert len({check.name for check in FILE_CHECKS}) == len(FILE_CHECKS)
