"""`python -m tests.soak.run [--storage NAME] [--kills N] [--seed S]`: kill engines at every named place; look what is
found behind."""

import argparse
import asyncio
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sandlot.config.settings import Settings, load
from sandlot.host import failpoints
from sandlot.host.service import SandboxHostService
from sandlot.host.storage.btrfs import BtrfsStorage
from sandlot.model import SessionFilter, SessionState
from tests import storages
from tests.e2e.standstill import files_apart
from tests.soak.shelf import build_two as build
from tests.soak.world import Known, World, look, try_snapshot

ROOT = Path(__file__).parents[2]
WORKER_S = 300
SWEPT_S = 30
ROUNDS_MIN = 3  # how often each place must be hit


def places_of(storage: str) -> tuple[str, ...]:
    """Where an engine that uses this storage comes by. One that is whole has nothing to merge, and moves no guest when
    a snapshot is taken. Nothing sleeps here, no template or volume is made, and every file can be replaced: the places
    of that are those of tests/e2e/test_sleeping.py, tests/e2e/test_half_kept.py and tests/e2e/test_files_killed.py."""
    others = ("checkpoint:", "restore:", "template:", "volume:", "file: half copied")
    awake = tuple(name for name in failpoints.NAMES if not name.startswith(others))
    if storage == "layers":
        return awake
    return tuple(name for name in awake if not name.startswith("merge:") and name != "snapshot: swapped")


class Soak:
    def __init__(self, data: Path, seed: int, storage: str) -> None:
        self.data = data
        self.storage = storage
        self.environment = {
            **os.environ,
            **storages.ENVIRONMENT,
            "SANDLOT_DATA_DIR": str(data),
            "SANDLOT_STORAGE": storage,
        }
        self.log = data.parent / "log.jsonl"
        self.log.touch()
        self.rng = random.Random(seed)
        self.seed = seed
        self.hits: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.rounds = 0

    async def round(self, failpoint: str) -> None:
        self.rounds += 1
        hit = self.rng.randint(1, 4)
        words = (str(self.log), f"{self.seed}x{self.rounds}", failpoint, str(hit))
        worker = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "tests.soak.worker", *words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=WORKER_S,
            check=False,
        )
        if worker.returncode == -signal.SIGKILL:
            self.hits[failpoint] += 1
        elif worker.returncode:
            self.problems.append(f"{failpoint}: the worker failed: {worker.stderr[-1000:]}")
        await self._look(failpoint)

    async def _look(self, failpoint: str) -> None:
        world = World()
        world.read(self.log)
        async with build(self.settings()) as host:
            seen = await look(host, world.pending)
            problems = judge(world, seen)
            self.outcomes["undone" if world.pending and not problems else "done"] += 1
            problems += await self.leftovers(host)
            await self._try_some(host, world, seen)
            await self._thin_out(host, seen)
            self._settle(world, seen)
        self.problems += [f"round {self.rounds}, {failpoint}: {problem}" for problem in problems]

    def settings(self) -> Settings:
        return load(self.environment)

    async def leftovers(self, host: SandboxHostService) -> list[str]:
        """Nothing on the machine that the journal does not know, and the other way round."""
        lifecycle = host._lifecycle  # pyright: ignore[reportPrivateUsage] - the only place that knows everything
        give_up = time.monotonic() + SWEPT_S
        # What was released is removed behind the answer.
        while (found := await files_apart(host)) and time.monotonic() < give_up:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        sessions = list(lifecycle._sessions.values())  # pyright: ignore[reportPrivateUsage]
        volumes = {session.row.volume for session in sessions if session.row.state is SessionState.ACTIVE}
        guests = set(host._parts.keeper.names())  # pyright: ignore[reportPrivateUsage]
        found += [f"guests and sessions differ: {guests ^ volumes}"] if guests ^ volumes else []
        found += [f"{s.row.session_id} is still marked: {s.row.changing}" for s in sessions if s.row.changing]
        return found + [f"the limit of {name}: {told}" for name, told in limits_apart(host).items()]

    async def _try_some(self, host: SandboxHostService, world: World, seen: dict[str, dict[str, Any]]) -> None:
        """A snapshot or two hold what was acknowledged."""
        rng = self.rng
        ids = [name for name, one in seen.items() if one["state"] is SessionState.ACTIVE and one["parents"]]
        for session_id in rng.sample(ids, min(2, len(ids))):
            name = rng.choice(list(seen[session_id]["parents"]))
            value = await try_snapshot(host, session_id, name)
            known = world.sessions.get(session_id, Known())
            if name in known.snapshots and value != known.snapshots[name]:
                self.problems.append(f"{session_id}/{name} holds {value!r}, not {known.snapshots[name]!r}")
            seen[session_id]["value"], seen[session_id]["head"] = value, name
            known.snapshots.setdefault(name, value)

    async def _thin_out(self, host: SandboxHostService, seen: dict[str, dict[str, Any]]) -> None:
        for session_id, one in list(seen.items()):
            if one["state"] is not SessionState.ACTIVE:
                await host.destroy(session_id)
                del seen[session_id]

    def _settle(self, world: World, seen: dict[str, dict[str, Any]]) -> None:
        """Write down what is there: the next worker begins with it."""
        settled: dict[str, dict[str, Any]] = {}
        for session_id, one in seen.items():
            known = world.sessions.get(session_id, Known())
            # What a snapshot holds that nobody acknowledged is not known; a look would tell.
            values = {name: known.snapshots.get(name, "?") for name in one["parents"]}
            settled[session_id] = {
                "value": one["value"],
                "head": one["head"],
                "snapshots": values,
                "parents": one["parents"],
            }
        with self.log.open("a") as file:
            file.write(json.dumps({"settled": settled}) + "\n")

    def report(self, seconds: float) -> int:
        print(f"\n{'place':<28}kills, storage {self.storage}")
        for name in places_of(self.storage):
            print(f"{name:<28}{self.hits[name]:>5}")
        total = sum(self.hits.values())
        print(f"\n{total} kills in {self.rounds} rounds, {seconds:.0f} s; problems: {len(self.problems)}")
        for problem in self.problems[:20]:
            print(f"  {problem}")
        return 1 if self.problems else 0


def limits_apart(host: SandboxHostService) -> dict[str, str]:
    """A limit is raised for a moment with every rollback. Here nothing is under way: the kernel has what was asked."""
    storage = host._parts.storages["btrfs"]  # pyright: ignore[reportPrivateUsage] - the kernel is asked beside it
    assert isinstance(storage, BtrfsStorage)
    found: dict[str, str] = {}
    for session in host._lifecycle._sessions.values():  # pyright: ignore[reportPrivateUsage] - no other road
        asked, volume = session.resources.disk_bytes, session.volume
        if session.row.storage == "btrfs" and volume is not None and session.row.state is SessionState.ACTIVE:
            group = int(volume.state.partition(":")[2], 16)
            held = storage._place.limit(group)  # pyright: ignore[reportPrivateUsage] - the kernel is asked, not the engine
            if held != asked:
                found[session.row.session_id] = f"{held} instead of {asked}"
    return found


def judge(world: World, seen: dict[str, dict[str, Any]]) -> list[str]:
    """What is wrong; nothing when the real world is one of those that may be."""
    before = differences(world.sessions, seen)
    if world.pending is None or not before:
        return before
    other = copy.deepcopy(world)
    about = world.pending
    target = about["session"]
    if about["op"] == "create" and seen.get(target, {}).get("state") is SessionState.FAILED:
        del seen[target]
        return differences(world.sessions, seen)
    extra = [name for name in seen.get(target, {}).get("parents", {}) if name not in known_names(world, target)]
    answer: Any = extra[0] if extra else None
    if about["op"] == "fork":
        children = [name for name in seen if name not in world.sessions]
        answer = {"children": children, "at": about["name"] or (extra[0] if extra else None)}
        if children and len(children) != 2:
            return [f"a fork left {len(children)} of 2"]
    if about["op"] in ("turn", "snapshot") and answer is None:
        return before
    if about["op"] == "fork" and answer["at"] is None:
        return before
    other._apply(about, answer)  # pyright: ignore[reportPrivateUsage]
    after = differences(other.sessions, seen)
    if not after:
        world.sessions = other.sessions
        return []
    return [f"neither before {about}: {before}", f"nor after: {after}"]


def known_names(world: World, session_id: str) -> set[str]:
    return set(world.sessions[session_id].snapshots) if session_id in world.sessions else set()


def differences(sessions: dict[str, Known], seen: dict[str, dict[str, Any]]) -> list[str]:
    found = [f"{name} is gone" for name in sessions.keys() - seen.keys()]
    found += [f"{name} is there" for name in seen.keys() - sessions.keys()]
    for name in sessions.keys() & seen.keys():
        known, one = sessions[name], seen[name]
        if one["state"] is not SessionState.ACTIVE:
            found.append(f"{name} is {one['state']}: {one['reason']}")
        for what, mine in (("value", known.value), ("head", known.head), ("parents", known.parents)):
            if one[what] != mine:
                found.append(f"{name}: {what} is {one[what]!r}, expected {mine!r}")
    return found


async def soak(kills: int, seed: int, data: Path, storage: str) -> int:
    began = time.monotonic()
    work = Soak(data, seed, storage)
    places = places_of(storage)
    while sum(work.hits.values()) < kills and work.rounds < 3 * kills and not work.problems:
        scarce = min(work.hits[name] for name in places)
        await work.round(work.rng.choice([name for name in places if work.hits[name] == scarce]))
        print(f"\r{sum(work.hits.values())} of {kills} kills, {work.rounds} rounds", end="", flush=True)
    async with build(work.settings()) as host:
        for session in (await host.list(SessionFilter(limit=1000))).sessions:
            await host.destroy(session.session_id)
        work.problems += await work.leftovers(host)
        await storages.nothing_left(host, data, storage)
    work.problems += [f"left of the machine: {what}" for what in sorted(storages.left_of_machine(data))]
    missed = [name for name in places if kills >= ROUNDS_MIN * len(places) and work.hits[name] < ROUNDS_MIN]
    work.problems += [f"{name} was hit {work.hits[name]} times" for name in missed]
    return work.report(time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--storage", choices=storages.NAMES, default="layers")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--templates", type=Path, default=ROOT / "build" / "test-templates")
    arguments = parser.parse_args()
    ready = storages.probe(arguments.storage)
    if not ready.ready:
        print(f"{arguments.storage} is not ready: {ready.reason}")
        return 1
    print(f"seed {arguments.seed}")
    (ROOT / "build").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="sandlot-soak-", dir=ROOT / "build"))
    data = folder / "data"
    data.mkdir(mode=0o700)
    if arguments.templates.is_dir():
        (data / "templates").symlink_to(arguments.templates)
    try:
        return asyncio.run(soak(arguments.kills, arguments.seed, data, arguments.storage))
    finally:
        (data / "templates").unlink(missing_ok=True) if (data / "templates").is_symlink() else None
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
