"""Layers that wait to be used."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from sandlot.host.storage.layers import LayersStorage
from sandlot.host.storage.spares import KEPT, Spares
from sandlot.model import Conflict
from tests.waiting import until


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncGenerator[LayersStorage]:
    storage = LayersStorage(tmp_path)
    await storage.attach()
    yield storage
    await storage.detach()


def spares(data: Path) -> list[Path]:
    return sorted(path for path in (data / "spares").iterdir() if (path / "w").is_dir())


def look(layer: Path) -> list[tuple[str, int, int]]:
    """All that there is of it: names, modes, owners."""
    found = [layer, *layer.rglob("*")]
    return sorted((str(path.relative_to(layer)), path.stat().st_mode, path.stat().st_uid) for path in found)


async def test_a_layer_that_waited_is_like_one_that_was_made_at_once(storage: LayersStorage, tmp_path: Path) -> None:
    first = (await storage.create("v-0")).path
    assert await until(lambda: len(spares(tmp_path)) == KEPT)
    waiting = {path.stat().st_ino for path in spares(tmp_path)}
    numbers = iter(range(1, 1000))

    async def uses_one() -> Path | None:
        made = (await storage.create(f"v-{next(numbers)}")).path
        return made if made.stat().st_ino in waiting else None

    async with asyncio.timeout(60):
        # They are there a moment before the storage knows of them.
        while (second := await uses_one()) is None:  # noqa: ASYNC110 - as said above
            await asyncio.sleep(0.01)
    assert look(first) == look(second)
    assert [name for name, *_rest in look(first)] == [".", "u", "w"]
    assert await until(lambda: len(spares(tmp_path)) == KEPT)


async def test_a_name_that_is_taken_stays_whose_it_is(storage: LayersStorage, tmp_path: Path) -> None:
    await storage.create("v-1")
    assert await until(lambda: len(spares(tmp_path)) == KEPT)
    (tmp_path / "volumes" / "v-1" / "u" / "file").write_text("kept")
    with pytest.raises(Conflict):
        await storage.create("v-1")
    (tmp_path / "volumes" / "v-2").mkdir()
    with pytest.raises(Conflict):
        await storage.create("v-2")
    assert (tmp_path / "volumes" / "v-1" / "u" / "file").read_text() == "kept"


async def test_one_that_someone_removed_is_not_missed(tmp_path: Path) -> None:
    made: list[str] = []

    def make(path: str) -> None:
        os.mkdir(path)
        made.append(path)

    kept = Spares(tmp_path / "spares", make)
    kept.open(lambda _path: None)
    assert not kept.take(f"{tmp_path}/one"), "none is there yet"
    assert await until(lambda: len(kept) == KEPT)
    for path in made:
        os.rmdir(path)
    assert [kept.take(f"{tmp_path}/one") for _ in range(KEPT + 1)] == [False] * (KEPT + 1)
    assert not (tmp_path / "one").exists()
    assert await until(lambda: len(kept) == KEPT)
    assert kept.take(f"{tmp_path}/one")
    assert (tmp_path / "one").is_dir()
    await kept.close()


async def test_those_of_a_dead_engine_are_removed_and_one_that_leaves_takes_its_own_away(tmp_path: Path) -> None:
    died = LayersStorage(tmp_path)
    await died.attach()
    await died.create("v-1")
    assert await until(lambda: len(spares(tmp_path)) == KEPT)
    (tmp_path / "spares" / "half-made").mkdir()
    (tmp_path / "spares" / "file").write_text("of whom?")
    next_one = LayersStorage(tmp_path)
    await next_one.attach()
    assert list((tmp_path / "spares").iterdir()) == []
    await next_one.sweep()
    assert list((tmp_path / "trash").iterdir()) == []
    await next_one.open("v-1", "v-1")
    await next_one.create("v-2")
    assert await until(lambda: len(spares(tmp_path)) == KEPT)
    await next_one.detach()
    assert list((tmp_path / "spares").iterdir()) == []
    await died.detach()


async def test_a_disk_that_refuses_is_met_by_who_needs_a_layer(storage: LayersStorage, tmp_path: Path) -> None:
    (tmp_path / "spares").rmdir()  # nothing can be put there
    made = [(await storage.create(f"v-{number}")).path for number in range(3)]
    assert all((path / "w").is_dir() for path in made)
