"""Patterns as nodes of a program: regular expressions, plain text, and patterns of paths.

Regular expressions have no references to groups and no look-around: what fits can be decided byte by byte."""

from collections.abc import Sequence

from sandlot.model import InvalidArgument
from sandlot.patterns.programs import (
    CODE_MAX,
    END,
    NO_WORD_EDGE,
    START,
    WORD_EDGE,
    Chars,
    Choice,
    Edge,
    Node,
    Ranges,
    Repeat,
    Row,
)

_REPEAT_MAX = 1000
_DEPTH_MAX = 100
_FOLDED_MAX = 512  # characters of a range whose other cases are looked up one by one


ANY = Chars(((0, 0x09), (0x0B, CODE_MAX)))
_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A), (0x80, CODE_MAX))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x2000, 0x200A), (0x3000, 0x3000))
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"n": 0x0A, "t": 0x09, "r": 0x0D, "f": 0x0C, "v": 0x0B, "a": 0x07, "e": 0x1B}
_HEX = {"x": 2, "u": 4, "U": 8}


def _wrong(pattern: str, at: int, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"the pattern {pattern[:80]!r} is wrong at character {at + 1}: {why}", next_step="or look for it as plain text"
    )


def normal(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Sorted, and none touching another."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def negated(ranges: Ranges) -> Ranges:
    """All others, but for the end of a line."""
    found: list[tuple[int, int]] = []
    at = 0
    for low, high in normal((*ranges, (0x0A, 0x0A))):
        if low > at:
            found.append((at, low - 1))
        at = high + 1
    if at <= CODE_MAX:
        found.append((at, CODE_MAX))
    return tuple(found)


def either_case(ranges: Ranges) -> Ranges:
    """With the other case of each letter. In a long range that is not ASCII, letters are taken as they are."""
    found = list(ranges)
    for low, high in ranges:
        for code in range(low, min(high, low + _FOLDED_MAX) + 1):
            for other in (chr(code).lower(), chr(code).upper()):
                if len(other) == 1:
                    found.append((ord(other), ord(other)))
    return normal(found)


class _Parser:
    """Recursive, with a bound."""

    def __init__(self, pattern: str, *, ignore_case: bool) -> None:
        self._pattern = pattern
        self._at = 0
        self._ignore_case = ignore_case
        self._depth = 0

    def whole(self) -> Node:
        found = self._choice()
        if self._at < len(self._pattern):
            raise self._error("a bracket that was not opened")
        return found

    def _error(self, why: str) -> InvalidArgument:
        return _wrong(self._pattern, self._at, why)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        found = self._peek()
        if not found:
            raise self._error("it ends too soon")
        self._at += 1
        return found

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error("too many brackets within each other")
        parts = [self._row()]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._row())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _row(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._one()))
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _repeated(self, part: Node) -> Node:
        while self._peek() in ("*", "+", "?", "{"):
            least, most = self._times()
            if least < 0:
                return part
            if self._peek() in ("?", "+"):  # as few as possible, or without giving back: the same lines fit
                self._at += 1
            if isinstance(part, Edge):
                raise self._error("there is nothing to repeat")
            part = Repeat(part, least, most)
        return part

    def _times(self) -> tuple[int, int | None]:
        sign = self._take()
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at : end].partition(",") if end > 0 else ("", "", "")
        if not (low.isdecimal() or (comma and high.isdecimal())) or not (high.isdecimal() or not high):
            self._at -= 1
            raise self._error("a curly bracket that counts nothing; write \\{ for the character")
        least = int(low[:6] or 0)
        most = int(high[:6]) if high else None if comma else least
        if max(least, most or 0) > _REPEAT_MAX or (most is not None and most < least):
            raise self._error(f"a count beyond {_REPEAT_MAX}, or backwards")
        self._at = end + 1
        return least, most

    def _one(self) -> Node:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return self._set()
        if char == "\\":
            return self._escape()
        if char in "*+?{":
            self._at -= 1
            raise self._error("there is nothing to repeat; write a backslash before it for the character")
        simple = {".": ANY, "^": Edge(START), "$": Edge(END)}.get(char)
        return simple or self._chars(((ord(char), ord(char)),))

    def _chars(self, ranges: Ranges) -> Chars:
        return Chars(either_case(ranges) if self._ignore_case else normal(ranges))

    def _group(self) -> Node:
        before = self._ignore_case
        if self._peek() == "?":
            self._at += 1
            self._group_kind()
            if self._pattern[self._at - 1] == ")":  # options for the rest
                return Row(())
        found = self._choice()
        if self._take() != ")":
            raise self._error("a bracket is missing")
        self._ignore_case = before
        return found

    def _group_kind(self) -> None:
        end = next((at for at in range(self._at, len(self._pattern)) if self._pattern[at] in ":)>=!"), -1)
        kind = self._pattern[self._at : end + 1]
        self._at = end + 1
        if kind.startswith(("P<", "<")) and kind.endswith(">") and kind.strip("P<>").isidentifier():
            return
        if kind == ":" or (kind[:-1].strip("ims") == "" and kind[:-1] and kind[-1] in ":)"):
            self._ignore_case |= "i" in kind
            return
        raise self._error("look-around and references are not known")

    def _escape(self) -> Node:
        char = self._take()
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return Chars(negated(ranges) if char.isupper() else ranges)
        edge = {"b": WORD_EDGE, "B": NO_WORD_EDGE, "A": START, "z": END, "Z": END}.get(char)
        if edge is not None:
            return Edge(edge)
        code = self._code(char)
        return self._chars(((code, code),))

    def _code(self, char: str) -> int:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX:
            digits = self._pattern[self._at : self._at + _HEX[char]]
            try:
                code = int(digits, 16)
            except ValueError:
                code = -1
            if len(digits) < _HEX[char] or not 0 <= code <= CODE_MAX:
                raise self._error("a number of a character is wrong")
            self._at += len(digits)
            return code
        if char.isascii() and char.isalnum():
            raise self._error(f"\\{char} is not known")
        return ord(char)

    def _set(self) -> Node:
        negate = self._peek() == "^"
        self._at += negate
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            low = self._set_item(ranges)
            if low is None or self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
                ranges += [(low, low)] if low is not None else []
                continue
            self._at += 1
            high = self._set_item(ranges)
            if high is None or high < low:
                raise self._error("a range is backwards")
            ranges.append((low, high))
        self._at += 1
        found = normal(ranges)
        found = either_case(found) if self._ignore_case else found
        return Chars(negated(found) if negate else found)

    def _set_item(self, ranges: list[tuple[int, int]]) -> int | None:
        """One character, or None for a class of them, which was added."""
        char = self._take()
        if char == "[" and self._peek() == ":":
            raise self._error("classes such as [:alpha:] are not known; write \\w, \\d or \\s")
        if char != "\\":
            return ord(char)
        char = self._take()
        if char.lower() not in _CLASSES:
            return 0x08 if char == "b" else self._code(char)
        found = _CLASSES[char.lower()]
        ranges += negated(found) if char.isupper() else found
        return None


def parse_regex(pattern: str, *, ignore_case: bool = False) -> Node:
    """Raises InvalidArgument, which tells where it is wrong."""
    return _Parser(pattern, ignore_case=ignore_case).whole()


def parse_text(text: str, *, ignore_case: bool = False) -> Node:
    parts = [((ord(char), ord(char)),) for char in text]
    return Row(tuple(Chars(either_case(part) if ignore_case else part) for part in parts))


def literal_of(node: Node) -> bytes:
    """Bytes that are in everything that fits: the longest that are easily seen. Empty: none are."""
    parts = node.parts if isinstance(node, Row) else (node,)
    best = current = b""
    for part in (*parts, Edge(START)):
        if isinstance(part, Chars) and len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]:
            current += chr(part.ranges[0][0]).encode("utf-8", "surrogateescape")
            continue
        best, current = max(best, current, key=len), b""
        inner = literal_of(part) if isinstance(part, Row) else b""
        if isinstance(part, Repeat) and part.least:
            inner = literal_of(part.part)
        best = max(best, inner, key=len)
    return best


# ---- paths -----------------------------------------------------------------------------------------------------------

_NAME = Chars(((0, 0x2E), (0x30, CODE_MAX)))  # all but a slash; newlines too
_EVERY = Chars(((0, CODE_MAX),))


def parse_path(pattern: str, *, ignore_case: bool = False, anywhere: bool = False) -> Node:
    """`*`, `?`, `[a-z]`, `{a,b}` and `**`. `anywhere`: one without a slash fits a name in any directory."""
    text = pattern.removeprefix("./")
    below = Repeat(Row((Repeat(_NAME, 0, None), _slash())), 0, None)
    parts: list[Node] = [below] if anywhere and "/" not in text.rstrip("/") else []
    text = text.strip("/") if anywhere else text.lstrip("/").rstrip("/")
    if not text:
        raise InvalidArgument(f"the pattern {pattern[:80]!r} names nothing", next_step="use one such as **/*.py")
    return Row((*parts, _PathParser(pattern, text, ignore_case=ignore_case).row(top=True)))


def _slash() -> Node:
    return Chars(((0x2F, 0x2F),))


class _PathParser:
    def __init__(self, pattern: str, text: str, *, ignore_case: bool) -> None:
        self._pattern = pattern
        self._text = text
        self._at = 0
        self._ignore_case = ignore_case
        self._depth = 0

    def row(self, *, top: bool = False) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if not top and char in ",}":
                break
            parts.append(self._one(char))
        return Row(tuple(parts))

    def _one(self, char: str) -> Node:
        text = self._text
        if text.startswith("**", self._at) and (self._at == 0 or text[self._at - 1] in "/{,"):
            if text.startswith("**/", self._at):
                self._at += 3
                return Repeat(Row((Repeat(_NAME, 0, None), _slash())), 0, None)
            if self._at + 2 == len(text) or text[self._at + 2] in ",}":
                self._at += 2
                return Repeat(_EVERY, 0, None)
        self._at += 1
        if char == "*":
            while text.startswith("*", self._at):
                self._at += 1
            return Repeat(_NAME, 0, None)
        if char == "?":
            return _NAME
        if char == "[":
            return self._set()
        if char == "{":
            return self._braces()
        if char == "\\" and self._at < len(text):
            char = text[self._at]
            self._at += 1
        ranges = ((ord(char), ord(char)),)
        return Chars(either_case(ranges) if self._ignore_case else ranges)

    def _braces(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise _wrong(self._pattern, self._at, "too many brackets within each other")
        parts = [self.row()]
        while self._at < len(self._text) and self._text[self._at] == ",":
            self._at += 1
            parts.append(self.row())
        if self._at >= len(self._text):
            raise _wrong(self._pattern, len(self._pattern) - 1, "a bracket is missing")
        self._at += 1
        self._depth -= 1
        return Choice(tuple(parts))

    def _set(self) -> Node:
        end = self._text.find("]", self._at + 1 + (self._text[self._at : self._at + 1] in ("!", "^")))
        if end < 0:
            raise _wrong(self._pattern, self._at, "a bracket is missing")
        inner = self._text[self._at : end]
        self._at = end + 1
        negate = inner[:1] in ("!", "^")
        inner = inner[negate:]
        ranges: list[tuple[int, int]] = []
        at = 0
        while at < len(inner):
            low = high = inner[at]
            if at + 2 < len(inner) and inner[at + 1] == "-":
                high = inner[at + 2]
                at += 2
            at += 1
            if low <= high:
                ranges.append((ord(low), ord(high)))
        found = normal(ranges)
        found = either_case(found) if self._ignore_case else found
        found = negated(found) if negate else found
        return Chars(_without_slash(found))


def _without_slash(ranges: Ranges) -> Ranges:
    return tuple(
        piece
        for low, high in ranges
        for piece in ((low, min(high, 0x2E)), (max(low, 0x30), high))
        if piece[0] <= piece[1]
    )
