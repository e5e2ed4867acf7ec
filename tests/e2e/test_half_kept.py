"""Templates and volumes of users, when an engine is killed between the steps of making and removing one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host import failpoints
from sandlot.host.service import SandboxHostService
from sandlot.model import Mount, SessionSpec, TemplateImport, VolumeSpec
from sandlot.wiring.embedded import build
from tests.archives import busybox_tar
from tests.conftest import clean_up

pytestmark = pytest.mark.root
PLACES = tuple(name for name in failpoints.NAMES if name.startswith(("template:", "volume:")))
# Whether what was begun is there afterwards: what is made is there from its name on, and what is removed until then.
THERE = {
    "template: unpacked": False,
    "template: synced": False,
    "template: in place": False,
    "template: named": True,
    "template: set aside": False,
    "volume: filled": False,
    "volume: in place": True,
    "volume: set aside": False,
}
PROGRAM = """
import asyncio, os, signal, sys
from sandlot.config.settings import load
from sandlot.host import failpoints
from sandlot.wiring.embedded import build
from sandlot.model import TemplateImport, VolumeSpec
async def main():
    async with build(load(os.environ)) as host:
        failpoints.arm(sys.argv[1], lambda: os.kill(os.getpid(), signal.SIGKILL))
        if sys.argv[1].startswith("volume"):
            await host.create_volume(VolumeSpec("v"))
            await host.remove_volume("v")
        else:
            async with host.make_template(TemplateImport(sys.argv[2], "t")) as steps:
                async for _step in steps: pass
            await host.remove_template("t")
asyncio.run(main())
"""


def kill_at(place: str, settings: Settings, root: Path) -> None:
    environment = {**os.environ, "SANDLOT_DATA_DIR": str(settings.data)}
    line = [sys.executable, "-c", PROGRAM, place, str(root)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, (place, done)


async def make(host: SandboxHostService, request: TemplateImport) -> None:
    async with host.make_template(request) as steps:
        async for _step in steps:
            pass


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")] if folder.is_dir() else []


async def test_what_is_made_is_there_whole_or_not_at_all(settings: Settings, tmp_path: Path) -> None:
    root = tmp_path / "root.tar"
    root.write_bytes(busybox_tar())
    assert set(PLACES) == set(THERE), "a place that nobody looks at"
    (tmp_path / "told").mkdir()
    async with build(settings) as host:
        await make(host, TemplateImport(str(tmp_path / "told"), "told"))
    for place in PLACES:
        kill_at(place, settings, root)
        host = build(settings)
        # Before anyone starts, what is half is told of, and nothing is changed.
        told = [finding.name for finding in (await host.examine_alone()).findings]
        half = hidden(settings.data / "imports") + hidden(settings.data / "lockers")
        assert [name.partition(":")[2] for name in told] == half, place
        async with build(settings) as host:
            assert hidden(settings.data / "imports") + hidden(settings.data / "lockers") == [], place
            assert (await host.examine()).is_clean
            if place.startswith("volume"):
                names = [volume.name for volume in await host.list_volumes()]
                assert names == (["v"] if THERE[place] else []), place
                if names:
                    await host.create(SessionSpec(mounts=(Mount("v", "/v"),)))
                    await clean_up(host)
                    await host.remove_volume("v")
            else:
                names = [name for template in await host.list_templates() for name in template.names]
                assert names == ["told:latest", *(["t:latest"] if THERE[place] else [])], place
                for template in (await host.list_templates())[1:]:  # one that has no name yet is whole, too
                    await host.create(SessionSpec(template=template.digest))
                    await clean_up(host)
                    await host.remove_template(template.digest)


async def test_a_volume_that_is_gone_is_told(settings: Settings) -> None:
    async with build(settings) as host:
        await host.create_volume(VolumeSpec("v"))
        await host.create(SessionSpec(session_id="s", mounts=(Mount("v", "/v"),)))
        (settings.data / "lockers" / "v").rename(settings.data / "elsewhere")
        [finding] = (await host.examine()).findings
        assert (finding.kind, finding.name, finding.repairable) == ("files missing", "s", False)
        assert "volume v" in finding.detail
        (settings.data / "elsewhere").rename(settings.data / "lockers" / "v")
        (settings.data / "lockers" / ".gone-x").mkdir()
        [finding] = (await host.examine(repair=True)).findings
        assert (finding.name, finding.mended) == ("lockers:.gone-x", True)
        await clean_up(host)
