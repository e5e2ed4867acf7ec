"""`python -m tests.power.run [--cuts N] [--rounds N] [--seed S]`: cut the power of a machine at every moment.

The work of an engine is recorded as a disk sees it; then the disk is made as it was at each flush and between them, and
an engine is started on it. Everything is mounted in a namespace of its own, so nothing is left behind however it ends.
"""

import argparse
import asyncio
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.own_mounts import enter_own_mounts
from tests.power.cuts import BLOCK, Cut, Disk, Epoch, all_cuts, choose, divide
from tests.power.judge import differences, judge
from tests.power.recorder import read_log
from tests.soak.leaks import group_folders

ROOT = Path(__file__).parents[2]
IMAGE_BYTES = 64 << 20
DEADLINE_S = 300
UNMOUNT_S = 60
PROGRAMS = ("mkfs.ext4", "losetup", "mount", "umount")


def lacks() -> str:
    """What this machine needs and does not have; empty when it has all."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    missing += [name for name in ("/dev/fuse", "/dev/loop-control") if not Path(name).exists()]
    return ", ".join(missing)


def call(*words: str | Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=DEADLINE_S).stdout.strip()


@contextmanager
def mounted(image: Path, folder: Path) -> Generator[None]:
    device = call("losetup", "--find", "--show", "--sector-size", str(BLOCK), image)
    try:
        call("mount", device, folder)
    finally:
        call("losetup", "--detach", device)  # as soon as nobody uses it
    try:
        yield
    finally:
        unmount(folder)


def unmount(folder: Path) -> None:
    """Guests that were ended a moment ago may still be about to let go."""
    deadline = time.monotonic() + UNMOUNT_S
    while subprocess.run(["umount", folder], check=False, capture_output=True).returncode:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder} is still in use")
        time.sleep(0.02)


def remove_groups(data: Path) -> None:
    """Of guests that ended with their keeper, with no engine there that would remove them."""
    deadline = time.monotonic() + UNMOUNT_S
    while left := group_folders(data):
        for folder in left:
            with suppress(OSError):
                folder.rmdir()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{left} are still in use")
        time.sleep(0.02)


class PowerCut:
    def __init__(self, folder: Path, templates: Path) -> None:
        self._folder = folder
        self._templates = templates
        self._mount = folder / "mount"
        self._mount.mkdir()
        self.data = self._mount / "data"
        self.cuts: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.problems: list[str] = []

    def record(self, rounds: int) -> list[Epoch]:
        base, image, fuse, log = (self._folder / name for name in ("base", "image", "fuse", "log"))
        fuse.mkdir()
        base.touch()
        os.truncate(base, IMAGE_BYTES)
        call("mkfs.ext4", "-q", "-F", "-b", str(BLOCK), "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", base)
        shutil.copyfile(base, image)
        words = [sys.executable, "-m", "tests.power.recorder", str(image), str(fuse), str(log)]
        recorder = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE)
        assert recorder.stdout is not None
        try:
            if recorder.stdout.readline() != b"ready\n":
                raise RuntimeError("the recorder did not start")
            with mounted(fuse / "disk", self._mount):
                self._work(fuse / "marks", rounds)
            unmount(fuse)
            recorder.wait(DEADLINE_S)
        finally:
            recorder.kill()
            recorder.wait()
            recorder.stdout.close()
        return divide(list(read_log(log)))

    def _work(self, marks: Path, rounds: int) -> None:
        data = self.data
        data.mkdir(mode=0o700)
        (data / "templates").symlink_to(self._templates)
        os.sync()
        words = [sys.executable, "-m", "tests.power.worker", str(data), str(marks), str(rounds)]
        ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if ran.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the worker failed: {ran.stderr[-2000:]}")

    def look(self, epochs: list[Epoch], cuts: list[Cut]) -> None:
        disk = Disk(self._folder / "base", epochs)
        for count, cut in enumerate(cuts, start=1):
            known = epochs[cut.epoch].known
            # A new file each time: guests that are about to end hold the one before for a moment longer.
            image = self._folder / f"cut-{count}"
            disk.write_out(cut, image)
            with mounted(image, self._mount):
                image.unlink()
                is_begun = (self.data / "templates").is_symlink()
                problems = asyncio.run(judge(self.data, known)) if is_begun else differences(known, {})
            self.cuts[known.kind] += 1
            self.failed[known.kind] += bool(problems)
            self.problems += [f"{known.kind} {known.session_id} ({cut}): {problem}" for problem in problems]
            if sys.stdout.isatty():
                print(f"\r{count} of {len(cuts)} cuts, problems: {len(self.problems)} ", end="", flush=True)

    def report(self, epochs: list[Epoch], seconds: float) -> int:
        print(f"\n\n{'the power went during':<24}{'cuts':>6}{'with problems':>16}")
        for kind, count in sorted(self.cuts.items()):
            print(f"{kind:<24}{count:>6}{self.failed[kind]:>16}")
        writes = sum(len(epoch.writes) for epoch in epochs)
        print(f"\n{self.cuts.total()} cuts in {len(epochs)} epochs with {writes} writes, {seconds:.0f} s; ", end="")
        print(f"problems: {len(self.problems)}")
        for problem in self.problems[:20]:
            print(f"  {problem}")
        return 1 if self.problems or not self.cuts.total() else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="powercut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=0, help="how many; all when 0")
    parser.add_argument("--parts", type=int, default=1, help="of each epoch")
    parser.add_argument("--rounds", type=int, default=3, help="of the work that is recorded")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--templates", type=Path, default=ROOT / "build" / "test-templates")
    arguments = parser.parse_args()
    if missing := lacks():
        print(f"this machine lacks {missing}")
        return 1
    print(f"seed {arguments.seed}")
    began = time.monotonic()
    logging.disable(logging.WARNING)  # of layers that are made again; what matters is told below
    enter_own_mounts()
    with tempfile.TemporaryDirectory(prefix="sandlot-power-") as folder:
        work = PowerCut(Path(folder), arguments.templates.absolute())
        try:
            epochs = work.record(arguments.rounds)
            cuts = all_cuts(epochs, arguments.parts)
            if arguments.cuts:
                cuts = choose(epochs, cuts, arguments.cuts, random.Random(arguments.seed))
            work.look(epochs, cuts)
        finally:
            remove_groups(work.data)
        return work.report(epochs, time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
