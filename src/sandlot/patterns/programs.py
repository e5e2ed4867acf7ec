"""Programs for the scout, over the bytes of UTF-8. Bytes that are no UTF-8 are characters of their own.

A program is a graph of steps that are all tried at once, so that no text takes longer than another of its length."""

import struct
from dataclasses import dataclass
from typing import Union

from sandlot.model import InvalidArgument

_MATCH, _RANGE, _SPLIT, _ASSERT = range(4)
START, END, WORD_EDGE, NO_WORD_EDGE = range(4)
_STEP = struct.Struct("<BBBxII")
STEPS_MAX = 20_000
CODE_MAX = 0x10FFFF
_STRAY = ((0x80, 0xC1), (0xF5, 0xFF))  # bytes that begin no character

Ranges = tuple[tuple[int, int], ...]  # of characters; bytes that are no UTF-8 as their surrogate escapes


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of these."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Edge:
    """A place between characters."""

    kind: int


@dataclass(frozen=True, slots=True)
class Row:
    """One after the other."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    part: "Node"
    least: int
    most: int | None


Node = Union[Chars, Edge, Row, Choice, Repeat]  # noqa: UP007 - the classes are named before they are there


def compile_node(node: Node) -> bytes:
    """Steps for the scout. Raises InvalidArgument when there are too many."""
    return _Compiler().compile(node)


class _Compiler:
    """From the end to the beginning: each step is told what comes after it. The first one stands at 0."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, int, int, int, int]] = []
        self._known: dict[tuple[tuple[tuple[int, int], ...], int], int] = {}

    def compile(self, node: Node) -> bytes:
        begin = self._add(_SPLIT, 0, 0, 0, 0)
        end = self._add(_MATCH, 0, 0, 0, 0)
        first = self._node(node, end)
        self._steps[begin] = (_SPLIT, 0, 0, first, first)
        return b"".join(_STEP.pack(*step) for step in self._steps)

    def _add(self, op: int, low: int, high: int, after: int, other: int) -> int:
        if len(self._steps) >= STEPS_MAX:
            raise InvalidArgument("the pattern is too large", next_step="use fewer or smaller counts", limit="steps")
        self._steps.append((op, low, high, after, other))
        return len(self._steps) - 1

    def _node(self, node: Node, after: int) -> int:
        if isinstance(node, Chars):
            return self._chars(node.ranges, after)
        if isinstance(node, Edge):
            return self._add(_ASSERT, node.kind, 0, after, after)
        if isinstance(node, Row):
            for part in reversed(node.parts):
                after = self._node(part, after)
            return after
        if isinstance(node, Choice):
            return self._either([self._node(part, after) for part in node.parts])
        return self._repeat(node, after)

    def _repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self._add(_SPLIT, 0, 0, after, after)
            self._steps[loop] = (_SPLIT, 0, 0, self._node(node.part, loop), after)
            after = loop
        else:
            end = after
            for _optional in range(node.most - node.least):
                after = self._add(_SPLIT, 0, 0, self._node(node.part, after), end)
        for _needed in range(node.least):
            after = self._node(node.part, after)
        return after

    def _either(self, begins: list[int]) -> int:
        found = begins[-1]
        for begin in reversed(begins[:-1]):
            found = self._add(_SPLIT, 0, 0, begin, found)
        return found

    def _chars(self, ranges: Ranges, after: int) -> int:
        begins: list[int] = []
        for sequence in _sequences(ranges):
            at = after
            for low, high in reversed(sequence):
                key = (((low, high),), at)
                if key not in self._known:
                    self._known[key] = self._add(_RANGE, low, high, at, at)
                at = self._known[key]
            begins.append(at)
        if not begins:  # nothing fits: a step that leads to itself and takes no byte
            return self._add(_RANGE, 1, 0, after, after)
        return self._either(begins)


def _sequences(ranges: Ranges) -> list[tuple[tuple[int, int], ...]]:
    """The bytes of characters, as ranges of bytes one after another."""
    found: list[tuple[tuple[int, int], ...]] = []
    for low, high in ranges:
        if low <= 0xDC80 and high >= 0xDCFF:  # all characters, and so all bytes that are none
            found += [(stray,) for stray in _STRAY]
        for first, last in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high)):
            found += _utf8(first, last) if first <= last else []
        if 0xDC80 <= low <= high <= 0xDCFF:
            found.append(((low - 0xDC00, high - 0xDC00),))
    return found


def _utf8(low: int, high: int) -> list[tuple[tuple[int, int], ...]]:
    for most in (0x7F, 0x7FF, 0xFFFF):
        if low <= most < high:
            return _utf8(low, most) + _utf8(most + 1, high)
    if high <= 0x7F:
        return [((low, high),)]
    for shift in (6, 12, 18):  # until all of the lower bytes go from their first to their last
        mask = (1 << shift) - 1
        if low >> shift != high >> shift:
            if low & mask:
                return _utf8(low, low | mask) + _utf8((low | mask) + 1, high)
            if high & mask != mask:
                return _utf8(low, (high & ~mask) - 1) + _utf8(high & ~mask, high)
    pairs = zip(chr(low).encode(), chr(high).encode(), strict=True)
    return [tuple(pairs)]
