"""The suite of attacks is itself tested: with a defence taken away it reports what that defence stops, and no more."""

import asyncio
import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sandlot.attack import acts_engine, suite
from sandlot.attack.arena import Arena
from sandlot.attack.case import try_rows
from sandlot.attack.cases import CASES
from sandlot.attack.rows import ROOT, Row
from sandlot.attack.verdicts import Verdict
from sandlot.config.settings import load
from sandlot.host import desk, inside, kernel, lifecycle
from sandlot.host.runtimes import controllers
from sandlot.host.storage.layers import LayersStorage
from sandlot.wiring.embedded import build
from tests.security.weakenings import ACT, ENGINES, GUESTS, ON_SOME_KERNELS, Weakening, Workshop

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("gcc"), reason="weakened guests are compiled"),
]

BY_NAME = {case.name: case for case in CASES}
CONTROLS = 4  # rows of every other case that must still hold


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    shop = Workshop(tmp_path_factory.mktemp("weakened"))
    yield shop
    shop.close()


def controls(weakening: Weakening) -> list[Row]:
    """Quick rows that the weakening must not touch, some of every case; those that reach for the network are not."""
    found: list[Row] = []
    for case in CASES:
        named = {*weakening.breaks.get(case.name, {}), *weakening.untried}
        quick = [row for row in case.rows if not row.python and "find / " not in row.script and ROOT in row.users]
        own = [row for row in quick if row.name not in named and not case.own_session and "dirty" not in row.script]
        found += [dataclasses.replace(row, users=(ROOT,)) for row in own[:CONTROLS]]
    return found


async def check_case(arena: Arena, name: str, expected: dict[str, str]) -> None:
    case = BY_NAME[name]
    rows = [row for row in case.rows if row.name in expected]
    assert {row.name for row in rows} | {ACT} >= set(expected), f"{name} has no such rows"
    failed = await try_rows(arena, rows, arena.session)
    for row in rows:
        told = [why for key, why in failed.items() if key.startswith(f"{row.name} (")]
        assert told, f"{row.name} held, though its defence is gone"
        assert any(expected[row.name] in why for why in told), told
    if ACT in expected:
        finding = await dataclasses.replace(case, rows=()).carry_out(arena)
        assert finding.verdict in (Verdict.ESCAPED, Verdict.LEAKED), finding
        assert expected[ACT] in finding.detail, finding


async def check(data: Path, weakening: Weakening, keeper: Path | None, others: Sequence[Row]) -> None:
    environment = {**os.environ, "SANDLOT_DATA_DIR": str(data), "SANDLOT_STORAGE": "", "SANDLOT_RUNTIME": ""}
    settings = load({**environment, "SANDLOT_KEEPER": str(keeper)} if keeper else environment)
    async with build(settings) as host, suite.arena(host, data) as arena:
        if lacking := weakening.needs - arena.capabilities:
            pytest.skip(f"this machine has no {', '.join(sorted(lacking))}")
        failed = await try_rows(arena, others, arena.session)
        assert not failed, "attacks on other defences got through"
        for name, expected in weakening.breaks.items():
            await check_case(arena, name, dict(expected))


@pytest.mark.parametrize("weakening", GUESTS, ids=lambda one: one.name.replace(" ", "-"))
def test_guest(workshop: Workshop, data_dir: Path, weakening: Weakening) -> None:
    asyncio.run(check(data_dir, weakening, workshop.build(weakening), controls(weakening)))


def has(weakening: Weakening) -> bool:
    """Whether this kernel has at all what the filter keeps away."""
    if weakening.name == "typing into terminals":
        switch = Path("/proc/sys/dev/tty/legacy_tiocsti")
        return not switch.exists() or switch.read_text().strip() == "1"
    return Path("/proc/sys/abi/vsyscall32").exists()


@pytest.mark.parametrize("weakening", ON_SOME_KERNELS, ids=lambda one: one.name.replace(" ", "-"))
def test_guest_on_some_kernels(workshop: Workshop, data_dir: Path, weakening: Weakening) -> None:
    if not has(weakening):
        pytest.skip("this kernel does not have it, whatever the filter says")
    asyncio.run(check(data_dir, weakening, workshop.build(weakening), controls(weakening)))


def careless_open(directory: int, path: str, flags: int, resolve: int) -> int:
    """As a program would do it that joins a path to a directory, and thinks no further."""
    del resolve
    return os.open(path.lstrip("/") or ".", flags | os.O_CLOEXEC, dir_fd=directory)


def open_anywhere(directory: int, path: str, flags: int, resolve: int) -> int:
    return kernel.open_inside(directory, path, flags, resolve & ~kernel.NO_XDEV)


def nothing(*_arguments: object) -> None:
    pass


def no_settings(*_arguments: object) -> tuple[()]:
    return ()


def as_it_comes(value: str) -> str:
    return value


async def keep(self: LayersStorage, *needless: str) -> None:
    del self, needless


def weaken(patch: pytest.MonkeyPatch, weakening: Weakening) -> None:
    match weakening.name:
        case "paths without confinement":
            patch.setattr(inside, "open_inside", careless_open)
        case "the kernel's files":
            patch.setattr(inside, "open_inside", open_anywhere)
        case "files of any kind":
            patch.setattr(inside, "need_regular", nothing)
        case "rights of the engine":
            patch.setattr(desk, "act_as", nothing)
        case "ids as they come":
            patch.setattr(lifecycle, "check_session_id", as_it_comes)
        case "limits that are not set":
            patch.setattr(controllers, "settings", no_settings)
        case "volumes that stay":
            patch.setattr(LayersStorage, "release", keep)
            patch.setattr(acts_engine, "SETTLE_S", 1.0)
        case unknown:
            raise LookupError(unknown)


@pytest.mark.parametrize("weakening", ENGINES, ids=lambda one: one.name.replace(" ", "-"))
def test_engine(data_dir: Path, weakening: Weakening, monkeypatch: pytest.MonkeyPatch) -> None:
    weaken(monkeypatch, weakening)
    # The other file cases take seconds each; those of the guest's walls have nothing to do with the engine's hands.
    asyncio.run(check(data_dir, weakening, None, ()))


def test_many_cases_are_shown_to_break() -> None:
    shown = {name for one in (*GUESTS, *ON_SOME_KERNELS, *ENGINES) for name in one.breaks}
    assert len(shown) >= 20, sorted(shown)
