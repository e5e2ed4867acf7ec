"""The storage `btrfs` below the runtime `gvisor`, which keeps files of a root open that was taken from it."""

import os
import shutil
from pathlib import Path

import pytest

from sandlot.config.settings import Settings, load
from sandlot.conformance import Verdict, conform_storage
from sandlot.host.service import SandboxHostService
from tests import storages

pytestmark = [pytest.mark.root, pytest.mark.skipif(shutil.which("runsc") is None, reason="runsc is not installed")]
CHECK = "the_limit_holds_after_a_rollback"


@pytest.fixture
def settings(data_dir: Path) -> Settings:
    if not (ready := storages.probe("btrfs")).ready:
        pytest.skip(f"btrfs: {ready.reason}")
    known = {"SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_STORAGE": "btrfs", "SANDLOT_RUNTIME": "gvisor"}
    return load({**os.environ, **storages.ENVIRONMENT, **known})


async def test_room_comes_back_though_files_are_still_open(host: SandboxHostService) -> None:
    part, have = await host.storage("btrfs"), await host.capabilities_of("gvisor", "btrfs")
    outcomes = [outcome async for outcome in conform_storage(host, "gvisor", part, have, frozenset({CHECK}))]
    assert [(one.check, one.verdict, one.detail) for one in outcomes] == [(CHECK, Verdict.PASSED, "")]
