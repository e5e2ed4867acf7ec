"""Patterns matched here, where there is no scout: the same programs, and so the same answers.

States are worked out while text is read, from all steps that are possible at once, so no text takes longer than another
of its length, whoever wrote the pattern. Few are kept: when there are too many, they are worked out anew.
"""

import struct

from sandlot.patterns.programs import END, NO_WORD_EDGE, START, WORD_EDGE, Node, compile_node

_MATCH, _RANGE, _SPLIT = range(3)
_STEP = struct.Struct("<BBBxII")
_STATES_MAX = 2000
_END_OF_TEXT = 256  # behind the last byte
_WORD = frozenset((*range(0x30, 0x3A), *range(0x41, 0x5B), 0x5F, *range(0x61, 0x7B), *range(0x80, 0x100)))


class _State:
    """Steps that are possible here, and what stood before."""

    __slots__ = ("at_start", "behind_word", "steps", "table")

    def __init__(self, steps: tuple[int, ...], *, at_start: bool, behind_word: bool) -> None:
        self.steps = steps
        self.at_start = at_start
        self.behind_word = behind_word
        self.table: list[_State | None] = [None] * (_END_OF_TEXT + 1)


_FITS = _State((), at_start=False, behind_word=False)  # stands in tables for: it was found


class Automaton:
    """One pattern. With `anywhere` it is looked for in a text, else it must be the whole of it. Not for two threads at
    once."""

    def __init__(self, node: Node, *, anywhere: bool) -> None:
        self._steps = tuple(_STEP.iter_unpack(compile_node(node)))
        self._anywhere = anywhere
        self._known: dict[tuple[tuple[int, ...], bool, bool], _State] = {}

    def fits(self, text: bytes) -> bool:
        state = self._state((0,), at_start=True, behind_word=False)
        for byte in text:
            after = state.table[byte] or self._work_out(state, byte)
            if after is _FITS:
                return True
            if not after.steps:
                return False
            state = after
        return (state.table[_END_OF_TEXT] or self._work_out(state, _END_OF_TEXT)) is _FITS

    def _state(self, steps: tuple[int, ...], *, at_start: bool, behind_word: bool) -> _State:
        key = (steps, at_start, behind_word)
        if key not in self._known:
            if len(self._known) >= _STATES_MAX:
                self._known.clear()
            self._known[key] = _State(steps, at_start=at_start, behind_word=behind_word)
        return self._known[key]

    def _work_out(self, state: _State, byte: int) -> _State:
        waiting, seen, after, found = list(state.steps), set[int](), set[int](), False
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            kind, low, high, following, other = self._steps[at]
            if kind == _MATCH:
                found = True
            elif kind == _RANGE:
                if byte != _END_OF_TEXT and low <= byte <= high:
                    after.add(following)
            elif kind == _SPLIT:
                waiting += (following, other)
            elif _holds(low, state, byte):
                waiting.append(following)
        if found and (self._anywhere or byte == _END_OF_TEXT):
            state.table[byte] = _FITS
            return _FITS
        if self._anywhere:
            after.add(0)
        then = self._state(tuple(sorted(after)), at_start=False, behind_word=byte in _WORD)
        state.table[byte] = then
        return then


def _holds(edge: int, state: _State, byte: int) -> bool:
    if edge == START:
        return state.at_start
    if edge == END:
        return byte == _END_OF_TEXT
    is_edge = state.behind_word != (byte in _WORD)
    return is_edge if edge == WORD_EDGE else edge == NO_WORD_EDGE and not is_edge
