"""Layers that a power cut left half made."""

import shutil
from pathlib import Path

import pytest

from sandlot.host.storage.layers import LayersStorage
from sandlot.model import NotFound


@pytest.fixture
async def storage(tmp_path: Path) -> LayersStorage:
    storage = LayersStorage(tmp_path)
    assert (await storage.probe()).ready
    return storage


@pytest.mark.parametrize("lost", ["", "u", "w"])
async def test_an_open_layer_that_did_not_reach_the_disk_is_made_again(
    storage: LayersStorage, tmp_path: Path, lost: str
) -> None:
    volume = await storage.create("v-1")
    whole = {path.name: path.stat().st_uid for path in volume.path.iterdir()}
    shutil.rmtree(volume.path / "w")  # the last that is made is the first that is missing
    if lost != "w":
        shutil.rmtree(volume.path / lost)
    found = await LayersStorage(tmp_path).open("v-1", volume.state)
    assert {path.name: path.stat().st_uid for path in found.path.iterdir()} == whole


async def test_files_of_an_open_layer_stay_when_it_is_made_again(storage: LayersStorage, tmp_path: Path) -> None:
    volume = await storage.create("v-1")
    (volume.path / "u" / "file").write_text("here")
    shutil.rmtree(volume.path / "w")
    found = await LayersStorage(tmp_path).open("v-1", volume.state)
    assert (found.path / "u" / "file").read_text() == "here"


async def test_a_closed_layer_that_is_missing_is_told(storage: LayersStorage, tmp_path: Path) -> None:
    volume = await storage.create("v-1")
    taken = await storage.snapshot(volume, alone=True)
    shutil.rmtree(volume.path)
    with pytest.raises(NotFound):
        await LayersStorage(tmp_path).open("v-1", taken.volume.state)
