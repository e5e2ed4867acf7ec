"""What is on a disk when the power goes, from the order in which it was written.

Flushes divide the log into epochs. What was written before the last flush is there. Of what was written after it any
part may be there: none of it, or some blocks and not others. A block is written whole or not at all.
"""

import json
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.power.recorder import Entry, Kind

BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What was known at a moment."""

    before: dict[str, Any]  # after the last operation that was answered
    kind: str = "start"  # of the operation that was under way
    session_id: str = ""
    after: dict[str, Any] | None = None  # what that one led to in the end; None when nothing was under way


@dataclass(slots=True)
class Epoch:
    """From one flush to the next."""

    writes: list[Entry] = field(default_factory=list[Entry])
    known: Acknowledged = field(default_factory=lambda: Acknowledged({}))  # at its end


@dataclass(frozen=True, slots=True)
class Cut:
    epoch: int
    seed: int | None  # None: nothing of the epoch reached the disk

    def __str__(self) -> str:
        return f"epoch {self.epoch}, " + ("nothing after the flush" if self.seed is None else f"part {self.seed}")


def divide(log: Sequence[Entry]) -> list[Epoch]:
    results = [json.loads(entry.data) for entry in log if entry.kind is Kind.MARK]
    following = iter([mark["seen"] for mark in results if "done" in mark])
    epochs = [Epoch()]
    known = Acknowledged({})
    for entry in log:
        if entry.kind is Kind.WRITE:
            epochs[-1].writes.append(entry)
        elif entry.kind is Kind.FLUSH:
            epochs[-1].known = known
            epochs.append(Epoch(known=known))
        else:
            mark = json.loads(entry.data)
            if "done" in mark:
                known = Acknowledged(mark["seen"], f"after {mark['done']}")
            else:
                known = Acknowledged(known.before, mark["begin"], mark["session"], next(following))
    epochs[-1].known = known
    return epochs


def all_cuts(epochs: Sequence[Epoch], parts: int) -> list[Cut]:
    """Of every epoch: none of it, and some parts of it where there is something to choose."""
    cuts: list[Cut] = []
    for number, epoch in enumerate(epochs):
        cuts.append(Cut(number, None))
        if sum(len(write.data) for write in epoch.writes) > BLOCK:
            cuts += [Cut(number, seed) for seed in range(parts)]
    return cuts


def choose(epochs: Sequence[Epoch], cuts: Sequence[Cut], count: int, rng: random.Random) -> list[Cut]:
    """As many as asked for, from all kinds of moments in turn."""
    kinds: dict[str, list[Cut]] = defaultdict(list)
    for cut in cuts:
        kinds[epochs[cut.epoch].known.kind].append(cut)
    chosen: list[Cut] = []
    while len(chosen) < min(count, len(cuts)):
        for left in kinds.values():
            if left and len(chosen) < count:
                chosen.append(left.pop(rng.randrange(len(left))))
    return sorted(chosen, key=lambda cut: (cut.epoch, -1 if cut.seed is None else cut.seed))


class Disk:
    """The image as it was, written again from the first block on. Cuts come in the order of the log."""

    def __init__(self, base: Path, epochs: Sequence[Epoch]) -> None:
        self._size = base.stat().st_size
        self._epochs = epochs
        self._reached = 0
        self._blocks: dict[int, bytes] = {}
        with base.open("rb") as file:
            for number in range(self._size // BLOCK):
                data = file.read(BLOCK)
                if data.count(0) != BLOCK:
                    self._blocks[number] = data

    def write_out(self, cut: Cut, image: Path) -> None:
        while self._reached < cut.epoch:
            for number, data in _blocks(self._epochs[self._reached].writes):
                self._blocks[number] = data
            self._reached += 1
        blocks = dict(self._blocks)
        if cut.seed is not None:
            # A disk may write again and again what is overwritten: the last that it took of a block counts.
            rng = random.Random(f"{cut.epoch} {cut.seed}")
            share = rng.random()
            blocks.update(block for block in _blocks(self._epochs[cut.epoch].writes) if rng.random() < share)
        descriptor = os.open(image, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.truncate(descriptor, self._size)
            for number, data in blocks.items():
                os.pwrite(descriptor, data, number * BLOCK)
        finally:
            os.close(descriptor)


def _blocks(writes: Sequence[Entry]) -> Iterator[tuple[int, bytes]]:
    for write in writes:
        assert write.offset % BLOCK == 0, "the disk has blocks of this size"
        assert len(write.data) % BLOCK == 0, "the disk has blocks of this size"
        for start in range(0, len(write.data), BLOCK):
            yield (write.offset + start) // BLOCK, write.data[start : start + BLOCK]
