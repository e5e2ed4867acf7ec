"""Layers are merged behind everyone's back: rows stay short, and every turn holds what it held."""

import json
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.layers import LayersStorage
from sandlot.model import DiffRequest, ForkRequest, RollbackRequest, SessionSpec, TurnRequest, limits
from sandlot.wiring.embedded import build
from tests.conftest import clean_up
from tests.e2e.test_comparing import EDITS, WALK, changes, expected, python
from tests.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

AT = 3  # layers that are merged at once
TURNS = 14  # enough for a merged layer made of merged ones
Walk = dict[str, list[object]]


@pytest.fixture(autouse=True)
def merged_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAYERS_MERGED_AT", AT)


def storage_of(host: SandboxHostService) -> LayersStorage:
    return cast("LayersStorage", host._parts.storages["layers"])  # pyright: ignore[reportPrivateUsage]


def row_of(host: SandboxHostService, session_id: str) -> list[str]:
    volume = host._lifecycle.find(session_id).volume  # pyright: ignore[reportPrivateUsage]
    assert volume is not None
    return volume.state.split(",")


async def tidied(host: SandboxHostService, session_id: str) -> None:
    await storage_of(host).tidy(",".join(row_of(host, session_id)))


async def walk(host: SandboxHostService, session_id: str) -> Walk:
    return json.loads(await python(host, session_id, WALK))


async def live(host: SandboxHostService, session_id: str, seed: int, turns: int) -> dict[str, Walk]:
    rng = random.Random(seed)
    walks: dict[str, Walk] = {}
    for number in range(1, turns + 1):
        await python(host, session_id, EDITS, f"{seed}-{number}", str(rng.choice([2, 6, 12])))
        walks[str(number)] = await walk(host, session_id)
        await host.turn_complete(TurnRequest(session_id))
        await tidied(host, session_id)
    return walks


@asynccontextmanager
async def engine(settings: Settings, *, last: bool = False) -> AsyncGenerator[SandboxHostService]:
    async with build(settings) as host:
        yield host
        if last:
            await clean_up(host)


def layers_in(data: Path) -> set[str]:
    return {entry.name for entry in (data / "volumes").iterdir()}


@pytest.mark.parametrize("seed", range(3))
async def test_every_turn_holds_what_it_held(settings: Settings, data_dir: Path, seed: int) -> None:
    """Compared with each other, gone back to, forked; by this engine and by the next one."""
    async with engine(settings) as host:
        session_id = (await host.create(SessionSpec())).session_id
        walks = await live(host, session_id, seed, TURNS)
        row = row_of(host, session_id)
        assert any(layer.startswith("m-") for layer in row)
        assert len(row) < TURNS
        await look(host, session_id, walks, random.Random(seed))
    async with engine(settings, last=True) as host:
        await look(host, session_id, walks, random.Random(seed + 1))
    async with engine(settings):
        assert layers_in(data_dir) == set(), "of a session that is gone nothing is left"


async def look(host: SandboxHostService, session_id: str, walks: dict[str, Walk], rng: random.Random) -> None:
    for _ in range(6):
        old, new = rng.choice(list(walks)), rng.choice(list(walks))
        found = await changes(host, DiffRequest(session_id, old, new, below="/workspace"))
        assert {change.path: change.kind for change in found} == expected(walks[old], walks[new]), (old, new)
    for number in rng.sample(list(walks), 3):
        (fork,) = await host.fork(ForkRequest(session_id, number))
        assert await walk(host, fork.session_id) == walks[number]
        await host.destroy(fork.session_id)
        await host.rollback(RollbackRequest(session_id, number, keep=True))
        assert await walk(host, session_id) == walks[number]


async def test_pruned_turns_give_back_their_layers(settings: Settings, data_dir: Path) -> None:
    kept = 2
    async with engine(replace(settings, turns_kept=kept), last=True) as host:
        session_id = (await host.create(SessionSpec())).session_id
        walks = await live(host, session_id, 5, 4 * AT)
        row = row_of(host, session_id)
        assert len(row) <= 1 + kept + 2 * AT
        # Those that the two turns and the session stand on, and what waits to be used by the next. They go behind the
        # answer of the turn that pruned.
        gone = await until(lambda: len(layers_in(data_dir)) <= 3 * len(row))
        assert gone, "layers that only pruned turns named are gone"
        assert await walk(host, session_id) == walks[str(4 * AT)]


async def test_a_row_does_not_grow_with_turns(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LAYERS_MAX", 9)  # far fewer than turns
    async with engine(settings, last=True) as host:
        session_id = (await host.create(SessionSpec())).session_id
        for _ in range(30):
            await host.turn_complete(TurnRequest(session_id))
            await tidied(host, session_id)
        assert len(row_of(host, session_id)) <= 9


async def test_space_is_counted_once(settings: Settings) -> None:
    """A merged layer has the files of its layers under further names: no turn pays for them again."""
    async with engine(settings, last=True) as host:
        session_id = (await host.create(SessionSpec())).session_id
        await python(host, session_id, "open('/workspace/large', 'wb').write(b'x' * 3_000_000)")
        for number in range(2 * AT):
            await python(host, session_id, f"open('/workspace/{number}', 'w').write('small')")
            await host.turn_complete(TurnRequest(session_id))
            await tidied(host, session_id)
        first, *others = await host.list_snapshots(session_id)
        assert (first.space_bytes or 0) > 2_900_000
        assert all((shot.space_bytes or 0) < 1_000_000 for shot in others), others
        used = (await host.get(session_id)).space_used or 0
        assert 2_900_000 < used < 4_000_000
