"""What a context tells and prints, as its call keeps it: split into the stories of its runs."""

import secrets
from collections.abc import Callable, Mapping

from sandlot.host.code_frames import Piece, Splitter
from sandlot.host.code_languages import MARK_FIRST, MARK_HEX
from sandlot.host.code_story import Batch, Story
from sandlot.host.output import Read
from sandlot.model import CallOutput, Stream

_SPILL_BYTES = 64 * 1024


def new_mark() -> str:
    return MARK_FIRST + secrets.token_hex(MARK_HEX // 2)


class ContextLog:
    """Has the verbs of a log. What it has heard and nobody keeps, is forgotten; what a story keeps is acknowledged when
    that is in its file."""

    spill_bytes = _SPILL_BYTES

    def __init__(self, mark: str, hear: Callable[[Stream, Piece], None], heard: Mapping[Stream, int]) -> None:
        self.totals = dict(heard)
        self.written = dict(heard)
        self.heard = dict(heard)  # as far as pieces are whole
        self.unwritten_bytes = 0
        self._splitters = {stream: Splitter(mark, heard[stream]) for stream in Stream}
        self._hear = hear
        self._fresh: list[Story] = []
        self._writing: list[tuple[Story, Batch]] = []
        self._reach = dict(heard)

    @property
    def places(self) -> tuple[int, int]:
        return self.heard[Stream.STDOUT], self.heard[Stream.STDERR]

    @property
    def size_bytes(self) -> int:
        return sum(self.totals.values())

    def append(self, stream: Stream, data: bytes) -> None:
        self.totals[stream] += len(data)
        self.unwritten_bytes += len(data)
        for piece in self._splitters[stream].feed(data):
            self.heard[stream] = piece.end
            self._hear(stream, piece)
        self.heard[stream] = self.totals[stream] - self._splitters[stream].held

    def keeps(self, story: Story) -> None:
        """It has something to be written."""
        if story not in self._fresh:
            self._fresh.append(story)
            self.unwritten_bytes += 1

    def take_unwritten(self) -> list[CallOutput]:
        """What `write` is to bring to files; one batch at a time."""
        self._writing = [(story, story.take_unwritten()) for story in self._fresh]
        self._fresh, self.unwritten_bytes, self._reach = [], 0, dict(self.heard)
        return []

    def write(self, batch: list[CallOutput]) -> None:
        """Blocking."""
        del batch
        for story, unwritten in self._writing:
            story.write(unwritten)

    def wrote(self, batch: list[CallOutput]) -> None:
        del batch
        for story, unwritten in self._writing:
            story.wrote(unwritten)
        self._writing = []
        self.written = self._reach

    def restore(self) -> None:
        """Its context has done that."""

    def short(self, size_bytes: int) -> bytes | None:
        del size_bytes

    def read(self, position: int) -> Read | None:
        """Nobody reads it: stories are read."""
        del position

    def is_near(self, position: int) -> bool:
        del position
        return True

    def place_near_end(self, size_bytes: int) -> int:
        del size_bytes
        return 0

    def close(self) -> None:
        for story, _batch in self._writing:
            story.close()
